"""Settings that contradict each other are refused before anything is created."""

from __future__ import annotations

import pytest

from service.settings.derived import check, roles_of
from service.settings.node_settings import NodeSettings
from storage_tiers.errors import InvalidConfig

HERE, THERE = "127.0.0.1:9095", "127.0.0.1:9195"


def test_a_broker_has_one_controller_which_begins_its_cluster() -> None:
    with pytest.raises(InvalidConfig, match="a broker has one controller: give --controller, or --controller-listener"):
        check(NodeSettings(controller=THERE, controller_listener=HERE, store="none"))
    for given in ({"controller": THERE}, {"controller_listener": HERE}):
        check(NodeSettings(**given))  # type: ignore[arg-type]
        check(NodeSettings(store="none", **given))  # type: ignore[arg-type]
    for begins in ({"new_cluster": True}, {"take_over": "AAAAAAAAAAAAAAAAAAAAAA"}):
        with pytest.raises(InvalidConfig, match="only --controller here"):
            check(NodeSettings(controller=THERE, **begins))
        check(NodeSettings(controller_listener=HERE, **begins))
    check(NodeSettings())


def test_roles_are_those_of_the_node() -> None:
    with pytest.raises(InvalidConfig, match="give its --controller-listener as --controller"):
        check(NodeSettings(roles="broker"))
    with pytest.raises(InvalidConfig, match="give --roles broker, or leave one of them out"):
        check(NodeSettings(roles="broker,controller", controller=THERE))
    for fits in (
        NodeSettings(roles="broker", controller=THERE),
        NodeSettings(controller=THERE),
        NodeSettings(roles="controller, broker"),
        NodeSettings(roles="broker,controller", controller_listener=HERE),
    ):
        check(fits)
        assert roles_of(fits) == ("broker" if fits.controller else "broker,controller")
        assert fits.roles in (None, roles_of(fits))


@pytest.mark.parametrize("roles", ["controller", "", "broker,broker", "leader"])
def test_other_roles_are_refused(roles: str) -> None:
    with pytest.raises(
        ValueError, match="write broker or broker,controller: a controller is in the process of a broker"
    ):
        NodeSettings(roles=roles)


@pytest.mark.parametrize("name", ["controller", "controller_listener"])
def test_addresses_of_controllers_have_a_port(name: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        NodeSettings(**{name: "nowhere"})  # type: ignore[arg-type]
