"""`make demo`: every flight that left New York in 2013, through a node, its bucket, and PySpark."""
