"""The tier process beside the broker, and the broker's end of it.

What the broker may ask stands in `operations`, who works on it in `table`; `client` asks and `server` answers by that
table. The broker imports all but `main`, `server` and `local`, and none of it knows an S3 library.
"""
