"""Base classes: `Question`, which the broker asks of the tier process, and `Operation`, a question's row in `table.py`.

The name of a question's class is its name on the wire.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeVar

from storage_tiers.cold.process.settings import TierSettings

Answer = TypeVar("Answer", covariant=True)
Asked = TypeVar("Asked", bound="Question[Any]")
Context = TypeVar("Context")


class Deadline(Enum):
    """The deadline of a question in the tier process. The broker waits longer than that for the answer."""

    NONE = "the store is not asked, so the answer does not show whether the store works"
    READ = "read_deadline_s for all attempts: the read is repeated while the store does not answer"
    COMMIT = "commit_deadline_s and the question's extra_s; past it the outcome is unknown"
    OFFLOAD = "as COMMIT, counted from when an offload slot is free"
    STEPS = "each read and each commit of the question has a deadline of its own"


class Question(Generic[Answer]):
    """One question. Its type argument is the type of the answer."""

    __slots__ = ()

    def extra_s(self, settings: TierSettings) -> float:
        """Seconds that this question may take beyond the deadline of its kind."""
        return 0.0

    @classmethod
    def by(
        cls: type[Asked], deadline: Deadline, run: Callable[[Context, Asked], Awaitable[Answer]], what: str = ""
    ) -> Operation[Context]:
        """This question's row. `run` returns the answer. `what` is the format string that names the work in errors, with the
        question as `q`."""
        return Operation(cls, cls.__orig_bases__[0].__args__[0], deadline, run, what)  # type: ignore[attr-defined]


@dataclass(frozen=True, slots=True)
class Operation(Generic[Context]):
    """A row of the table: a question, the type of its answer, the kind of its deadline, and the function that answers it."""

    question: type[Question[Any]]
    answer: Any
    deadline: Deadline
    run: Callable[[Context, Any], Awaitable[Any]]
    what: str
