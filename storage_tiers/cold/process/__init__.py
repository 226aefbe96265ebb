"""The tier process beside the broker, and the broker's end of it.

`operations` defines the broker's questions, `table` the function that answers each; `client` and `server` both use that table.
The broker does not import `main` or `server`, and imports no S3 library.
"""
