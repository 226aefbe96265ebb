"""The node's own settings, read once. The order of precedence is flag, TIDELOG_* variable, `--config` file (TOML), default.

Kafka's broker configs are not attributes here. `service.configs` defines them, and `broker` maps their names to text. This is
the only module of a node that reads the environment.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from service.configs.broker_keys import BROKER_KEYS
from service.configs.listeners import host_and_port
from storage_tiers.errors import InvalidConfig
from storage_tiers.events import Form

PREFIX = "TIDELOG_"
ENVIRONMENT = "the environment"
#: The variables of tidelog's other programs that a shell may export: the client commands, the Lambda handlers, the fault tests.
OTHERS = frozenset({"TIDELOG_BOOTSTRAP_SERVER", "TIDELOG_PROFILE", "TIDELOG_READER", "TIDELOG_FAULT_SEED"})
#: Kubernetes sets variables named after each Service of a pod's namespace. The variables of a Service `tidelog` or `tidelog-…`
#: have tidelog's prefix, so no setting may have such a name.
_SERVICE_LINK = re.compile(r"(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SERVICE_URL = re.compile(r"(tcp|udp|sctp)://", re.IGNORECASE)


#: The value of `--store` for a node without a store. The size of its disk limits its history.
NO_STORE = "none"
#: The roles of a broker whose controller is on another node, and of a broker that has the controller.
BROKER, BROKER_AND_CONTROLLER = "broker", "broker,controller"


class Supervision(BaseModel):
    """The settings that a supervisor, the process `pid`, passes to a broker that it starts. The broker is one of `brokers` on
    this machine, which share the resources of one node. It also accepts connections from `sockets`, which are inherited
    descriptors by listener name. `tier_listener` is the inherited descriptor of the tier process that the brokers share, None
    without a store."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pid: int
    brokers: int = Field(ge=1)
    sockets: Mapping[str, int] = Field(default_factory=dict)
    tier_listener: int | None = None


class NodeSettings(BaseModel):
    """The settings of a node. `load_settings` reads them and raises InvalidConfig.

    `store` is a directory, an S3 URL, or `none`. `listeners` and the two settings after it are Kafka's configs of these names
    (`service.configs.listeners`). The gRPC and HTTP listeners are HOST:PORT; port 0 means a free port. `roles` protects against
    a forgotten `controller`: if set, it must be BROKER with a `controller`, and BROKER_AND_CONTROLLER without. `controller` is
    the address of another node's `controller_listener`; this node is then a broker of that cluster. With `new_cluster`, an
    empty directory may start a new cluster even if the store has others. `take_over` is the id of the cluster to take over;
    with `verify`, the bucket is checked first. If `brokers` is above one, a supervisor starts the brokers and passes
    `supervised` to each; `auto` means one broker per core. `broker` holds Kafka's broker configs by name."""

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
    roles: str | None = None
    controller: str | None = None
    controller_listener: str | None = None
    new_cluster: bool = False
    take_over: str | None = None
    verify: bool = False
    brokers: Annotated[int, Field(ge=1)] | Literal["auto"] = 1
    supervised: Supervision | None = None
    log_level: str = "INFO"
    log_format: Form = "text"
    broker: Mapping[str, str] = Field(default_factory=dict)

    @field_validator("listeners", "advertised_listeners", "listener_security_protocol_map", "roles", mode="before")
    @classmethod
    def _joined(cls, value: Any) -> Any:
        """Joins a TOML list with commas, as Kafka writes lists."""
        return _text(value) if isinstance(value, list) else value

    @field_validator("grpc_listener", "http_listener", "controller", "controller_listener")
    @classmethod
    def _host_and_port(cls, value: str | None) -> str | None:
        if value is not None:
            host_and_port(value)
        return value

    @field_validator("roles")
    @classmethod
    def _roles(cls, value: str | None) -> str | None:
        """The roles in Kafka's order, as `process.roles` shows them."""
        if value is None:
            return None
        given = ",".join(sorted(role.strip() for role in value.split(",")))
        if given not in (BROKER, BROKER_AND_CONTROLLER):
            raise ValueError(f"write {BROKER} or {BROKER_AND_CONTROLLER}: a controller is in the process of a broker")
        return given

    @field_validator("supervised", mode="before")
    @classmethod
    def _supervised(cls, value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value

    @field_validator("log_level")
    @classmethod
    def _level(cls, value: str) -> str:
        if value.upper() not in {"DEBUG", "INFO", "WARNING", "ERROR"}:
            raise ValueError("one of DEBUG, INFO, WARNING, ERROR")
        return value.upper()


def load_settings(
    flags: Mapping[str, Any], *, config_file: Path | None = None, environ: Mapping[str, str] | None = None
) -> NodeSettings:
    """Merges the four sources. A flag with the value None was not given. Raises InvalidConfig with the source and the key."""
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
                raise _unknown(source, key, value)
            else:
                merged[key] = value
                sources[key] = source
    try:
        return NodeSettings(**merged, broker=broker)
    except ValidationError as error:
        first = error.errors()[0]
        key = str(first["loc"][0])
        raise InvalidConfig(f"{sources.get(key, 'settings')}: {key}: {first['msg']}") from None


def _unknown(source: str, key: str, value: Any) -> InvalidConfig:
    """The error about an unknown setting of one source. It says whether the name is a broker config or a mistyped setting."""
    is_variable = source == ENVIRONMENT
    dotted = key.replace("_", ".") if is_variable else next(iter(_flat({key: value})), key)
    known = sorted(
        name for name in NodeSettings.model_fields if name != "supervised"
    )  # the supervisor alone passes that one
    variable = f" ({PREFIX}{key.upper()})" if is_variable else ""
    if BROKER_KEYS.find(dotted) is not None and _underscored(key, value) not in known:
        place = f"name the variable {PREFIX}BROKER__{key.upper()}" if is_variable else "put it into the table [broker]"
        return InvalidConfig(
            f"{source}: {dotted!r}{variable} is a broker config and not a setting of the node: {place}"
        )
    near = difflib.get_close_matches(_underscored(key, value), known, 1)
    hint = f", did you mean {near[0]!r}? Known" if near else "; known"
    return InvalidConfig(f"{source}: unknown setting {key!r}{variable}{hint} are {', '.join(known)}")


def environment_of_children() -> dict[str, str]:
    """This process's environment without the variables that are settings, because child processes get their settings as
    options."""
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX) or name in OTHERS}


def _underscored(key: str, value: Any) -> str:
    """The setting's name for a dotted name, which TOML reads as nested tables: `listener_security_protocol_map` for
    `listener.security.protocol.map`."""
    while isinstance(value, dict) and len(value) == 1:
        ((inner, value),) = value.items()
        key = f"{key}.{inner}"
    return key.replace(".", "_")


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
    """Whether the variable is one that Kubernetes sets for a Service rather than a mistyped setting. For `TIDELOG_PORT` the
    value decides."""
    words = name.split("_")
    if words[-1] == "PORT" and _SERVICE_URL.match(value):
        return True
    return any(_SERVICE_LINK.fullmatch("_".join(words[at:])) for at in range(1, len(words)))


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Settings from variables such as TIDELOG_DATA_DIR. A broker config has the prefix TIDELOG_BROKER__ and underscores for
    dots: `log.retention.ms` is TIDELOG_BROKER__LOG_RETENTION_MS."""
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
    """The configs by Kafka's names, even if TOML has parsed the dots of an unquoted name as nested tables."""
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
