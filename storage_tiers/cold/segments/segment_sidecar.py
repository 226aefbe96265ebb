"""Reads a segment's sidecar and checks it against the manifest's record of the segment.

It exists so that the broker's reader and the offline reader check a sidecar against the same six fields.
Not promised: that the requested sections are there; a section that `data` does not hold wholly is left empty.
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
