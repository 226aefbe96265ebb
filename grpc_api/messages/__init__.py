"""Converts the contract's values to protobuf messages and back, for both ends of a channel. No channels, no event loop."""
