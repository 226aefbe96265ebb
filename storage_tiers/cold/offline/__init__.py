"""Reads buckets without a node, for `fsck`, listings, Spark, the SDK's cold mode and Lambdas."""
