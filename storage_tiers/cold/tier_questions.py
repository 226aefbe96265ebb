"""What the broker may ask of the tier process, and what it gets. Values only: both sides import them.

The name of a question's class is its name on the wire. Errors are LogErrors: `TierUnavailable` for what may pass (the store
did not answer in time, the process ended), `TierObjectMissing` for a 404, `TierCorrupt` for bytes that fail their
checksum, `StorageError` where the cache's disk refused, `StoreRefused` and `FencedWriter` as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_args

Answer = TypeVar("Answer", covariant=True)


class Question(Generic[Answer]):
    """One operation. Its type argument is the type of its answer."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Done:
    """The answer of an operation that has nothing to say."""


@dataclass(frozen=True, slots=True)
class ReadyFile:
    """A whole file in the cache directory that this process will not touch again. The receiver removes it."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class FetchChunk(Question[ReadyFile]):
    """Bytes [position, position + length) of an object into a file, if each whole MiB of them (and the last part of one)
    has the CRC-32C in `crcs`. `urgent` is false for what is read ahead."""

    key: str
    position: int
    length: int
    crcs: tuple[int, ...]
    urgent: bool = True


@dataclass(frozen=True, slots=True)
class FetchObject(Question[ReadyFile]):
    """Bytes [position, position + length) of an object into a file; unverified, the reader of its format does that."""

    key: str
    position: int
    length: int
    urgent: bool = True


@dataclass(frozen=True, slots=True)
class Stats(Question["Counters"]):
    """Does not count as work: asking never keeps the process alive."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Since this process started. `store_calls` counts calls of the object store by kind, `operations` questions by name,
    `failures` by the error's name; `retries` counts reads that were asked again."""

    operations: dict[str, int]
    failures: dict[str, int]
    store_calls: dict[str, int]
    bytes_downloaded: int
    bytes_uploaded: int
    retries: int
    most_bytes_in_flight: int
    peak_resident_bytes: int


def operations() -> dict[str, type[Question[Any]]]:
    """Every question by name. Subclasses register by existing; both sides import the same modules."""
    return {kind.__name__: kind for kind in Question.__subclasses__()}


def answer_type(question: type[Question[Any]]) -> Any:
    """The type argument of `Question` in the class's declaration."""
    (argument,) = get_args(question.__orig_bases__[0])  # type: ignore[attr-defined]
    return Counters if question is Stats else argument
