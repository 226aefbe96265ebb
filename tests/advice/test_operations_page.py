"""Every `tidelog` command in docs/ is one: its words are read by the command line's own parser.

What is read is every line of a block of shell, and every piece of code in the text, that begins with `tidelog` and goes on
with words. Words in capitals stand for what a reader puts there.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup

from service.cli.main import app
from tests.advice.messages import ROOT, all_messages

#: What stands for a reader's own words, by the option or place that it is read at.
PLACEHOLDERS = {"N": "1", "PORT": "9092", "HOST:PORT": "127.0.0.1:9092", "TOPIC|--cluster": "topic"}
#: What the parser raises for what it does not take; typer brings a parser of its own along.
UsageError: type[Exception] = typer.BadParameter.__mro__[1]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])


def commands(text: str) -> list[str]:
    found = []
    for language, block in re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL):
        if language not in ("", "sh", "bash", "console"):
            continue
        joined = re.sub(r"\\\n\s*", " ", block)
        found += [line.removeprefix("$ ").strip() for line in joined.splitlines()]
    inline = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found += [" ".join(piece.split()) for piece in re.findall(r"`([^`\n]+)`", inline)]
    return [command for command in found if command.startswith("tidelog ")]


def words_of(command: str) -> list[str]:
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.commenters = "#"
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if re.fullmatch(r"[|&;<>()]+", word):  # what follows is the shell's, or another program's
            break
        words.append(PLACEHOLDERS.get(word, word))
    return words[1:-1] if words[-1] == "2" and len(words) > 2 else words[1:]


def parsed(words: list[str]) -> None:
    """As the command line does, without doing it. UsageError for what it does not take."""
    command: Any = typer.main.get_command(app)
    context = typer.Context(command, info_name="tidelog")
    while isinstance(command, TyperGroup):
        if not words:
            return  # a family of commands, named
        name, command, words = command.resolve_command(context, words)
        context = typer.Context(command, info_name=name, parent=context)
    if words and words != ["--help"]:  # else it is only named
        command.make_context(context.info_name, words, parent=context.parent)


def found_in_docs() -> list[tuple[str, str]]:
    return [(page.name, command) for page in PAGES for command in commands(page.read_text(encoding="utf-8"))]


def found_in_messages() -> list[tuple[str, str]]:
    return [
        (message.path, command.replace("…", "WORD"))
        for message in all_messages()
        for command in re.findall(r"`(tidelog [^`]+)`", message.text)
    ]


@pytest.mark.parametrize(("place", "command"), sorted({*found_in_docs(), *found_in_messages()}), ids=str)
def test_every_command_that_is_named_is_one(
    place: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "tidelog").mkdir()
    (tmp_path / "tidelog" / "profiles.toml").write_text("[prod]\nbootstrap-server = '127.0.0.1:9092'\n")
    try:
        parsed(words_of(command))
    except UsageError as error:
        pytest.fail(f"{place}: {command}: {error}")


def test_the_page_of_operations_names_commands() -> None:
    assert len([place for place, _ in found_in_docs() if place == "operations.md"]) > 8


@pytest.mark.parametrize(
    "wrong", ["tidelog surf", "tidelog cold mend", "tidelog fsck --stroe URL", "tidelog restore --store u"]
)
def test_a_command_that_is_none_is_noticed(wrong: str) -> None:
    with pytest.raises(UsageError):
        parsed(words_of(wrong))
