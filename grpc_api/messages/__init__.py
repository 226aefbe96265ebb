"""Values of the contract to protobuf messages and back, for both ends of a channel. It opens none, and knows no loop."""
