"""A range of offsets whose loss is accepted is checked before anything is repaired."""

from __future__ import annotations

import pytest

from service.cli.repair_answers import Loss


def test_a_range_is_parsed() -> None:
    assert Loss.parse("3:0-9223372036854775807") == Loss(3, 0, (1 << 63) - 1)


@pytest.mark.parametrize(
    "text",
    [
        "0:5-5",
        "0:6-5",
        "0:5",
        "t-0:1-5",
        "0:-1-5",
        "0:1-5 ",
        "0:0-9223372036854775808",
        "2147483648:0-5",
        "0:0-" + 99 * "9",
    ],
)
def test_another_range_is_refused_with_the_way_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match="write PARTITION:START-END"):
        Loss.parse(text)
