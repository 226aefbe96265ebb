"""Random life cycles of groups and of transactional producers: their steps come in orders that no author chose.

A session's version is the seed of its steps. Both brokers get the same requests: the choice of a step depends only on the seed
and on earlier error codes. Steps that two brokers may order differently (joins of several members at once) are done one after
another.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from tests.differential.judge import Setup, session
from tests.differential.message_trees import Tree
from tests.differential.peer import ANSWER_SECONDS, Peer, PeerFailed
from tests.differential.sessions.common import Topic
from tests.differential.sessions.groups import committing, coordinated, joining, syncing
from tests.differential.sessions.transactions import (
    Producer,
    adding,
    ask,
    beginning,
    begun,
    ending,
    looked,
    naming,
    producing,
    sent,
)

SEEDS = range(16)
STEPS = 30


# --- groups -----------------------------------------------------------------------------------------------------------
class GroupLife:
    """A group of at most two members, by slot: each slot's last member id, and whether it is a member now."""

    def __init__(self, peer: Peer, seed: int) -> None:
        self.peer, self.chance = peer, random.Random(f"group {seed}")
        self.group = coordinated(peer)
        self.topic = peer.create(partitions=2)
        self.ids = ["", ""]
        self.members: list[int] = []
        self.generation = 0
        self.is_stable = False
        self.step = 0

    def live(self) -> None:
        steps = {
            self.join: 4,
            self.sync: 4,
            self.beat: 4,
            self.commit: 4,
            self.leave: 2,
            self.delete_offsets: 1,
            self.delete: 1,
            self.describe: 2,
        }
        for self.step in range(STEPS):
            (do,) = self.chance.choices(list(steps), list(steps.values()))
            do()
        self.step = STEPS
        self.describe()

    def version(self, low: int, high: int) -> int:
        return self.chance.randint(low, high)

    def said(self, what: str) -> str:
        return f"{self.step}: {what}"

    def identity(self) -> dict[str, Any]:
        """The fields that name a member, sometimes with a wrong generation or an unknown member id."""
        slot = self.chance.randrange(2)
        generation = self.generation + self.chance.choice((0, 0, 0, 0, -1, 1))
        member = self.chance.choice((self.ids[slot], self.ids[slot], self.ids[slot], "nobody"))
        return {"group_id": self.group, "member_id": member, "generation_id": generation}

    def in_order(self, answer: Tree) -> Tree:
        """Sorts the members, because Kafka orders them by the hash of their ids."""
        return {**answer, "members": sorted(answer["members"], key=lambda each: self.ids.index(each["member_id"]))}

    def described(self, answer: Tree) -> Tree:
        return {**answer, "groups": [self.in_order(each) for each in answer["groups"]]}

    def join(self) -> None:
        """All members join again, and perhaps a further one."""
        version = self.version(4, 9)
        new = [slot for slot in range(2) if slot not in self.members][:1]
        if not self.members and not new:
            return
        if not self.members:
            (slot,) = new
            self.ids[slot] = self.peer.quietly("join_group", version, **joining(self.group))["member_id"]
            answer = self.peer.ask("join_group", version, self.said("joins"), **joining(self.group, self.ids[slot]))
            self.members = [slot]
            self.generation, self.is_stable = answer["generation_id"], False
            return
        (first, *others), more = list(self.members), new if self.chance.random() < 0.7 else []
        if not more and not others:
            answer = self.peer.ask(
                "join_group", version, self.said("joins again"), **joining(self.group, self.ids[first])
            )
            self.generation = answer["generation_id"]
            self.is_stable = False
            return
        if more:
            (slot,) = more
            self.ids[slot] = self.peer.quietly("join_group", version, **joining(self.group))["member_id"]
            coming = self.peer.begin("join_group", version, **joining(self.group, self.ids[slot]))
            beat = {"group_id": self.group, "member_id": self.ids[first], "generation_id": self.generation}
            deadline = time.monotonic() + ANSWER_SECONDS
            while self.peer.quietly("heartbeat", 0, **beat)["error_code"] == "NONE":
                if time.monotonic() > deadline:
                    raise PeerFailed(f"{self.peer.name}: {self.group} does not rebalance")
                time.sleep(0.01)
            answer = self.peer.ask_for(
                "join_group",
                version,
                self.said("joins again"),
                self.in_order,
                **joining(self.group, self.ids[first]),
            )
            coming.end(self.said("joins beside it"))
            self.members = [first, slot]
            self.generation, self.is_stable = answer["generation_id"], False

    def sync(self) -> None:
        if not self.members:
            self.peer.ask(
                "sync_group",
                version := self.version(0, 5),
                self.said("syncs"),
                **syncing(self.group, self.ids[0] or "nobody", self.generation),
            )
            return
        version = self.version(3, 5)
        plan = [{"member_id": self.ids[slot], "assignment": b"%d" % slot} for slot in self.members]
        for slot in self.members:
            answer = self.peer.ask(
                "sync_group",
                version,
                self.said(f"slot {slot} syncs"),
                **syncing(self.group, self.ids[slot], self.generation, assignments=plan),
            )
            if answer["error_code"] == "NONE":
                self.is_stable = True

    def beat(self) -> None:
        self.peer.ask("heartbeat", self.version(0, 4), self.said("beats"), **self.identity())

    def commit(self) -> None:
        who = self.identity()
        if self.chance.random() < 0.3:
            who = {**who, "member_id": "", "generation_id": -1}
        fields = committing(self.group, *self.topic, *self.chance.sample(range(3), self.chance.randint(1, 3)))
        fields["member_id"], fields["generation_id_or_member_epoch"] = who["member_id"], who["generation_id"]
        self.peer.ask("offset_commit", self.version(2, 9), self.said("commits"), **fields)

    def leave(self) -> None:
        slot = self.chance.randrange(2)
        members = [{"member_id": self.ids[slot]}]
        self.peer.ask("leave_group", self.version(3, 5), self.said("leaves"), group_id=self.group, members=members)
        if slot in self.members:
            self.members.remove(slot)

    def delete_offsets(self) -> None:
        rows = [{"name": self.topic[0], "partitions": [{"partition_index": number} for number in (0, 1)]}]
        self.peer.ask("offset_delete", 0, self.said("deletes offsets"), group_id=self.group, topics=rows)

    def delete(self) -> None:
        self.peer.ask("delete_groups", self.version(0, 2), self.said("deletes"), groups_names=[self.group])

    def describe(self) -> None:
        self.peer.ask_for(
            "describe_groups", self.version(0, 6), self.said("is described"), self.described, groups=[self.group]
        )
        self.peer.ask("offset_fetch", self.version(2, 7), self.said("is fetched"), group_id=self.group, topics=None)


@session("describe_groups", versions=SEEDS, setup=Setup.GROUPS)
def life_of_a_group(peer: Peer, version: int) -> None:
    GroupLife(peer, version).live()


class StaticLife:
    """A group whose only member has an instance id, and comes back with its former id, its current id, or an unknown one."""

    def __init__(self, peer: Peer, seed: int) -> None:
        self.peer, self.chance = peer, random.Random(f"static {seed}")
        self.group, self.topic = coordinated(peer), peer.create()
        self.ids = ["former", "", "nobody"]
        self.generation = 0
        self.step = 0

    def live(self) -> None:
        steps = {self.join: 5, self.sync: 5, self.beat: 3, self.commit: 2, self.leave: 1, self.describe: 2}
        for self.step in range(STEPS):
            (do,) = self.chance.choices(list(steps), list(steps.values()))
            do()
        self.step = STEPS
        self.describe()

    def identity(self) -> dict[str, Any]:
        """The fields that name the member, seldom without its instance id or with another instance id."""
        former, current, nobody = self.ids
        member = self.chance.choice((current, current, current, former, nobody))
        instance = self.chance.choices(("i", None, "other"), (8, 1, 1))[0]
        return {"group_id": self.group, "member_id": member, "group_instance_id": instance}

    def ask(self, api: str, low: int, high: int, what: str, **values: Any) -> Tree:
        return self.peer.ask(api, self.chance.randint(low, high), f"{self.step}: {what}", **values)

    def join(self) -> None:
        former, current, _ = self.ids
        member = self.chance.choice(("", "", current, former))
        names = ["range", "sticky"] if self.chance.random() < 0.3 else ["range"]
        protocols = [{"name": name, "metadata": name.encode()} for name in names]
        fields = joining(self.group, member, group_instance_id="i", protocols=protocols)
        answer = self.ask("join_group", 5, 9, "joins", **fields)
        if answer["error_code"] == "NONE":
            self.generation = answer["generation_id"]
            if answer["member_id"] != current:
                self.ids[:2] = current or former, answer["member_id"]

    def sync(self) -> None:
        who = self.identity()
        plan = [{"member_id": self.ids[1], "assignment": b"%d" % self.step}]
        fields = {**syncing(self.group, who["member_id"], self.generation), **who, "assignments": plan}
        self.ask("sync_group", 3, 4, "syncs", **fields)

    def beat(self) -> None:
        generation = self.generation + self.chance.choice((0, 0, 0, -1))
        self.ask("heartbeat", 3, 4, "beats", **self.identity(), generation_id=generation)

    def commit(self) -> None:
        who = self.identity()
        fields = committing(self.group, *self.topic, 0, **who)
        self.ask("offset_commit", 7, 9, "commits", **{**fields, "generation_id_or_member_epoch": self.generation})

    def leave(self) -> None:
        who = self.identity()
        member = self.chance.choice((who["member_id"], ""))
        members = [{"member_id": member, "group_instance_id": who["group_instance_id"]}]
        self.ask("leave_group", 3, 5, "leaves", group_id=self.group, members=members)

    def describe(self) -> None:
        self.ask("describe_groups", 4, 6, "is described", groups=[self.group])


@session("describe_groups", versions=SEEDS, setup=Setup.GROUPS)
def life_of_a_static_member(peer: Peer, version: int) -> None:
    StaticLife(peer, version).live()


# --- transactions -----------------------------------------------------------------------------------------------------
class ProducerLife:
    """Two transactional producers, which use the first or the second version of the protocol, and the former epoch of each."""

    def __init__(self, peer: Peer, seed: int) -> None:
        self.peer, self.chance = peer, random.Random(f"transactions {seed}")
        self.is_second = seed % 2 == 1
        self.topic: Topic = peer.create(partitions=2)
        self.group = coordinated(peer)
        self.now = [begun(peer, "x"), begun(peer, "y")]
        self.before = [(name, producer_id, epoch - 1) for name, producer_id, epoch in self.now]
        #: The next sequence by producer and partition.
        self.sequences: dict[tuple[Producer, int], int] = {}
        self.step = 0

    def live(self) -> None:
        steps = self.steps()
        for self.step in range(STEPS):
            (do,) = self.chance.choices(list(steps), list(steps.values()))
            do(self.chance.randrange(2))
        self.step = STEPS
        for slot in range(2):
            self.begin(slot)
        self.look(0)

    def steps(self) -> dict[Callable[[int], None], int]:
        """The steps, and the weight of each in the random choice."""
        return {
            self.add: 0 if self.is_second else 4,
            self.produce: 6,
            self.add_group: 0 if self.is_second else 1,
            self.commit_offsets: 2,
            self.end: 5,
            self.begin: 1,
            self.describe: 1,
            self.look: 2,
        }

    def said(self, slot: int, what: str) -> str:
        return f"{self.step}: {'xy'[slot]} {what}"

    def one(self, slot: int) -> Producer:
        return self.before[slot] if self.chance.random() < 0.15 else self.now[slot]

    def ask(self, api: str, version: int, slot: int, what: str, **values: Any) -> Tree:
        return ask(self.peer, api, version, self.said(slot, what), **values)

    def add(self, slot: int) -> None:
        partitions = self.chance.sample(range(3), self.chance.randint(1, 2))
        self.ask(
            "add_partitions_to_txn",
            self.chance.randint(0, 3),
            slot,
            "adds partitions",
            **adding(self.one(slot), self.topic[0], *partitions),
        )

    def produce(self, slot: int) -> None:
        who, partition = self.one(slot), self.chance.randrange(2)
        sequence = self.sequences.get((who, partition), 0)
        late = self.chance.random() < 0.1
        batch = sent(who, sequence + 5 * late, b"%d" % self.step)
        version = self.chance.randint(12, 13) if self.is_second else self.chance.randint(3, 11)
        answer = self.ask("produce", version, slot, "produces", **producing(who, self.topic, {partition: batch}))
        if answer["responses"][0]["partition_responses"][0]["error_code"] == "NONE":
            self.sequences[who, partition] = sequence + 5 * late + 1

    def add_group(self, slot: int) -> None:
        self.ask(
            "add_offsets_to_txn",
            self.chance.randint(0, 3),
            slot,
            "adds the group",
            **naming(self.one(slot)),
            group_id=self.group,
        )

    def commit_offsets(self, slot: int) -> None:
        rows = committing(self.group, *self.topic, self.chance.randrange(2))["topics"][0]["partitions"]
        version = 5 if self.is_second else self.chance.randint(0, 4)
        inside: dict[str, Any] = {"generation_id": -1, "member_id": ""} if version >= 3 else {}
        topics = [{"name": self.topic[0], "partitions": rows}]
        self.ask(
            "txn_offset_commit",
            version,
            slot,
            "commits offsets",
            **naming(self.one(slot)),
            group_id=self.group,
            topics=topics,
            **inside,
        )

    def end(self, slot: int) -> None:
        who, commit = self.one(slot), self.chance.random() < 0.6
        version = 5 if self.is_second else self.chance.randint(0, 4)
        word = "commits" if commit else "aborts"
        answer = self.ask("end_txn", version, slot, word, **ending(who, commit=commit))
        if version == 5 and answer["error_code"] == "NONE":
            self.replace(slot, answer)
        self.settle()

    def begin(self, slot: int) -> None:
        name = self.now[slot][0]
        version = self.chance.randint(0, 5)
        answer = self.ask("init_producer_id", version, slot, "begins", **beginning(name))
        if answer["error_code"] == "NONE":
            self.replace(slot, answer)
        self.settle()

    def replace(self, slot: int, answer: Tree) -> None:
        given = (self.now[slot][0], answer["producer_id"], answer["producer_epoch"])
        if given != self.now[slot]:
            self.before[slot], self.now[slot] = self.now[slot], given

    def settle(self) -> None:
        """Returns once no transaction waits for its markers."""
        names = [name for name, *_ in self.now]
        deadline = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < deadline:
            if not any(map(self.is_prepared, names)):
                return
            time.sleep(0.01)
        raise PeerFailed(f"{self.peer.name}: the transactions of {names} are never completed")

    def is_prepared(self, name: str) -> bool:
        """Asks about one id, because two ids may have different coordinators and a request goes to one."""
        (state,) = self.peer.quietly("describe_transactions", 0, transactional_ids=[name])["transaction_states"]
        return str(state["transaction_state"]).startswith("Prepare")

    def describe(self, slot: int) -> None:
        names = [name for name, *_ in self.now]
        what = self.said(slot, "is described")
        self.peer.ask_for("describe_transactions", 0, what, _in_order, transactional_ids=names)

    def look(self, slot: int) -> None:
        looked(self.peer, self.topic, self.said(slot, "is looked at"))
        topics = [{"name": self.topic[0], "partition_indexes": [0, 1]}]
        for is_stable in (False, True):
            self.peer.ask(
                "offset_fetch",
                8,
                self.said(slot, f"offsets, stable {is_stable}"),
                groups=[{"group_id": self.group, "topics": topics}],
                require_stable=is_stable,
            )


class OddProducerLife(ProducerLife):
    """Adds rare steps: a producer continues with its epoch, adds topics that no transaction may have, or deletes offsets during
    a transaction."""

    def steps(self) -> dict[Callable[[int], None], int]:
        return {
            **super().steps(),
            self.go_on: 4,
            self.add_odd_topics: 0 if self.is_second else 2,
            self.commit_odd_offsets: 2,
            self.delete_offsets: 2,
        }

    def go_on(self, slot: int) -> None:
        """Only the current producer continues over an open transaction: answers to a late one differ (`of_a_late_producer`)."""
        (state,) = self.peer.quietly("describe_transactions", 0, transactional_ids=[self.now[slot][0]])[
            "transaction_states"
        ]
        who = self.now[slot] if state["transaction_state"] == "Ongoing" else self.one(slot)
        fields = beginning(who[0], producer_id=who[1], producer_epoch=who[2])
        answer = self.ask("init_producer_id", self.chance.randint(3, 5), slot, "goes on", **fields)
        if answer["error_code"] == "NONE":
            self.replace(slot, answer)
        self.settle()

    def add_odd_topics(self, slot: int) -> None:
        names = self.chance.sample(("__consumer_offsets", self.peer.named("nowhere"), self.topic[0]), 2)
        fields = adding(self.one(slot), self.topic[0], 0)
        fields["v3_and_below_topics"] = [{"name": name, "partitions": [0]} for name in names]
        self.ask("add_partitions_to_txn", self.chance.randint(0, 3), slot, "adds odd topics", **fields)

    def commit_odd_offsets(self, slot: int) -> None:
        rows = committing(self.group, *self.topic, *self.chance.sample(range(3), 2))["topics"][0]["partitions"]
        topics = [{"name": self.chance.choice((self.topic[0], self.peer.named("nowhere"))), "partitions": rows}]
        version = 5 if self.is_second else self.chance.randint(3, 4)
        fields = {"group_id": self.group, "topics": topics, "generation_id": -1, "member_id": ""}
        self.ask("txn_offset_commit", version, slot, "commits odd offsets", **naming(self.one(slot)), **fields)

    def delete_offsets(self, slot: int) -> None:
        rows = [{"name": self.topic[0], "partitions": [{"partition_index": number} for number in (0, 1, 7)]}]
        self.ask("offset_delete", 0, slot, "has offsets deleted", group_id=self.group, topics=rows)


def _in_order(answer: Tree) -> Tree:
    """Sorts partitions, which Kafka orders by hash. Leaves out those of the groups' topic, whose number differs here."""
    states = []
    for state in answer["transaction_states"]:
        topics = [
            {**each, "partitions": [] if each["topic"].startswith("__") else sorted(each["partitions"])}
            for each in state["topics"]
        ]
        states.append({**state, "topics": topics})
    return {**answer, "transaction_states": states}


@session("describe_transactions", versions=SEEDS, setup=Setup.GROUPS)
def life_of_transactions(peer: Peer, version: int) -> None:
    ProducerLife(peer, version).live()


@session("describe_transactions", versions=SEEDS, setup=Setup.GROUPS)
def life_of_odd_transactions(peer: Peer, version: int) -> None:
    OddProducerLife(peer, version).live()
