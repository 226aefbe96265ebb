"""One broker as a session sees it: a socket, and a transcript of requests and responses.

A session talks to one peer at a time and may use that peer's answers (a topic's id, a producer's epoch), so its two
transcripts have the same steps but different names. Requests made with `ask`, `tell`, `raw` or `pipeline` are in the
transcript; preparations (`create`, `quietly`) are not.
"""

from __future__ import annotations

import dataclasses
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.differential import message_trees
from tests.differential.message_trees import Tree

ANSWER_SECONDS = 30.0
#: Seconds that a peer may take to close a connection that it should close.
CLOSE_SECONDS = 10.0
SETTLE_SECONDS = 0.15
_PAUSE_S = 0.01
#: Transcript entries for a connection that the peer closed, and for no response.
CLOSED: Tree = {"connection": "closed"}
SILENT: Tree = {"connection": "no answer"}


class PeerFailed(AssertionError):
    """A peer's response could not be decoded, or the peer never reached the expected state."""


class PeerSilent(PeerFailed):
    """A peer neither answered in time nor closed the connection."""


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One request and its response. `label` describes the request and is unique in its session for the API and version."""

    api: str
    version: int
    label: str
    answer: Tree


class Peer:
    """`name`: the broker's; `prefix` begins the name of every topic that the session creates; `restart`: restarts the
    broker."""

    def __init__(self, name: str, address: str, prefix: str, restart: Callable[[], object] | None = None) -> None:
        self.name = name
        self.host, _, port = address.rpartition(":")
        self.port = int(port)
        self.prefix = prefix
        self.started_ms = time.time_ns() // 1_000_000
        self.transcript: list[Exchange] = []
        #: Topic names by id, for topics created here.
        self.topics: dict[str, str] = {}
        #: The client id in the headers of `ask` and `quietly`.
        self.client_id = message_trees.CLIENT_ID
        self._restart = restart
        self._socket: socket.socket | None = None
        self._correlation = 0

    def restart(self, *topics: tuple[str, int]) -> None:
        """Restarts the broker cleanly; returns once it leads the given topics' partitions (name, partition count) again."""
        assert self._restart is not None
        self.close_connection()
        self._restart()
        for topic, partitions in topics:
            self.await_partitions(topic, partitions)

    # --- asking -------------------------------------------------------------------------------------------------------
    def ask(self, api: str, version: int, label: str, /, **values: Any) -> Tree:
        answer = self.quietly(api, version, **values)
        return self._note(api, version, label, answer)

    def ask_for(self, api: str, version: int, label: str, keep: Callable[[Tree], Tree], /, **values: Any) -> Tree:
        """Asks and records `keep` of the response, for responses that also cover other sessions' state."""
        return self._note(api, version, label, keep(self.quietly(api, version, **values)))

    def settle_same(self, api: str, version: int, label: str, /, **values: Any) -> Tree:
        """Asks until the response is stable for SETTLE_SECONDS, as changes reach Kafka's brokers with a delay."""
        answer = self.quietly(api, version, **values)
        steady = time.monotonic()
        while time.monotonic() < steady + SETTLE_SECONDS:
            time.sleep(_PAUSE_S)
            again = self.quietly(api, version, **values)
            if again != answer:
                answer, steady = again, time.monotonic()
        return self._note(api, version, label, answer)

    def collect(self, api: str, version: int, label: str, answer: Tree, /) -> Tree:
        """Records a result that the session has assembled from several responses of this API."""
        return self._note(api, version, label, answer)

    def ask_patiently(self, api: str, version: int, label: str, seconds: float, /, **values: Any) -> Tree:
        """Sends a request that may stay unanswered: no response within `seconds` is recorded as `SILENT`."""
        self._turn(api, values)
        self._send(message_trees.request(api, version, number := self._next(), values))
        try:
            answer = self._answer(api, version, number, seconds)
        except PeerSilent:
            answer = SILENT
        return self._note(api, version, label, answer)

    def tell(self, api: str, version: int, label: str, /, **values: Any) -> None:
        """Sends a request that must not be answered: the next response must belong to the next request."""
        self._turn(api, values)
        self._send(message_trees.request(api, version, self._next(), values))
        follow = self._next()
        self._send(message_trees.request("api_versions", 0, follow, {}))
        frame = self._receive()
        if frame is None:
            self._note(api, version, label, CLOSED)
        elif struct.unpack_from(">i", frame)[0] == follow:
            self._note(api, version, label, SILENT)
        else:
            self._note(api, version, label, {"connection": "an answer"})

    def pipeline(self, api: str, version: int, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Tree]:
        """Sends all requests at once; the responses must come in the same order."""
        self._turn(api, requests[0][1])
        numbers = [self._next() for _ in requests]
        encoded = [message_trees.request(api, version, n, dict(v)) for n, (_, v) in zip(numbers, requests, strict=True)]
        self._send_bytes(b"".join(map(message_trees.framed, encoded)))
        return [
            self._note(api, version, label, self._answer(api, version, number))
            for number, (label, _) in zip(numbers, requests, strict=True)
        ]

    def raw(
        self, label: str, data: bytes, /, api: str = "frames", version: int = 0, *, patience: float | None = None
    ) -> Tree:
        """Sends raw bytes, size included. The response is decoded as `api` v`version`; "frames" expects the peer to close.
        With `patience`, no response within that many seconds is recorded as `SILENT`."""
        self.close_connection()
        self._turn("frames", {})
        self._send_bytes(data)
        try:
            frame = self._receive(patience or (CLOSE_SECONDS if api == "frames" else ANSWER_SECONDS))
        except PeerSilent:
            if patience is None:
                raise
            return self._note(api, version, label, SILENT)
        if frame is None:
            return self._note(api, version, label, CLOSED)
        if api == "frames":
            self.close_connection()
            return self._note(api, version, label, {"connection": "an answer", "bytes": len(frame)})
        return self._note(api, version, label, message_trees.answer(api, version, frame)[1])

    def quietly(self, api: str, version: int, /, **values: Any) -> Tree:
        """Asks without recording the exchange."""
        self._turn(api, values)
        number = self._next()
        self._send(message_trees.request(api, version, number, values, self.client_id))
        return self._answer(api, version, number)

    def everywhere(self, api: str, version: int, /, **values: Any) -> list[Tree]:
        """The answer of every broker, without recording the exchange."""
        return [self.quietly(api, version, **values)]

    def begin(self, api: str, version: int, /, **values: Any) -> Waiting:
        """Asks on a separate connection, for a response that comes later."""
        self._turn(api, values)
        return Waiting(self, api, version, values)

    def close_connection(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # --- preparations of sessions -------------------------------------------------------------------------------------
    def named(self, name: str) -> str:
        return f"{self.prefix}-{name}"

    def create(self, name: str = "t", /, partitions: int = 1, **configs: str) -> tuple[str, str]:
        """Creates a topic and waits until it is ready; returns its name and id. Dots in config names become underscores."""
        topic = self.named(name)
        wanted = {
            "name": topic,
            **self._placed(partitions),
            "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
        }
        (created,) = self.quietly("create_topics", 7, topics=[wanted])["topics"]
        if created["error_code"] != "NONE":
            raise PeerFailed(f"{self.name}: {topic} was not created: {created}")
        self.await_partitions(topic, partitions)
        self._created(topic, created["topic_id"])
        times = sum(known.startswith(f"{topic} ") for known in self.topics.values()) + 1
        self.topics[created["topic_id"]] = f"{topic} {times}"
        return topic, created["topic_id"]

    def delete(self, topic: str) -> None:
        """Deletes the topic and waits until metadata no longer shows it."""
        self.quietly("delete_topics", 5, topic_names=[topic])
        deadline = time.monotonic() + ANSWER_SECONDS
        while True:
            found = self.everywhere("metadata", 12, topics=[{"name": topic}], allow_auto_topic_creation=False)
            if all(answer["topics"][0]["error_code"] == "UNKNOWN_TOPIC_OR_PARTITION" for answer in found):
                return
            if time.monotonic() > deadline:
                raise PeerFailed(f"{self.name}: {topic} was not deleted: {found}")
            time.sleep(_PAUSE_S)

    def await_partitions(self, topic: str, partitions: int) -> None:
        """Waits until every partition's leader returns its log end offset: Kafka shows partitions before it leads them."""
        deadline = time.monotonic() + ANSWER_SECONDS
        rows = [{"partition_index": index, "timestamp": -1} for index in range(partitions)]
        while True:
            (found,) = self.quietly("list_offsets", 6, replica_id=-1, topics=[{"name": topic, "partitions": rows}])[
                "topics"
            ]
            if all(partition["error_code"] == "NONE" for partition in found["partitions"]):
                return
            if time.monotonic() > deadline:
                raise PeerFailed(f"{self.name}: {topic} has no {partitions} partitions: {found}")
            time.sleep(_PAUSE_S)

    def fill(self, topic_id: str, *batches: bytes, partition: int = 0) -> None:
        """Appends each batch with its own request."""
        for batch in batches:
            answer = self.quietly(
                "produce",
                13,
                acks=-1,
                topic_data=[{"topic_id": topic_id, "partition_data": [{"index": partition, "records": batch}]}],
            )
            code = answer["responses"][0]["partition_responses"][0]["error_code"]
            if code != "NONE":
                raise PeerFailed(f"{self.name}: a batch was refused with {code}")

    # --- which broker -------------------------------------------------------------------------------------------------
    def _turn(self, api: str, values: Mapping[str, Any]) -> None:
        """Makes the next request go to the broker to which a client would send it."""

    def _placed(self, partitions: int) -> dict[str, Any]:
        """CreateTopics' fields for the number of partitions and where they are."""
        return {"num_partitions": partitions, "replication_factor": 1}

    def _created(self, topic: str, topic_id: str) -> None:
        """Called once a topic of `create` is ready."""

    # --- the socket ---------------------------------------------------------------------------------------------------
    def _note(self, api: str, version: int, label: str, answer: Tree) -> Tree:
        self.transcript.append(Exchange(api, version, label, answer))
        return answer

    def _next(self) -> int:
        self._correlation += 1
        return self._correlation

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket = socket.create_connection((self.host, self.port), ANSWER_SECONDS)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._socket

    def _send(self, body: bytes) -> None:
        self._send_bytes(message_trees.framed(body))

    def _send_bytes(self, data: bytes) -> None:
        try:
            self._connected().sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the peer closed before it had read everything; the receive reports it

    def _receive(self, seconds: float = ANSWER_SECONDS) -> bytes | None:
        """A response without its size; None if the peer closed the connection, which is then dropped here too."""
        connection = self._connected()
        connection.settimeout(seconds)
        try:
            head = self._exactly(connection, 4)
            frame = None if head is None else self._exactly(connection, struct.unpack(">i", head)[0])
        except TimeoutError:
            self.close_connection()
            raise PeerSilent(f"{self.name} neither answers nor closes the connection in {seconds} s") from None
        if frame is None:
            self.close_connection()
        return frame

    @staticmethod
    def _exactly(connection: socket.socket, count: int) -> bytes | None:
        data = bytearray()
        while len(data) < count:
            try:
                part = connection.recv(min(count - len(data), 1 << 20))
            except ConnectionResetError:
                return None
            if not part:
                return None
            data += part
        return bytes(data)

    def _answer(self, api: str, version: int, number: int, seconds: float = ANSWER_SECONDS) -> Tree:
        frame = self._receive(seconds)
        if frame is None:
            return CLOSED
        try:
            correlation, answer = message_trees.answer(api, version, frame)
        except Exception as error:
            raise PeerFailed(f"{self.name}: {api} v{version}: {error!r} in {frame[:200].hex()}") from error
        if correlation != number:
            raise PeerFailed(f"{self.name}: answer {correlation} came where {number} was due")
        return answer


class Waiting:
    """A request whose response may come much later. Made by `Peer.begin`."""

    def __init__(self, peer: Peer, api: str, version: int, values: Mapping[str, Any]) -> None:
        self._peer = peer
        self._own = Peer(peer.name, f"{peer.host}:{peer.port}", peer.prefix)
        self._asked = (api, version)
        self._number = self._own._next()
        self._own._send(message_trees.request(api, version, self._number, dict(values)))

    def end(self, label: str) -> Tree:
        """Waits for the response, at most `ANSWER_SECONDS`, and records it."""
        api, version = self._asked
        try:
            answer = self._own._answer(api, version, self._number)
        finally:
            self._own.close_connection()
        return self._peer._note(api, version, label, answer)
