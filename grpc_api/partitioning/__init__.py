"""The choice of a record's partition, which the client library and the server's record-level calls share."""
