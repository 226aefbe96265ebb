"""Tracks the last contact with each registered broker, and finds the brokers that must be fenced.

A broker is fenced when it is silent for its session timeout, or soon after its heartbeat stream ends. A stream ends with the
broker's process, so the controller notices a death within half a second, and a pause after the timeout. The end of a stream
does not prove a death: after a broken connection the broker opens the next stream within STREAM_GRACE_S.

Pure: times are seconds of one monotonic clock. Invariant: a contact belongs to one registration. Heartbeats of an older
registration, and the end of its stream, change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

#: The default of Kafka's `broker.session.timeout.ms`, in seconds.
SESSION_S = 9.0
#: Seconds after the end of a heartbeat stream within which a new stream prevents fencing.
STREAM_GRACE_S = 0.5


class Contact(NamedTuple):
    """A broker's registration."""

    broker_id: int
    broker_epoch: int


@dataclass(slots=True)
class _Heard:
    broker_epoch: int
    deadline: float
    #: Streams of this registration that are open.
    streams: int = 0


class Contacts:
    """`session_s` is the session timeout in seconds."""

    def __init__(self, session_s: float) -> None:
        self._session_s = session_s
        self._heard: dict[int, _Heard] = {}

    def begin(self, live: Iterable[Contact], now: float) -> None:
        """Called at the controller's start: each broker has a whole session to make contact again."""
        for contact in live:
            self._heard[contact.broker_id] = _Heard(contact.broker_epoch, now + self._session_s)

    def opened(self, contact: Contact, now: float) -> None:
        """Called when a heartbeat stream begins, as `ended` is when the stream ends."""
        self._of(contact).streams += 1
        self.heard(contact, now)

    def heard(self, contact: Contact, now: float) -> None:
        self._of(contact).deadline = now + self._session_s

    def ended(self, contact: Contact, now: float) -> None:
        known = self._heard.get(contact.broker_id)
        if known is None or known.broker_epoch != contact.broker_epoch:
            return
        known.streams -= 1
        if known.streams <= 0:
            known.deadline = min(known.deadline, now + STREAM_GRACE_S)

    def overdue(self, now: float) -> list[Contact]:
        """Returns the brokers that must be fenced. Each broker is returned once, and is then forgotten until its next
        contact."""
        found = [
            Contact(broker_id, each.broker_epoch) for broker_id, each in self._heard.items() if each.deadline <= now
        ]
        for contact in found:
            del self._heard[contact.broker_id]
        return found

    def _of(self, contact: Contact) -> _Heard:
        known = self._heard.get(contact.broker_id)
        if known is None or known.broker_epoch < contact.broker_epoch:
            known = self._heard[contact.broker_id] = _Heard(contact.broker_epoch, 0.0)
        elif known.broker_epoch > contact.broker_epoch:
            return _Heard(contact.broker_epoch, 0.0)
        return known
