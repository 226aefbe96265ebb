"""Checks for the packages that a reader needs besides pyspark before it imports them, so that one error names all missing
packages."""

from __future__ import annotations

from importlib.util import find_spec

_ALWAYS = ("pyarrow", "crc32c", "cramjam")
_FOR_S3 = ("boto3",)

IN_SPARK = "from Spark needs {} on the driver and every executor: pip install 'tidelog[spark]'"
AS_ARROW = "as Arrow needs {}: pip install 'tidelog[arrow]'"


def check_dependencies(store: str, needs: str = IN_SPARK) -> None:
    """Raises ModuleNotFoundError if packages are missing. The message names them, and the command that installs them."""
    needed = (*_ALWAYS, *(_FOR_S3 if store.startswith("s3:") else ()))
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(f"reading {store} {needs.format(', '.join(missing))}", name=missing[0])
