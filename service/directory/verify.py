"""Checks every byte of a cluster before it is taken over. Runs `tidelog fsck` in a process of its own, because a node loads no
store client."""

from __future__ import annotations

import asyncio

from service.process.own_command import own_command
from storage_tiers.errors import StoreRefused

#: The most characters of the output in an error.
SHOWN = 1500


async def verify(store: str, cluster_id: str, *, endpoint: str | None, region: str | None) -> None:
    """Raises StoreRefused with the findings if the bucket is damaged or could not be checked."""
    words = own_command(["fsck", "--store", store, "--cluster-id", cluster_id])
    words += [] if endpoint is None else ["--s3-endpoint", endpoint]
    words += [] if region is None else ["--s3-region", region]
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    if process.returncode != 0:
        findings = output.decode(errors="replace").strip()[-SHOWN:]
        raise StoreRefused(
            f"cluster {cluster_id} in {store} was checked and is not sound: {findings}. Nothing was changed. Restore the "
            "newest version of every object named here, then start again; delete nothing. docs/operations.md explains each "
            "finding"
        )
