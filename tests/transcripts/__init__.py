"""What real clients said to a node, frame by frame, to be sent again in worse shape. Recorded by `record.py`."""
