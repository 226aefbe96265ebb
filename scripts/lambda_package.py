"""Builds build/lambda/verify_commit.zip for AWS Lambda: the handlers, the packages they use, and their dependencies.

    python scripts/lambda_package.py [--output FILE]

The runtime is `python3.11` on this machine's architecture (x86_64 or arm64). The kernels are those compiled in this tree (`make
kernels`). The other native modules come from wheels. Builds are reproducible. The script fails if the content exceeds Lambda's
limit, or if a native module needs a newer C library than the runtime has.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "build" / "lambda" / "verify_commit.zip"
#: The packages of this project that handlers import. They do not use the SDK.
PACKAGES = ("storage_tiers", "lambdas")
#: The dependencies of these packages, without gRPC.
DEPENDENCIES = ("boto3", "crc32c", "cramjam")
#: AWS's limit on a function's unzipped package, layers included.
MAX_UNZIPPED = 250 << 20
#: The C library of the `python3.11` runtime (Amazon Linux 2).
RUNTIME_GLIBC = (2, 26)
#: Versions that differ from constraints.txt. cramjam 2.13 and later need glibc 2.28. Version 2.12 bounds the memory of gzip
#: bombs less tightly, but no handler decompresses records.
OLDER = {"cramjam": "2.12.0"}
#: The AWS services whose descriptions the package keeps. Handlers use S3, and credentials may come from STS.
SERVICES = frozenset({"s3", "sts"})
#: The time of each zip member: the oldest that the format allows, so that it is the same in every build.
_ZIP_TIME = (1980, 1, 1, 0, 0, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=OUTPUT)
    output: Path = parser.parse_args().output
    content = output.with_suffix("")
    shutil.rmtree(content, ignore_errors=True)
    content.mkdir(parents=True)
    install_dependencies(content)
    copy_packages(content)
    check(content)
    write_zip(content, output)
    unzipped = sum(path.stat().st_size for path in files(content))
    print(f"{output.relative_to(Path.cwd()) if output.is_relative_to(Path.cwd()) else output}: ", end="")
    print(
        f"{output.stat().st_size / (1 << 20):.1f} MiB, unzipped {unzipped / (1 << 20):.1f} of {MAX_UNZIPPED >> 20} MiB"
    )


def install_dependencies(content: Path) -> None:
    pinned = (line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line)
    versions = {name: OLDER.get(name, version) for name, version in pinned}
    constraints = content.with_name("constraints.txt")
    constraints.write_text("".join(f"{name}=={version}\n" for name, version in versions.items()))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--only-binary", ":all:"]
    runtime = ["--python-version", "3.11", "--platform", f"manylinux2014_{platform.machine()}"]
    environment = {name: value for name, value in os.environ.items() if name != "PIP_CONSTRAINT"}
    command = [*pip, *runtime, "-c", str(constraints), "--target", str(content), *DEPENDENCIES]
    subprocess.run(command, check=True, env=environment)
    shutil.rmtree(content / "bin", ignore_errors=True)
    for service in (content / "botocore" / "data").iterdir():
        if service.is_dir() and service.name not in SERVICES:
            shutil.rmtree(service)


def copy_packages(content: Path) -> None:
    for package in PACKAGES:
        for source in files(ROOT / package):
            if source.suffix in (".py", ".so"):
                target = content / source.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)


def check(content: Path) -> None:
    kernels = [path for path in files(content / "storage_tiers") if path.suffix == ".so"]
    if not kernels:
        sys.exit("the kernels are not compiled: run `make kernels`")
    for path in files(content):
        if path.suffix == ".so" or ".so." in path.name:
            needed = glibc_needed(path)
            if needed > RUNTIME_GLIBC:
                sys.exit(f"{path.relative_to(content)} needs glibc {needed[0]}.{needed[1]}, but the runtime has 2.26")
    size = sum(path.stat().st_size for path in files(content))
    if size > MAX_UNZIPPED:
        sys.exit(f"the package has {size >> 20} MiB unzipped; Lambda accepts {MAX_UNZIPPED >> 20} MiB")


def glibc_needed(path: Path) -> tuple[int, int]:
    """The newest glibc version that a native module's symbols require."""
    versions = re.findall(rb"GLIBC_(\d+)\.(\d+)", path.read_bytes())
    return max(((int(major), int(minor)) for major, minor in versions), default=(0, 0))


def write_zip(content: Path, output: Path) -> None:
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path in files(content):
            member = zipfile.ZipInfo(path.relative_to(content).as_posix(), _ZIP_TIME)
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = (0o755 if path.suffix == ".so" else 0o644) << 16
            archive.writestr(member, path.read_bytes())


def files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


if __name__ == "__main__":
    main()
