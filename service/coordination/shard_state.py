"""The lifecycle of a coordinator's shard on this node: its states, and the events that end them.

    loading ◀──▶ active        every state ──▶ closed
      │            ▲
      ▼            │
    unreadable ────┘

After a failed write or a defect, a shard is dropped and reloaded. While its partition cannot be read, the load is retried.

Pure. Invariants: only an active shard decides; closed is the last state. `TRANSITIONS` has every pair of a state and an event:
an unexpected event is a defect (`UnexpectedShardEvent`) and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class ShardState(Enum):
    """The states; `ACTIVE` alone serves requests."""

    #: Its log is being read; clients retry.
    LOADING = "loading"
    ACTIVE = "active"
    #: Its partition cannot be read, and the load is retried. Clients look for another coordinator.
    UNREADABLE = "unreadable"
    #: The node no longer leads the partition.
    CLOSED = "closed"


class ShardEvent(Enum):
    """The events that `TRANSITIONS` knows."""

    #: All of its log is read.
    LOADED = "is loaded"
    #: Its log cannot be read or decoded.
    LOAD_FAILED = "cannot be loaded"
    #: Its state may differ from its log, because a write failed or a decision raised an exception.
    DROPPED = "is dropped"
    #: The node no longer leads the partition, or stops.
    CLOSED = "is closed"


class UnexpectedShardEvent(Exception):
    """An event that cannot happen to a shard in its state: a defect of the code that reports it."""


#: The state after an event; None where the event is not expected.
TRANSITIONS: Mapping[ShardState, Mapping[ShardEvent, ShardState | None]] = {
    ShardState.LOADING: {
        ShardEvent.LOADED: ShardState.ACTIVE,
        ShardEvent.LOAD_FAILED: ShardState.UNREADABLE,
        ShardEvent.DROPPED: None,
        ShardEvent.CLOSED: ShardState.CLOSED,
    },
    ShardState.ACTIVE: {
        ShardEvent.LOADED: None,
        ShardEvent.LOAD_FAILED: None,
        ShardEvent.DROPPED: ShardState.LOADING,
        ShardEvent.CLOSED: ShardState.CLOSED,
    },
    ShardState.UNREADABLE: {
        ShardEvent.LOADED: ShardState.ACTIVE,
        ShardEvent.LOAD_FAILED: ShardState.UNREADABLE,
        ShardEvent.DROPPED: None,
        ShardEvent.CLOSED: ShardState.CLOSED,
    },
    ShardState.CLOSED: {
        ShardEvent.LOADED: None,
        ShardEvent.LOAD_FAILED: None,
        ShardEvent.DROPPED: None,
        ShardEvent.CLOSED: ShardState.CLOSED,
    },
}


def state_after(state: ShardState, event: ShardEvent) -> ShardState:
    """The next state. Raises UnexpectedShardEvent if `TRANSITIONS` has none."""
    following = TRANSITIONS[state][event]
    if following is None:
        raise UnexpectedShardEvent(f"a shard that is {state.value} {event.value}")
    return following
