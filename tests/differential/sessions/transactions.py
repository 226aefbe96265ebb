"""Transactions: a producer's requests to its coordinator, its batches, their markers, and answers to readers and
administrators."""

from __future__ import annotations

import time
from typing import Any

from tests.differential.batches import NOON, batch
from tests.differential.judge import Setup, session
from tests.differential.message_trees import Tree
from tests.differential.peer import ANSWER_SECONDS, Peer, PeerFailed
from tests.differential.sessions.common import Topic, of, to
from tests.differential.sessions.groups import NOT_YET, committing, coordinated, stable

_GROUPS = Setup.GROUPS
#: NOT_ENOUGH_REPLICAS answers a batch while the coordinator, on another broker, does not know yet whether the transaction has
#: the partition.
_NOT_YET = (*NOT_YET, "CONCURRENT_TRANSACTIONS", "NOT_ENOUGH_REPLICAS")
_TRANSACTIONAL = 0x10
_TIMEOUT = 60_000
Producer = tuple[str, int, int]


def patiently(peer: Peer, api: str, version: int, /, **values: Any) -> Tree:
    """The answer once the coordinator has loaded and has completed the previous transaction."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        answer = peer.quietly(api, version, **values)
        if not any(word in repr(answer) for word in _NOT_YET):
            return answer
        if time.monotonic() > deadline:
            raise PeerFailed(f"{peer.name}: {api} is still answered with {answer}")
        time.sleep(0.02)


def ask(peer: Peer, api: str, version: int, label: str, /, **values: Any) -> Tree:
    return peer.collect(api, version, label, patiently(peer, api, version, **values))


def begun(peer: Peer, name: str = "x") -> Producer:
    """A transactional id, with its producer's id and epoch."""
    transactional_id = peer.named(name)
    patiently(peer, "find_coordinator", 4, key_type=1, coordinator_keys=[transactional_id])
    given = patiently(peer, "init_producer_id", 4, **beginning(transactional_id))
    return transactional_id, given["producer_id"], given["producer_epoch"]


def beginning(transactional_id: str | None, **more: Any) -> dict[str, Any]:
    return {"transactional_id": transactional_id, "transaction_timeout": _TIMEOUT, **more}


def adding(producer: Producer, topic: str, *partitions: int, version: int = 3, **more: Any) -> dict[str, Any]:
    """The fields of an AddPartitionsToTxn."""
    topics = [{"name": topic, "partitions": list(partitions)}]
    names = {
        "transactional_id": producer[0],
        "producer_id": producer[1],
        "producer_epoch": producer[2],
        "topics": topics,
    }
    if version >= 4:
        return {"transactions": [{**names, "verify_only": False, **more}]}
    return {f"v3_and_below_{name}": value for name, value in names.items()}


def ending(producer: Producer, *, commit: bool = True) -> dict[str, Any]:
    return {**naming(producer), "committed": commit}


def naming(producer: Producer) -> dict[str, Any]:
    return dict(zip(("transactional_id", "producer_id", "producer_epoch"), producer, strict=True))


def sent(producer: Producer, sequence: int, *values: bytes, timestamp: int | None = None) -> bytes:
    """A transactional batch with the current time: an older batch would be rolled, offloaded and evicted with the next
    marker."""
    at = time.time_ns() // 1_000_000 if timestamp is None else timestamp
    return batch(*values, producer=(producer[1], producer[2], sequence), attributes=_TRANSACTIONAL, timestamp=at)


def producing(producer: Producer | None, topic: Topic, records: dict[int, bytes | None]) -> dict[str, Any]:
    transactional_id = None if producer is None else producer[0]
    return {"transactional_id": transactional_id, "acks": -1, "timeout": 5_000, "topic_data": to(topic, records)}


def wrong(producer: Producer) -> list[tuple[str, Producer]]:
    """Producers that differ from the given one in one field, each with a label."""
    name, producer_id, epoch = producer
    return [
        ("an older epoch", (name, producer_id, epoch - 1)),
        ("a later epoch", (name, producer_id, epoch + 1)),
        ("another id", (name, producer_id + 1_000_000, epoch)),
        ("an unknown transactional id", (name + "-nobody", producer_id, epoch)),
    ]


def completed(peer: Peer, producer: Producer) -> None:
    """Returns once all markers of the producer's transaction are written."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        answer = peer.quietly("describe_transactions", 0, transactional_ids=[producer[0]])
        if answer["transaction_states"][0]["transaction_state"].startswith("Complete"):
            return
        time.sleep(0.01)
    raise PeerFailed(f"{peer.name}: the transaction of {producer} is never completed")


# --- the coordinator --------------------------------------------------------------------------------------------------
@session("find_coordinator", versions=range(1, 7), setup=_GROUPS)
def coordinator_of_a_transactional_id(peer: Peer, version: int) -> None:
    name, *_ = begun(peer)
    peer.ask("find_coordinator", version, "it", key=name, key_type=1, coordinator_keys=[name])
    peer.ask("find_coordinator", version, "the empty name", key="", key_type=1, coordinator_keys=[""])


@session("init_producer_id", setup=_GROUPS)
def transactional(peer: Peer, version: int) -> None:
    name, *_ = begun(peer)
    for label, fields in (
        ("again", {}),
        ("timeout of 0", {"transaction_timeout": 0}),
        ("negative timeout", {"transaction_timeout": -1}),
        ("timeout of a day", {"transaction_timeout": 86_400_000}),
        ("with another timeout", {"transaction_timeout": 1_000}),
    ):
        ask(peer, "init_producer_id", version, label, **beginning(name, **fields))
    ask(peer, "init_producer_id", version, "another", **beginning(peer.named("y")))


@session("init_producer_id", versions=(3, 4, 5), setup=_GROUPS)
def transactional_that_goes_on(peer: Peer, version: int) -> None:
    producer = begun(peer)
    name, producer_id, epoch = producer
    for label, given, at in (
        ("as it is", producer_id, epoch),
        ("as it was", producer_id, epoch),
        ("a later epoch", producer_id, epoch + 5),
        ("an id nobody has", producer_id + 1_000_000, 0),
        ("an id alone", producer_id, -1),
        ("an epoch alone", -1, 0),
    ):
        ask(peer, "init_producer_id", version, label, **beginning(name, producer_id=given, producer_epoch=at))
    other = peer.named("y")
    ask(peer, "init_producer_id", version, "a new name", **beginning(other, producer_id=producer_id, producer_epoch=0))


@session("init_producer_id", setup=_GROUPS)
def transactional_over_an_open_transaction(peer: Peer, version: int) -> None:
    topic, topic_id = peer.create()
    producer = begun(peer)
    patiently(peer, "add_partitions_to_txn", 3, **adding(producer, topic, 0))
    patiently(peer, "produce", 9, **producing(producer, (topic, topic_id), {0: sent(producer, 0, b"lost")}))
    ask(peer, "init_producer_id", version, "a second instance", **beginning(producer[0]))
    ask(peer, "end_txn", 4, "the first one commits", **ending(producer))
    fetched(peer, (topic, topic_id), "after it")


@session("add_partitions_to_txn", versions=range(4), setup=_GROUPS)
def partitions_that_join(peer: Peer, version: int) -> None:
    topic, _ = peer.create(partitions=2)
    producer = begun(peer)

    def join(label: str, who: Producer, name: str, *partitions: int) -> None:
        ask(peer, "add_partitions_to_txn", version, label, **adding(who, name, *partitions))

    join("one", producer, topic, 0)
    join("the same", producer, topic, 0)
    join("both", producer, topic, 0, 1)
    join("one of them unknown", producer, topic, 1, 7)
    join("an unknown topic", producer, peer.named("nowhere"), 0)
    join("none", producer, topic)
    for label, who in wrong(producer):
        join(label, who, topic, 0)


@session("add_partitions_to_txn", versions=(4, 5), setup=_GROUPS)
def partitions_that_brokers_ask_for(peer: Peer, version: int) -> None:
    topic, _ = peer.create(partitions=2)
    producer = begun(peer)

    def join(label: str, who: Producer, name: str, *partitions: int, **more: Any) -> None:
        ask(peer, "add_partitions_to_txn", version, label, **adding(who, name, *partitions, version=version, **more))

    join("is it there", producer, topic, 0, verify_only=True)
    join("one", producer, topic, 0)
    join("are both there", producer, topic, 0, 1, verify_only=True)
    join("is an unknown one there", producer, topic, 0, 7, verify_only=True)
    join("one of them unknown", producer, topic, 1, 7)
    for label, who in wrong(producer):
        join(label, who, topic, 0)
        join(f"{label}, asked only", who, topic, 0, verify_only=True)


@session("add_offsets_to_txn", setup=_GROUPS)
def offsets_that_join(peer: Peer, version: int) -> None:
    group = coordinated(peer)
    producer = begun(peer)

    def join(label: str, who: Producer, name: str) -> None:
        ask(peer, "add_offsets_to_txn", version, label, **naming(who), group_id=name)

    join("one", producer, group)
    join("the same", producer, group)
    for label, who in wrong(producer):
        join(label, who, group)


@session("end_txn", versions=range(5), setup=_GROUPS)
def ends(peer: Peer, version: int) -> None:
    topic, _ = peer.create()
    producer = begun(peer)

    def end(label: str, who: Producer = producer, *, commit: bool) -> None:
        ask(peer, "end_txn", version, label, **ending(who, commit=commit))

    end("commits nothing", commit=True)
    end("aborts nothing", commit=False)
    for commit in (True, False):
        word = "commit" if commit else "abort"
        patiently(peer, "add_partitions_to_txn", 3, **adding(producer, topic, 0))
        for label, who in wrong(producer):
            end(f"{word} of {label}", who, commit=commit)
        end(word, commit=commit)
        end(f"{word} again", commit=commit)
        end(f"{word}, then the other", commit=not commit)


@session("end_txn", versions=(5,), setup=_GROUPS)
def ends_with_an_epoch_for_each_transaction(peer: Peer, version: int) -> None:
    topic, topic_id = peer.create()
    producer = begun(peer)
    name = producer[0]

    def end(label: str, who: Producer, *, commit: bool) -> Producer:
        answer = ask(peer, "end_txn", version, label, **ending(who, commit=commit))
        return (name, answer["producer_id"], answer["producer_epoch"]) if answer["error_code"] == "NONE" else who

    end("commits nothing", producer, commit=True)
    producer = end("aborts nothing", producer, commit=False)
    for commit in (True, False):
        word = "commit" if commit else "abort"
        ask(peer, "produce", 12, word, **producing(producer, (topic, topic_id), {0: sent(producer, 0, word.encode())}))
        for label, who in wrong(producer):
            end(f"{word} of {label}", who, commit=commit)
        last, producer = producer, end(word, producer, commit=commit)
        end(f"{word} again", last, commit=commit)
        end(f"{word}, then the other", last, commit=not commit)
    fetched(peer, (topic, topic_id), "after both")


# --- batches and readers ----------------------------------------------------------------------------------------------
def fetched(peer: Peer, topic: Topic, label: str, *, offset: int = 0, limit: int = 1 << 20, version: int = 13) -> None:
    """Records what readers of committed records get, once the log is stable."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        rows = peer.quietly("fetch", 13, max_wait=0, min_bytes=0, isolation_level=1, topics=of(topic, {0: 0}))
        (row,) = rows["responses"][0]["partitions"]
        if row["last_stable_offset"] == row["high_watermark"]:
            break
        time.sleep(0.02)
    looked(peer, topic, label, offset=offset, limit=limit, version=version)


def looked(peer: Peer, topic: Topic, label: str, *, offset: int = 0, limit: int = 1 << 20, version: int = 13) -> None:
    topics = of(topic, {0: offset}, **({} if limit == 1 << 20 else {"partition_max_bytes": limit}))
    for level, word in ((0, "all"), (1, "committed")):
        fields = {"max_wait": 0, "min_bytes": 0, "isolation_level": level, "topics": topics}
        peer.ask("fetch", version, f"{label}: {word}", **fields)


@session("produce", versions=range(3, 14), setup=_GROUPS)
def transactional_batches(peer: Peer, version: int) -> None:
    topic, _ = at = peer.create(partitions=2)
    producer = begun(peer)
    late = version >= 12

    def produce(label: str, who: Producer | None, records: dict[int, bytes | None]) -> None:
        ask(peer, "produce", version, label, **producing(who, at, records))

    if not late:
        produce("before the partition joined", producer, {0: sent(producer, 0, b"early")})
        patiently(peer, "add_partitions_to_txn", 3, **adding(producer, topic, 0))
    produce("first", producer, {0: sent(producer, 0, b"a", b"b")})
    produce("repeated", producer, {0: sent(producer, 0, b"a", b"b")})
    produce("second", producer, {0: sent(producer, 2, b"c")})
    produce("after a gap", producer, {0: sent(producer, 9, b"z")})
    produce("without a transactional id", None, {0: sent(producer, 3, b"d")})
    produce("outside of the transaction", producer, {0: batch(b"e", producer=(producer[1], producer[2], 3))})
    produce("of an older epoch", producer, {0: sent((producer[0], producer[1], producer[2] - 1), 3, b"f")})
    produce("of a later epoch", producer, {0: sent((producer[0], producer[1], producer[2] + 1), 0, b"g")})
    produce("of another id", producer, {0: sent((producer[0], producer[1] + 1_000_000, 0), 0, b"h")})
    produce("of two producers", producer, {0: sent(producer, 3, b"i"), 1: sent(("", producer[1] + 9, 0), 0, b"j")})
    if not late:
        produce("where it did not join", producer, {1: sent(producer, 0, b"k")})
    looked(peer, at, "open")
    ask(peer, "end_txn", 4, "commit", **ending(producer))
    fetched(peer, at, "committed")
    if not late:
        produce("after the end", producer, {0: sent(producer, 3, b"l")})


@session("fetch", versions=range(4, 19), setup=_GROUPS)
def aborted_transactions(peer: Peer, version: int) -> None:
    topic, topic_id = at = peer.create()
    first, second = begun(peer, "x"), begun(peer, "y")
    sequences = {first: 0, second: 0}

    def produce(who: Producer, *values: bytes) -> None:
        patiently(peer, "add_partitions_to_txn", 3, **adding(who, topic, 0))
        records: dict[int, bytes | None] = {0: sent(who, sequences[who], *values)}
        answer = patiently(peer, "produce", 9, **producing(who, at, records))
        if "'NONE'" not in repr(answer):
            raise PeerFailed(f"{peer.name}: {answer}")
        sequences[who] += len(values)

    def end(who: Producer, *, commit: bool) -> None:
        patiently(peer, "end_txn", 4, **ending(who, commit=commit))
        completed(peer, who)

    produce(first, b"a")
    produce(second, b"b", b"c")
    looked(peer, at, "two are open", version=version)
    end(first, commit=False)
    stable_at(peer, at, 1)
    looked(peer, at, "the older one is aborted", version=version)
    peer.fill(topic_id, batch(b"plain", timestamp=time.time_ns() // 1_000_000))
    end(second, commit=True)
    fetched(peer, at, "the other is committed", version=version)
    produce(first, b"d")
    end(first, commit=False)
    produce(second, b"e")
    end(second, commit=False)
    fetched(peer, at, "three are aborted", version=version)
    for offset in (1, 2, 4, 7, 9, 10):
        fetched(peer, at, f"from {offset}", offset=offset, version=version)
    fetched(peer, at, "a little", limit=100, version=version)
    rows = [{"partition_index": 0, "timestamp": -1}]
    for level in (0, 1):
        topics = [{"name": topic, "partitions": rows}]
        peer.ask("list_offsets", 6, f"end at {level}", replica_id=-1, isolation_level=level, topics=topics)


def stable_at(peer: Peer, topic: Topic, offset: int) -> None:
    """Returns once the last stable offset is `offset`."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        rows = peer.quietly("fetch", 13, max_wait=0, min_bytes=0, isolation_level=1, topics=of(topic, {0: 0}))
        if rows["responses"][0]["partitions"][0]["last_stable_offset"] == offset:
            return
        time.sleep(0.02)
    raise PeerFailed(f"{peer.name}: the last stable offset never became {offset}")


@session("list_offsets", versions=range(2, 12), setup=_GROUPS)
def below_the_last_stable_offset(peer: Peer, version: int) -> None:
    topic, topic_id = at = peer.create()
    producer = begun(peer)
    peer.fill(topic_id, batch(b"plain"))
    patiently(peer, "add_partitions_to_txn", 3, **adding(producer, topic, 0))
    patiently(peer, "produce", 9, **producing(producer, at, {0: sent(producer, 0, b"open", timestamp=NOON)}))
    for level in (0, 1):
        for timestamp in (-1, -2, 0, NOON):
            topics = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": timestamp}]}]
            label = f"{timestamp} at {level}"
            peer.ask("list_offsets", version, label, replica_id=-1, isolation_level=level, topics=topics)


# --- offsets ----------------------------------------------------------------------------------------------------------
@session("txn_offset_commit", setup=_GROUPS)
def offsets_in_a_transaction(peer: Peer, version: int) -> None:
    topic, topic_id = peer.create(partitions=2)
    group, member, generation = stable(peer)
    producer = begun(peer)

    def commit(label: str, who: Producer, name: str = group, *partitions: int, **more: Any) -> None:
        fields = committing(name, topic, topic_id, *(partitions or (0,)))
        inside: dict[str, Any] = {"generation_id": generation, "member_id": member} if version >= 3 else {}
        topics = [{"name": topic, "partitions": fields["topics"][0]["partitions"]}]
        rows = {"group_id": name, "topics": topics}
        ask(peer, "txn_offset_commit", version, label, **{**naming(who), **rows, **inside, **more})

    def committed(label: str, *, is_stable: bool = False) -> None:
        topics = [{"name": topic, "partition_indexes": [0, 1]}]
        groups = [{"group_id": group, "topics": topics}]
        peer.ask("offset_fetch", 8, label, groups=groups, require_stable=is_stable)

    if version < 5:
        commit("before they joined", producer)
        patiently(peer, "add_offsets_to_txn", 3, **naming(producer), group_id=group)
    commit("one", producer)
    commit("both and an unknown one", producer, group, 0, 1, 7)
    for label, who in wrong(producer)[:3]:
        commit(label, who)
    commit("of the empty group", producer, "")
    if version >= 3:
        commit("of another generation", producer, generation_id=generation + 1)
        commit("of a former generation", producer, generation_id=generation - 1)
        commit("of another member", producer, member_id="nobody")
        commit("from outside of the group", producer, member_id="", generation_id=-1)
    committed("while it is open")
    committed("while it is open, stable ones wanted", is_stable=True)
    ask(peer, "end_txn", 4, "commit", **ending(producer))
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        groups = [{"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}]
        answer = peer.quietly("offset_fetch", 8, groups=groups, require_stable=True)
        if "UNSTABLE" not in repr(answer):
            break
        time.sleep(0.02)
    committed("after it")


# --- administration ---------------------------------------------------------------------------------------------------
@session("write_txn_markers", setup=_GROUPS)
def markers(peer: Peer, version: int) -> None:
    topic, _ = at = peer.create(partitions=2)
    producer = begun(peer)

    def write(
        label: str, who: Producer, *partitions: int, epoch: int = 0, name: str = topic, commit: bool = False
    ) -> None:
        marker = {
            "producer_id": who[1],
            "producer_epoch": who[2],
            "transaction_result": commit,
            "topics": [{"name": name, "partition_indexes": list(partitions)}],
            "coordinator_epoch": epoch,
            "transaction_version": 0,
        }
        peer.ask("write_txn_markers", version, label, markers=[marker])

    def state(label: str) -> None:
        topics = [{"name": topic, "partition_indexes": [0]}]
        peer.ask("describe_producers", 0, label, topics=topics)

    patiently(peer, "add_partitions_to_txn", 3, **adding(producer, topic, 0))
    patiently(peer, "produce", 9, **producing(producer, at, {0: sent(producer, 0, b"hanging")}))
    state("open")
    write("of an older epoch", (producer[0], producer[1], producer[2] - 1), 0)
    write("an unknown partition", producer, 7)
    write("an unknown topic", producer, 0, name=peer.named("nowhere"))
    write("abort", producer, 0, epoch=5)
    state("ended")
    fetched(peer, at, "ended")
    write("abort again", producer, 0, epoch=5)
    write("of an older coordinator", producer, 0, epoch=4)
    write("where it never was", producer, 1, commit=True)
    state("in the end")
    peer.ask("write_txn_markers", version, "nothing", markers=[])


def own(name: str, answer: Tree) -> Tree:
    rows = [each for each in answer["transaction_states"] if each["transactional_id"].startswith(name)]
    return {**answer, "transaction_states": rows}


@session("list_transactions", setup=_GROUPS)
def listed(peer: Peer, version: int) -> None:
    topic, _ = peer.create()
    idle, busy = begun(peer, "idle"), begun(peer, "busy")
    patiently(peer, "add_partitions_to_txn", 3, **adding(busy, topic, 0))
    prefix = peer.named("")

    def show(label: str, **filters: Any) -> None:
        fields = {"state_filters": [], "producer_id_filters": [], "duration_filter": -1, **filters}
        peer.ask_for("list_transactions", version, label, lambda answer: own(prefix, answer), **fields)

    show("all")
    show("the open ones", state_filters=["Ongoing"])
    show("in states that do not exist", state_filters=["Open", "Closed"])
    show("in one that exists and one that does not", state_filters=["Empty", "Closed"])
    show("of a producer", producer_id_filters=[idle[1]])
    if version >= 1:
        show("open for a day", duration_filter=86_400_000)
    if version >= 2:
        show("by a pattern", transactional_id_pattern=f"{prefix}i.*")
        show("by part of a name", transactional_id_pattern="idl")
        show("by a broken pattern", transactional_id_pattern="(")
        show("by an empty pattern", transactional_id_pattern="")


@session("describe_transactions", setup=_GROUPS)
def described(peer: Peer, version: int) -> None:
    topic, _ = peer.create(partitions=2)
    idle, busy = begun(peer, "idle"), begun(peer, "busy")
    patiently(peer, "add_partitions_to_txn", 3, **adding(busy, topic, 0, 1))
    for label, names in (
        ("idle", [idle[0]]),
        ("open", [busy[0]]),
        ("both", [idle[0], busy[0]]),
        ("an unknown one", [peer.named("nobody")]),
        ("the empty one", [""]),
        ("none", []),
    ):
        peer.ask("describe_transactions", version, label, transactional_ids=names)
    patiently(peer, "end_txn", 4, **ending(busy))
    completed(peer, busy)
    peer.ask("describe_transactions", version, "completed", transactional_ids=[busy[0]])
