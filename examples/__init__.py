"""Programs that use tidelog as its users do: through its command, Kafka clients and PySpark."""
