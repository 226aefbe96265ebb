"""Reading a bucket without a node: `fsck`, listings, Spark, the SDK's cold mode and Lambdas are thin callers of it."""
