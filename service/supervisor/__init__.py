"""Several brokers on one machine as one node: the process that starts them, keeps them running, and stops them in order."""
