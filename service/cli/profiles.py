"""Named profiles: a file that maps names to the addresses of the nodes that client commands talk to.

`$XDG_CONFIG_HOME/tidelog/profiles.toml` (default `~/.config/tidelog/profiles.toml`), one table per profile:

    [default]                                   # used if no profile is named
    bootstrap-server = "127.0.0.1:9092"

    [prod]
    bootstrap-server = "10.0.0.5:9092,10.0.0.6:9092"

Only the profile in use is checked. A mistake in another profile has no effect.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from service.cli.errors import Misconfigured

#: The file's name in the config directory.
PROFILES = "profiles.toml"
DEFAULT_PROFILE = "default"
BOOTSTRAP_SERVER = "bootstrap-server"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def bootstrap_of(name: str | None, path: Path, check: Callable[[str], None]) -> str | None:
    """The address in the profile `name`. If `name` is None, the address in the profile `default`, or None if there is no such
    profile.

    `check` raises ValueError for an invalid address. Raises Misconfigured with the file and the mistake in it."""
    profiles = _read(path)
    if profiles is None:
        if name is None:
            return None
        raise Misconfigured(f"there is no profile {name}: {path} does not exist; {_how_to_add(name)}")
    table = profiles.get(name or DEFAULT_PROFILE)
    if table is None:
        if name is None:
            return None
        raise Misconfigured(f"{path} has no profile {name}{_suggestion(name, profiles)}; {_how_to_add(name)}")
    where = f"{path}: [{_key(name or DEFAULT_PROFILE)}]"
    if not isinstance(table, dict):
        raise Misconfigured(f"{where} is not a table but {json.dumps(table, default=str)}")
    unknown = sorted(set(table) - {BOOTSTRAP_SERVER})
    if unknown:
        raise Misconfigured(f"{where} has the unknown setting {unknown[0]}; the only setting is {BOOTSTRAP_SERVER}")
    address = table.get(BOOTSTRAP_SERVER)
    if address is None:
        raise Misconfigured(f"{where} has no {BOOTSTRAP_SERVER}")
    if not isinstance(address, str):
        raise Misconfigured(f"{where} {BOOTSTRAP_SERVER} is not a string but {json.dumps(address, default=str)}")
    try:
        check(address)
    except ValueError as error:
        raise Misconfigured(f"{where} {BOOTSTRAP_SERVER}: {error}") from None
    return address


def _read(path: Path) -> dict[str, Any] | None:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Misconfigured(f"cannot read {path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise Misconfigured(f"{path} is not TOML: {error}") from None
    except UnicodeDecodeError as error:
        raise Misconfigured(f"{path} is not TOML: byte {error.start} is not UTF-8") from None


def _suggestion(name: str, profiles: Mapping[str, Any]) -> str:
    if not profiles:
        return ", nor any other"
    near = difflib.get_close_matches(name, profiles, 1)
    return f" (did you mean {near[0]}?)" if near else f", only {', '.join(sorted(profiles))}"


def _how_to_add(name: str) -> str:
    return f'write the table [{_key(name)}] with {BOOTSTRAP_SERVER} = "HOST:PORT" there'


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else json.dumps(name)
