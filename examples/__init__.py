"""Programs that use tidelog in the way of its users: through its command, Kafka clients and PySpark."""
