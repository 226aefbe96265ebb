from __future__ import annotations

from pathlib import Path

import pytest

from service.metadata.generate import DEFINITION, ROOT, generate


@pytest.mark.parametrize("suffix", [".py", ".pyi"])
def test_the_committed_files_are_what_the_definition_makes(tmp_path: Path, suffix: str) -> None:
    assert generate(tmp_path) == 0
    name = DEFINITION.replace(".proto", "_pb2" + suffix)
    assert (tmp_path / name).read_text() == (ROOT / name).read_text()
