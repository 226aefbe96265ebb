"""Every bound of the tier process in one frozen value. The broker fills it from its settings and sends it first."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
#: The unit of the cache and of ranged GETs, aligned to the start of a remote segment, whose last chunk may be shorter.
CHUNK_BYTES = 4 * MIB
#: The most bytes of a sidecar or page that are read as one object.
MAX_METADATA_OBJECT_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class TierSettings:
    """Downloads: one S3 connection gives about 40 MB/s, so `download_connections` bounds their speed and
    `download_bytes_in_flight` their memory. `offloads` and `offload_bytes_in_flight` do the same for offloads.

    `read_deadline_s` bounds a read with all its retries, counted from its turn in the queue; `commit_deadline_s` bounds an
    operation on a manifest, to which an offload adds `offload_s_per_mib` for each MiB. All times are in seconds.

    While an answer is awaited, the broker sends a heartbeat question every `heartbeat_s`, and replaces the process if no frame
    has arrived from it during `silent_beats` heartbeats. Before the first answer it allows `starting_beats`, because libraries
    may still be loading.
    """

    download_connections: int = 16
    download_bytes_in_flight: int = 64 * MIB
    offloads: int = 4
    offload_bytes_in_flight: int = 64 * MIB
    operations: int = 1024
    read_deadline_s: float = 20.0
    commit_deadline_s: float = 60.0
    offload_s_per_mib: float = 2.0
    first_retry_s: float = 0.1
    longest_retry_s: float = 5.0
    idle_s: float = 60.0
    heartbeat_s: float = 1.0
    silent_beats: int = 8
    starting_beats: int = 30

    def __post_init__(self) -> None:
        if self.download_bytes_in_flight < CHUNK_BYTES:
            raise ValueError(f"download_bytes_in_flight must hold a chunk of {CHUNK_BYTES} bytes")
        if min(self.download_connections, self.offloads, self.operations) < 1:
            raise ValueError("download_connections, offloads and operations must be at least 1")
        if min(self.read_deadline_s, self.commit_deadline_s, self.idle_s, self.heartbeat_s) <= 0:
            raise ValueError("deadlines, idle_s and heartbeat_s must be positive")
        if min(self.silent_beats, self.starting_beats) < 1:
            raise ValueError("silent_beats and starting_beats must be at least 1")
