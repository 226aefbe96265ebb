"""One partition's log on local disk, in Kafka's file layout. Touches files, through `Files`, and nothing else outside."""
