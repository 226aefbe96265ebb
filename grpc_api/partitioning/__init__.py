"""The choice of a record's partition, shared by the client library and the server's record-level calls."""
