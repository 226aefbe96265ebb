"""What a reader needs beside pyspark: named before anything of it is imported, so that what is missing is one sentence."""

from __future__ import annotations

from importlib.util import find_spec

_ALWAYS = ("pyarrow", "crc32c", "cramjam")
_FOR_S3 = ("boto3",)


def check_extras(store: str) -> None:
    """ModuleNotFoundError names the packages that this Python lacks, and the command that installs them."""
    needed = (*_ALWAYS, *(_FOR_S3 if store.startswith("s3:") else ()))
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f"reading {store} from Spark needs {', '.join(missing)} on the driver and every executor: "
            "pip install 'tidelog[spark]'",
            name=missing[0],
        )
