"""Translates between Kafka's wire protocol and the calls of `grpc_api.contract`."""
