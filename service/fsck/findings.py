"""The kinds of findings of `tidelog fsck`, and which of them are damage."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from storage_tiers.cold.segments.segment_check import Fault


class FindingKind(Enum):
    """The values are the texts that the report prints."""

    FLIPPED = Fault.FLIPPED.value
    TRUNCATED = Fault.TRUNCATED.value
    MISSING = Fault.MISSING.value
    FOREIGN_SIDECAR = Fault.FOREIGN_SIDECAR.value
    BAD_SIDECAR = Fault.BAD_SIDECAR.value
    WRONG_SIDECAR = Fault.WRONG_SIDECAR.value
    WRONG_SEGMENT = Fault.WRONG_SEGMENT.value
    WRONG_RECORDS = Fault.WRONG_RECORDS.value
    UNDECODABLE = Fault.UNDECODABLE.value
    BAD_MANIFEST = "unreadable or inconsistent manifest"
    WRONG_PAGE = "manifest page contradicts its manifest or its own segments"
    NO_MANIFEST = "segments without a manifest"
    WENT_BACK = "manifest older than segments written after it"
    BAD_FILE = "unreadable file"
    WRONG_TOPIC = "topic.json contradicts its partitions"
    ABOVE_OWNER = "epoch, commit or incarnation above the newest one issued"
    OVERLAP = "overlapping segments"
    HOLE = "offsets in no segment"
    LOCAL_DISAGREES = "local log disagrees with the tier"
    ORPHAN = "orphan"
    YOUNG_ORPHAN = "unreferenced, younger than the grace"
    UNFINISHED_UPLOAD = "unfinished upload"
    YOUNG_UPLOAD = "unfinished upload, younger than the grace"


#: Findings that are listed but are not damage, because a writer may be about to reference the object.
HARMLESS = frozenset({FindingKind.YOUNG_ORPHAN, FindingKind.YOUNG_UPLOAD})


@dataclass(frozen=True, slots=True)
class Finding:
    """`key` is the object's key, or a local path. `detail` describes the fault."""

    kind: FindingKind
    key: str
    detail: str

    @property
    def damage(self) -> bool:
        return self.kind not in HARMLESS


@dataclass(slots=True)
class Report:
    """The counts of the checked parts of the bucket, and the findings. `bytes_read` counts bytes read from the bucket."""

    clusters: int = 0
    topics: int = 0
    partitions: int = 0
    segments: int = 0
    objects: int = 0
    bytes_read: int = 0
    findings: list[Finding] = field(default_factory=list)

    def add(self, kind: FindingKind, key: str, detail: str) -> None:
        self.findings.append(Finding(kind, key, detail))

    @property
    def damaged(self) -> bool:
        return any(finding.damage for finding in self.findings)
