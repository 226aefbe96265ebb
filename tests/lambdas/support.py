"""A bucket with one tiered partition, the queue's messages about it, and a Lambda context with settable time left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote_plus

from lambdas.environment import Settings
from lambdas.verify_commit import handle
from storage_tiers.cold.manifest import keys
from storage_tiers.cold.manifest.model import Ids
from storage_tiers.cold.segments.partition_tier import PartitionTier
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.cold.stores.memory import BlockingMemoryStore, MemoryStore
from tests.storage_tiers.cold.support import IDS, EagerClock, Local, stored_manifest, tier_of
from tests.support.clock import SeededRng

READER = "verify-commit"
LOCATION = StoreLocation.parse("s3://history/live")
SETTINGS = Settings(LOCATION, READER)


@dataclass
class Context:
    """`remaining` lists the answers for the time left (ms); the last one repeats."""

    remaining: list[int] = field(default_factory=lambda: [900_000])
    aws_request_id: str = "request-1"

    def get_remaining_time_in_millis(self) -> int:
        return self.remaining.pop(0) if len(self.remaining) > 1 else self.remaining[0]


def notification(key: str, bucket: str = LOCATION.bucket) -> str:
    """The body of S3's message; as from real servers, the key is quoted like a form field."""
    record = {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "s3": {"bucket": {"name": bucket}, "object": {"key": quote_plus(key), "size": 1, "eTag": "e"}},
    }
    return json.dumps({"Records": [record]})


def batch(*bodies: str) -> dict[str, object]:
    """The event with which the queue invokes the function."""
    return {"Records": [{"messageId": f"m{at}", "body": body} for at, body in enumerate(bodies)]}


def hint(ids: Ids = IDS) -> str:
    return notification(f"{LOCATION.prefix}/{ids.manifest_key}")


class World:
    """The partition's writer, and the bucket as a handler sees it."""

    def __init__(self, directory: Path) -> None:
        self.clock = EagerClock()
        self.memory = MemoryStore(self.clock)
        self.local = Local(directory)
        self.tier: PartitionTier = tier_of(self.memory, self.clock)
        self.end = 0

    @property
    def store(self) -> BlockingMemoryStore:
        return self.memory.blocking()

    async def extend(self, count: int = 10) -> None:
        await self.tier.extend(self.local.job(self.end, count))
        self.end += count

    def wake(
        self, *bodies: str, context: Context | None = None, store: BlockingMemoryStore | None = None
    ) -> Sequence[str]:
        """Runs the handler on these messages (by default one hint about the partition); returns the ids of failed ones."""
        answer = handle(
            batch(*(bodies or (hint(),))),
            context or Context(),
            SETTINGS,
            store or self.store,
            self.clock,
            SeededRng(1),
        )
        return [failure["itemIdentifier"] for failure in answer["batchItemFailures"]]

    def verdicts(self, reader: str = READER) -> list[tuple[int, int, str]]:
        """(commit, base, verdict) of every recorded verdict, in order."""
        prefix = f"{IDS.cluster_id}/readers/{reader}/verdicts/"
        documents = [json.loads(self.store.get(info.key).data) for info in self.store.list(prefix)]
        return [(found["commit"], found["base"], found["verdict"]) for found in documents]

    def cursor(self) -> int | None:
        found = [info.key for info in self.store.list(f"{IDS.cluster_id}/readers/{READER}/cursors/")]
        if not found:
            return None
        assert found == [keys.key(keys.CursorKey(IDS.cluster_id, READER, IDS.topic, IDS.topic_id, IDS.partition))]
        return int(json.loads(self.store.get(found[0]).data)["commit"])

    def commit(self) -> int:
        return stored_manifest(self.store).commit
