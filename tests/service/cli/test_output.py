"""Tables of the command line: an empty table is reported on standard error, so that standard output is left to
programs.
"""

from __future__ import annotations

import pytest

from service.cli.output import print_table


def test_an_empty_table_is_reported_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("GROUP", "STATE"), [])
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("GROUP  STATE\n", "nothing to list\n")
    print_table(("GROUP", "STATE"), [("g", "Stable")])
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("GROUP  STATE\ng      Stable\n", "")
