"""The last manifest that a node has accepted for a partition, kept beside the partition's local segments.

The saved manifest is durable before anything is evicted because of it (I3). While the store does not answer, it shows whether
the node may lead the partition: a log that ends at or above the manifest's end holds everything that was acknowledged.
"""

from __future__ import annotations

import os

from storage_tiers.cold.manifest.json import decode, encode
from storage_tiers.cold.manifest.model import Ids, Manifest
from storage_tiers.errors import StorageError, TierCorrupt
from storage_tiers.files import Files, replace_file

FILE_NAME = "tiered-manifest.json"


def read_manifest(directory: str, ids: Ids) -> Manifest | None:
    """The saved manifest; None if nothing is tiered yet. Raises TierCorrupt if the file is damaged: the caller then reads the
    store's manifest first."""
    try:
        with open(os.path.join(directory, FILE_NAME), "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    manifest = decode(data, ids)
    if manifest.ids != ids:
        raise TierCorrupt(f"{directory}/{FILE_NAME} belongs to {manifest.ids} with topic id {manifest.ids.topic_id}")
    return manifest


def write_manifest(files: Files, directory: str, manifest: Manifest) -> None:
    """Saves the manifest durably. Blocking. Raises StorageError if the disk refuses: the old copy then stays."""
    path = os.path.join(directory, FILE_NAME)
    try:
        replace_file(files, path, encode(manifest))
    except OSError as error:
        raise StorageError(f"cannot write {path} ({error}); free space, or repair or replace the disk") from error
