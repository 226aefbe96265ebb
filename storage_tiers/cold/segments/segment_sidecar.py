"""Reads a segment's sidecar and checks it against the manifest's record of the segment.

The broker's reader and the offline reader share this module, so that both check a sidecar against the same fields. A section
that `data` does not hold wholly is left empty.
"""

from __future__ import annotations

from storage_tiers.cold.manifest.model import RemoteSegment
from storage_tiers.cold.segments import sidecar
from storage_tiers.cold.segments.sidecar import Sidecar


def parse_segment_part(data: bytes, position: int, segment: RemoteSegment) -> Sidecar:
    """Reads the sections that lie wholly in bytes [position, position + len(data)) of the segment's sidecar.

    TierCorrupt if a section does not fit the segment."""
    return sidecar.parse_part(
        data,
        position,
        segment.sections,
        base=segment.base,
        end=segment.end,
        length=segment.length,
        crc=segment.crc32c,
        where=segment.sidecar_key,
    )
