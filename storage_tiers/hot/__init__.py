"""One partition's log on local disk, in Kafka's file layout. Its only side effects are on files, through `Files`."""
