"""The generated parts of docs/clients.md: `python -m tests.clients.generate_docs` rewrites them from the tables."""

from __future__ import annotations

from pathlib import Path

from tests.clients import tools

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clients.md"


def tool_names() -> str:
    return ", ".join(sorted(tools.CLASSES)) + "."


def differences() -> str:
    """The reasons for all differences, each once."""
    whys = list(dict.fromkeys([each.why for each in tools.DIFFERENCES] + [why for _, why in tools.OURS]))
    return "\n".join(f"- {why}" for why in whys)


def filled(page: str) -> str:
    """The page with its generated parts regenerated."""
    for name, text in (("tools", tool_names()), ("differences", differences())):
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        head, _, rest = page.partition(begin)
        page = f"{head}{begin}\n{text}\n{end}{rest.partition(end)[2]}"
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
