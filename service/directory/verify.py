"""Checks every byte of a cluster before it is taken over: `tidelog fsck` in a process of its own, since a node loads no client
of the store."""

from __future__ import annotations

import asyncio

from service.process.own_command import own_command
from storage_tiers.errors import StoreRefused

#: Most characters of the output that an error repeats.
SHOWN = 1500


async def verify(store: str, cluster_id: str, *, endpoint: str | None, region: str | None) -> None:
    """StoreRefused, with what was found, if the bucket is damaged or could not be looked at."""
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
            f"cluster {cluster_id} in {store} was checked and is not sound: {findings}. Nothing was changed. Put the newest "
            "version of every object that is named back, then start again; delete nothing. docs/operations.md explains each "
            "finding"
        )
