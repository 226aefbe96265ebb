"""Options of Kafka's own tools that have another form here. The error for such an option names the option to use.

Without this advice, the error would suggest the most similar name, which may mean something else, such as `--to-current` for
`--to-latest`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ALONE = "write the name after the command, without an option"
#: Advice by option.
_WORDS: Mapping[str, str] = {
    "--to-earliest": "write --to beginning",
    "--to-latest": "write --to end",
    "--to-offset": "write --to OFFSET",
    "--to-datetime": "write --to TIME, for example --to 2013-07-01T00:00:00Z",
    "--by-duration": "write --to -DURATION, for example --to -1h",
    "--from-beginning": "write --from beginning, the default",
    "--property": "choose the output with --format or --json",
    "--formatter-property": "choose the output with --format or --json",
    "--entity-type": "`tidelog topic alter TOPIC --config NAME=VALUE` is for topics, `tidelog configs alter` for brokers",
    "--entity-name": "`tidelog topic alter TOPIC --config NAME=VALUE` is for topics, `tidelog configs alter` for brokers",
    "--add-config": "write --config NAME=VALUE",
    "--all-groups": "`tidelog group list` lists the groups; describe one at a time",
    "--group": _ALONE,
    "--topic": _ALONE,
    "--transactional-id": _ALONE,
}
#: Advice by command and option. It takes precedence over `_WORDS`.
_WORDS_OF_COMMANDS: Mapping[tuple[str, str], str] = {
    ("reset-offsets", "--dry-run"): "leave it out: nothing is changed without --execute",
    ("repair", "--dry-run"): "leave it out: nothing is changed without --apply",
    ("describe", "--members"): "leave it out: members are always shown",
    ("describe", "--offsets"): "leave it out: offsets are always shown",
    ("describe", "--state"): "leave it out: the state is always shown",
}


def explain_option(unknown: Any) -> None:
    """Adds the advice to the error of an unknown option. Accepts any command-line error."""
    option, context = getattr(unknown, "option_name", None), getattr(unknown, "ctx", None)
    if option is None or context is None:
        return
    words = _WORDS_OF_COMMANDS.get((context.info_name, option)) or _WORDS.get(option)
    if words is not None:
        unknown.message = f"No such option: {option}; {words}"
        unknown.possibilities = None
