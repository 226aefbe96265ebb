"""Builds the native kernels: a few small Cython modules in pure-Python mode, compiled beside their sources.

Each kernel can also be imported as plain Python, which is slow and has the same results. Its tests compare the two. A wheel
gets only the kernels of its own packages, compiled for the Python that builds it. The tree may also contain those of another
Python.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parent
#: Every native kernel of the project. A module named here must compile without warnings and do no I/O.
KERNELS = (
    "storage_tiers/records/walker.py",
    "storage_tiers/records/batch_walk.py",
    "storage_tiers/records/column_buffers.py",
    "storage_tiers/records/column_walk.py",
    "storage_tiers/records/record_writer.py",
    "storage_tiers/compaction/offset_map.py",
    "grpc_api/partitioning/murmur2.py",
    "grpc_api/sdk/record_buffer.py",
    "grpc_api/messages/field_count.py",
    "grpc_api/messages/record_rows.py",
    "kafka_gateway/connection.py",
    "kafka_gateway/hot_parse.py",
    "kafka_gateway/produce_answer.py",
    "kafka_gateway/group_messages.py",
    "service/coordination/commit_fields.py",
)
#: The packages of this distribution that have kernels. The server's are in packaging/server.
PACKAGES = ("storage_tiers", "grpc_api")
#: The kernels have no debugging information, and on Linux no symbols, because both would make them five times as large.
COMPILE, LINK = ["-O3", "-g0"], ["-Wl,--strip-all"] if sys.platform == "linux" else []


def kernels_of(packages: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(kernel for kernel in KERNELS if kernel.partition("/")[0] in packages)


def build_in_place(kernels: tuple[str, ...] = KERNELS) -> list[Path]:
    """Compiles each kernel beside its source and returns the shared objects. Needs a C compiler."""
    from Cython.Build import cythonize  # type: ignore[import-untyped, unused-ignore]
    from setuptools import Distribution, Extension
    from setuptools.command.build_ext import build_ext

    os.chdir(ROOT)
    extensions = [
        Extension(
            source.removesuffix(".py").replace("/", "."),
            [source],
            extra_compile_args=COMPILE,
            extra_link_args=LINK,
            depends=["hatch_build.py"],
        )
        for source in kernels
        if (ROOT / source).exists()
    ]
    compiled: Any = cythonize(  # type: ignore[no-untyped-call]
        extensions,
        build_dir="build/cython",
        compiler_directives={"language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True},
        quiet=True,
    )
    command = build_ext(Distribution({"name": "tidelog", "ext_modules": compiled}))
    command.inplace = True
    command.parallel = os.cpu_count()
    command.build_temp = "build/temp"
    command.ensure_finalized()
    command.run()
    return [ROOT / command.get_ext_filename(extension.name) for extension in compiled]


class NativeKernels(BuildHookInterface[Any]):
    """The build hook for hatchling: compiles the kernels, and marks the wheel as one for this platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version == "editable":
            build_in_place()  # only beside the sources: copies in the environment would shadow the tree
            return
        for path in build_in_place(kernels_of(PACKAGES)):
            build_data["force_include"][str(path)] = str(path.relative_to(ROOT))


if __name__ == "__main__":
    for built in build_in_place(tuple(sys.argv[1:]) or KERNELS):
        print(built)
