"""Small programs that use the SDK, for example `python examples/sdk/produce.py 127.0.0.1:9093 orders`; see docs/sdk.md."""
