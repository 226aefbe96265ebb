"""The node's own settings, read once: flag, then TIDELOG_* variable, then `--config` file (TOML), then default.

Kafka's broker configs are not attributes here: they stay rows of `service.configs` and travel as `broker`, a mapping of
Kafka's own names to text. This is the one module of a node that looks at the environment.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from service.listeners import host_and_port
from storage_tiers.errors import InvalidConfig
from storage_tiers.events import Form

PREFIX = "TIDELOG_"
ENVIRONMENT = "the environment"
#: Variables of our other programs, which a shell may export beside a node's: the client commands', the Lambda handlers',
#: the fault tests'.
OTHERS = frozenset({"TIDELOG_BOOTSTRAP_SERVER", "TIDELOG_PROFILE", "TIDELOG_READER", "TIDELOG_FAULT_SEED"})
#: Kubernetes tells a pod of every Service of its namespace in variables named after the Service: one called `tidelog`,
#: or `tidelog-` and more, takes names that begin as ours do. No setting may be called like these.
_SERVICE_LINK = re.compile(r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://", re.IGNORECASE)


class NodeSettings(BaseModel):
    """Ports of 0 mean a free one. `listeners` and the two after it are Kafka's configs of these names (`service.listeners`);
    those of gRPC and HTTP are HOST:PORT. `new_cluster` lets an empty directory begin a cluster beside others that the store
    holds, `take_over` names the one that it shall become the node of; `verify` has the bucket checked before."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    data_dir: Path = Path("data/node")
    store: str = "data/store"
    s3_endpoint: str | None = None
    s3_region: str | None = None
    listeners: str = "PLAINTEXT://127.0.0.1:9092"
    advertised_listeners: str | None = None
    listener_security_protocol_map: str | None = None
    grpc_listener: str = "127.0.0.1:9093"
    http_listener: str = "127.0.0.1:9094"
    node_id: int = Field(default=1, ge=0)
    new_cluster: bool = False
    take_over: str | None = None
    verify: bool = False
    log_level: str = "INFO"
    log_format: Form = "text"
    broker: Mapping[str, str] = Field(default_factory=dict)

    @field_validator("listeners", "advertised_listeners", "listener_security_protocol_map", mode="before")
    @classmethod
    def _joined(cls, value: Any) -> Any:
        """A list of the file's, as Kafka writes lists."""
        return _text(value) if isinstance(value, list) else value

    @field_validator("grpc_listener", "http_listener")
    @classmethod
    def _host_and_port(cls, value: str) -> str:
        host_and_port(value)
        return value

    @field_validator("log_level")
    @classmethod
    def _level(cls, value: str) -> str:
        if value.upper() not in {"DEBUG", "INFO", "WARNING", "ERROR"}:
            raise ValueError("one of DEBUG, INFO, WARNING, ERROR")
        return value.upper()


def load_settings(
    flags: Mapping[str, Any], *, config_file: Path | None = None, environ: Mapping[str, str] | None = None
) -> NodeSettings:
    """Merges the four sources; `flags` holds only what the user gave. Raises InvalidConfig naming source and key."""
    environ = os.environ if environ is None else environ
    merged: dict[str, Any] = {}
    sources: dict[str, str] = {}
    layers = [
        (str(config_file), _from_file(config_file)),
        (ENVIRONMENT, _from_environment(environ)),
        ("the command line", {k: v for k, v in flags.items() if v is not None}),
    ]
    broker: dict[str, str] = {}
    for source, values in layers:
        for key, value in values.items():
            if key == "broker":
                broker.update(_flat(value))
            elif key not in NodeSettings.model_fields:
                known = sorted(NodeSettings.model_fields)
                variable = f" ({PREFIX}{key.upper()})" if source == ENVIRONMENT else ""
                near = difflib.get_close_matches(key, known, 1)
                hint = f", did you mean {near[0]!r}? Known" if near else "; known"
                raise InvalidConfig(f"{source}: unknown setting {key!r}{variable}{hint} are {', '.join(known)}")
            else:
                merged[key] = value
                sources[key] = source
    try:
        return NodeSettings(**merged, broker=broker)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        raise InvalidConfig(f"{sources.get(key, 'settings')}: {key}: {first['msg']}") from None


def _from_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidConfig(f"{path} is not TOML: {error}") from None
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{path} is not TOML, which is UTF-8: byte {error.start} is not") from None


def is_service_link(name: str, value: str) -> bool:
    """Whether a variable is one that Kubernetes makes for a Service, rather than somebody's mistake for a setting: of
    `TIDELOG_PORT` the value tells."""
    words = name.split("_")
    if words[-1] == "PORT" and _SERVICE_URL.match(value):
        return True
    return any(_SERVICE_LINK.fullmatch("_".join(words[at:])) for at in range(1, len(words)))


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """TIDELOG_DATA_DIR and so on; a broker config's dots become underscores: TIDELOG_BROKER_log_retention_ms is written
    TIDELOG_BROKER__LOG_RETENTION_MS."""
    found: dict[str, Any] = {}
    broker: dict[str, str] = {}
    for name, value in environ.items():
        if not name.startswith(PREFIX) or name in OTHERS or is_service_link(name, value):
            continue
        key = name[len(PREFIX) :]
        if key.startswith("BROKER__"):
            broker[key[len("BROKER__") :].lower().replace("_", ".")] = value
        else:
            found[key.lower()] = value
    return {**found, "broker": broker} if broker else found


def _flat(values: Mapping[str, Any], under: str = "") -> dict[str, str]:
    """Kafka's names, also where TOML took the dots of an unquoted one for tables within tables."""
    found: dict[str, str] = {}
    for key, value in values.items():
        name = f"{under}{key}"
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{name}."))
        else:
            found[name] = _text(value)
    return found


def _text(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(_text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
