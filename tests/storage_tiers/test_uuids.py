"""UUIDs in the text form that people type."""

from __future__ import annotations

import uuid

from storage_tiers.uuids import parse_uuid, random_dashed_uuid, random_uuid, uuid_text
from tests.support.clock import SeededRng


class _Drawn(SeededRng):
    """Returns the given tokens in order."""

    def __init__(self, *tokens: bytes) -> None:
        super().__init__(0)
        self._tokens = list(tokens)

    def token(self, size: int) -> bytes:
        return self._tokens.pop(0)


def test_an_id_that_a_command_line_would_read_as_an_option_is_drawn_again() -> None:
    dashes = [bytes([first]) + bytes(15) for first in (0xF8, 0xFB)]
    assert [uuid_text(raw)[0] for raw in dashes] == ["-", "-"]
    for next_to_it in (0xF7, 0xFC):
        wanted = bytes([next_to_it]) + bytes(15)
        assert random_uuid(_Drawn(*dashes, wanted)) == wanted
        assert uuid_text(wanted)[0] in "9_"


def test_text_and_bytes_are_one_another() -> None:
    rng = SeededRng(8)
    for raw in (rng.token(16) for _ in range(100)):
        assert len(uuid_text(raw)) == 22
        assert parse_uuid(uuid_text(raw)) == raw


def test_a_dashed_uuid_has_version_4() -> None:
    text = random_dashed_uuid(SeededRng(1))
    parsed = uuid.UUID(text)
    assert (str(parsed), parsed.version, parsed.variant) == (text, 4, uuid.RFC_4122)
