"""The frames that real clients sent to a node, to be sent again in damaged form. Recorded by `record.py`."""
