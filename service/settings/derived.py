"""A node's listeners, store and cache directory, derived from its settings alone."""

from __future__ import annotations

import os

from service.configs.listeners import Listeners, parse_listeners
from service.configs.resolve import check_static
from service.settings.node_settings import BROKER, BROKER_AND_CONTROLLER, NO_STORE, NodeSettings
from storage_tiers.clock import Clock, Rng
from storage_tiers.cold.process.client import TierClient
from storage_tiers.cold.process.launcher import TierLauncher
from storage_tiers.cold.stores.location import StoreLocation
from storage_tiers.errors import InvalidConfig, StoreRefused

CACHE_FOLDER = "cache"


def check(settings: NodeSettings) -> None:
    """Checks the settings before anything is created on disk. Raises InvalidConfig with the name of the wrong setting."""
    check_static(settings.broker)
    listeners_of(settings)
    if settings.new_cluster and settings.take_over is not None:
        raise InvalidConfig("--new-cluster begins a cluster, --take-over continues one: give one of them")
    if settings.take_over is not None and settings.store == NO_STORE:
        raise InvalidConfig("--take-over builds the node from the store: give its --store")
    if settings.store != NO_STORE:
        _location(settings)
    _check_cluster(settings)


def _check_cluster(settings: NodeSettings) -> None:
    """Refuses settings that contradict each other about the controller's node."""
    if settings.controller is not None and settings.controller_listener is not None:
        raise InvalidConfig("a broker has one controller: give --controller, or --controller-listener for its own")
    if settings.roles == BROKER and settings.controller is None:
        raise InvalidConfig(
            "--roles broker needs a controller on another node: give its --controller-listener as --controller"
        )
    if settings.roles == BROKER_AND_CONTROLLER and settings.controller is not None:
        raise InvalidConfig(
            "a node with --controller has the role broker: give --roles broker, or leave one of them out"
        )
    if settings.controller is not None and (settings.new_cluster or settings.take_over is not None):
        raise InvalidConfig(
            "--new-cluster and --take-over are for the node with the controller: give them there, and only --controller here"
        )


def roles_of(settings: NodeSettings) -> str:
    """The node's roles, as Kafka's `process.roles` names them."""
    return BROKER if settings.controller is not None else BROKER_AND_CONTROLLER


def share(settings: NodeSettings, whole: int, least: int = 1) -> int:
    """This broker's share of a limit for the whole machine, but at least `least`."""
    return whole if settings.supervised is None else max(least, whole // settings.supervised.brokers)


def cache_directory_of(settings: NodeSettings) -> str:
    return os.path.join(os.path.abspath(settings.data_dir), CACHE_FOLDER)


def tier_client(settings: NodeSettings, launcher: TierLauncher | None, clock: Clock, rng: Rng) -> TierClient | None:
    if settings.store == NO_STORE:
        return None
    return TierClient(_location(settings), cache_directory_of(settings), clock=clock, rng=rng, launcher=launcher)


def check_store_is_there(settings: NodeSettings) -> None:
    """Raises StoreRefused if the store is a missing directory. A starting node would create the directory, but for a command
    that reads the store, the path must be wrong."""
    location = _location(settings)
    if location.scheme == "file" and not os.path.isdir(location.path):
        raise StoreRefused(f"there is no directory {os.path.abspath(location.path)}: mount it, or correct --store")


def other_clock(settings: NodeSettings) -> bool:
    """Whether the store has a clock other than this machine's."""
    return settings.store != NO_STORE and _location(settings).elsewhere


def _location(settings: NodeSettings) -> StoreLocation:
    return StoreLocation.parse(settings.store, endpoint=settings.s3_endpoint, region=settings.s3_region)


def listener_configs(settings: NodeSettings) -> dict[str, str]:
    """The listener configs as written, for DescribeConfigs."""
    given = {
        "listeners": settings.listeners,
        "advertised.listeners": settings.advertised_listeners,
        "listener.security.protocol.map": settings.listener_security_protocol_map,
    }
    return {name: text for name, text in given.items() if text is not None}


def listeners_of(settings: NodeSettings) -> Listeners:
    """The listeners of the settings, with unresolved ports. Raises InvalidConfig if they are wrong."""
    return parse_listeners(settings.listeners, settings.advertised_listeners, settings.listener_security_protocol_map)
