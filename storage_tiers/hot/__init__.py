"""One partition's log on local disk, in Kafka's file layout. May touch files (through `Files`) and nothing else of the outside."""
