"""Times in ISO 8601, as users write them. The SDK, the command line and Spark's options share this module.

Pure. A text without a zone is UTC, as in this project's output: the machine's zone must not decide which records are read.
Python takes a `datetime` without a zone for local time, so the callers of this module refuse one. This module itself does not
check.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_BEGINNING = datetime.fromtimestamp(0, UTC)


def parse_time(text: str) -> datetime:
    """The time in its zone, UTC if the text names none. ValueError unless it is ISO 8601."""
    parsed = datetime.fromisoformat(text)
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)


def first_ms(moment: datetime) -> int:
    """The first whole millisecond since 1970 at or after the moment, which has a zone; negative before 1970."""
    return -((_BEGINNING - moment) // timedelta(milliseconds=1))
