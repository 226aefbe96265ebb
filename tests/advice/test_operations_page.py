"""Every `tidelog` command in docs/ and in messages is valid: the command line's own parser accepts its words.

The commands are the lines in shell blocks and the inline code that begin with `tidelog` and a further word. Words in
capitals are placeholders for the reader's own.
"""

from __future__ import annotations

import itertools
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.core import TyperGroup

from service.cli.main import app
from tests.advice.messages import ROOT, all_messages

#: Values for the placeholders.
PLACEHOLDERS = {"N": "1", "PORT": "9092", "HOST:PORT": "127.0.0.1:9092", "TOPIC|--cluster": "topic"}
#: The parser's error for words that it refuses, found through typer, which bundles its own parser.
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
        if re.fullmatch(r"[|&;<>()]+", word):  # the rest belongs to the shell or to another program
            break
        words.append(PLACEHOLDERS.get(word, word))
    return words[1:-1] if words[-1] == "2" and len(words) > 2 else words[1:]


def parsed(words: list[str]) -> None:
    """Parses the words as the command line does, without running the command. UsageError for words that it refuses."""
    command: Any = typer.main.get_command(app)
    context = typer.Context(command, info_name="tidelog")
    while isinstance(command, TyperGroup):
        if not words:
            return  # names a group of commands only
        if words[0] in {"--help", *itertools.chain.from_iterable(each.opts for each in command.params)}:
            return  # an option of the group; most of them act when they are parsed
        name, command, words = command.resolve_command(context, words)
        context = typer.Context(command, info_name=name, parent=context)
    if words and words != ["--help"]:  # otherwise the command is only named
        command.make_context(context.info_name, words, parent=context.parent)


def found_in_docs() -> list[tuple[str, str]]:
    return [(page.name, command) for page in PAGES for command in commands(page.read_text(encoding="utf-8"))]


def found_in_messages() -> list[tuple[str, str]]:
    return [
        (message.path, command.replace("drain …", "drain 3").replace("…", "WORD"))
        for message in all_messages()
        for command in re.findall(r"`(tidelog [^`]+)`", message.text)
    ]


@pytest.mark.parametrize(("place", "command"), sorted({*found_in_docs(), *found_in_messages()}), ids=str)
def test_every_command_named_in_the_pages_exists(
    place: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "tidelog").mkdir()
    for name in ("offsets.csv", "lines.txt"):  # the pages name these files
        (tmp_path / name).touch()
    (tmp_path / "tidelog" / "profiles.toml").write_text("[prod]\nbootstrap-server = '127.0.0.1:9092'\n")
    try:
        parsed(words_of(command))
    except UsageError as error:
        pytest.fail(f"{place}: {command}: {error}")


def test_the_page_of_operations_names_commands() -> None:
    assert len([place for place, _ in found_in_docs() if place == "operations.md"]) > 8


@pytest.mark.parametrize(
    "wrong",
    ["tidelog surf", "tidelog --surf", "tidelog cold mend", "tidelog fsck --stroe URL", "tidelog restore --store u"],
)
def test_an_unknown_command_is_noticed(wrong: str) -> None:
    with pytest.raises(UsageError):
        parsed(words_of(wrong))
