"""Programs that use tidelog as its users do: through its command, the SDK, gRPC, Kafka clients and PySpark."""
