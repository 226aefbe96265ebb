"""Values of the contract to protobuf messages and back, for both ends of a channel. Pure: no channel, no loop."""
