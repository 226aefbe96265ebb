"""The Terraform modules are formatted and valid, describe each variable and output, and name no secret."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.terraform.support import MODULES, Terraform, terraform_missing


@pytest.fixture(scope="module")
def terraform(tmp_path_factory: pytest.TempPathFactory) -> Terraform:
    if reason := terraform_missing():
        pytest.skip(reason)
    found = Terraform(tmp_path_factory.mktemp("terraform"))
    if reason := found.init():
        pytest.skip(reason)
    return found


def test_the_files_are_formatted() -> None:
    if reason := terraform_missing():
        pytest.skip(reason)
    said = subprocess.run(
        ["terraform", "fmt", "-recursive", "-check", str(MODULES)], capture_output=True, text=True, check=False
    )
    assert (said.returncode, said.stdout) == (0, ""), said.stdout


def test_the_modules_are_valid(terraform: Terraform) -> None:
    assert "configuration is valid" in terraform.run("validate")


@pytest.mark.parametrize("module", sorted(path.name for path in (MODULES / "modules").iterdir()))
def test_every_variable_and_output_is_described(module: str) -> None:
    for name in ("variables.tf", "outputs.tf"):
        text = (MODULES / "modules" / module / name).read_text()
        blocks = re.findall(r'^(?:variable|output) "(\w+)" \{\n((?:  .*\n|\n)*)\}', text, re.MULTILINE)
        assert len(blocks) == len(re.findall(r"^(?:variable|output) ", text, re.MULTILINE))
        assert [found for found, body in blocks if "description" not in body] == []


def test_no_module_names_a_secret() -> None:
    found = list(Path(MODULES).rglob("*.tf"))
    assert found
    for path in found:
        assert not re.search(r"(access_key|secret_key|password)\s*=", path.read_text()), path
