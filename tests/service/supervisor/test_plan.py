"""The settings of each broker of a machine (ids, ports, directories, controller) and the arguments that pass them on."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from service.cli.main import app
from service.settings.derived import check
from service.settings.node_settings import NodeSettings, Supervision, load_settings
from service.supervisor.addresses import bootstrap_sockets, check_free, held_address
from service.supervisor.held import check_none_left_out
from service.supervisor.plan import BrokerPlan, Machine, plan
from service.supervisor.words import words_of
from storage_tiers.errors import InvalidConfig
from tests.support.ports import free_port

CONTROLLER = "127.0.0.1:40000"


def planned(brokers: int, ports: dict[str, int] | None = None, **given: Any) -> list[BrokerPlan]:
    return plan(NodeSettings(**given), brokers, Machine("box", CONTROLLER, ports or {"PLAINTEXT": 9092}))


def ports_of(plans: list[BrokerPlan]) -> list[tuple[str, str, str]]:
    return [(each.settings.listeners, each.settings.grpc_listener, each.settings.http_listener) for each in plans]


def test_brokers_have_ids_ports_and_directories_of_their_own() -> None:
    plans = planned(3, node_id=5)
    assert [each.broker_id for each in plans] == [5, 6, 7]
    assert [each.settings.node_id for each in plans] == [5, 6, 7]
    assert [str(each.settings.data_dir) for each in plans] == [
        "data/node",
        "data/node/brokers/6",
        "data/node/brokers/7",
    ]
    assert ports_of(plans) == [
        ("PLAINTEXT://127.0.0.1:9095", "127.0.0.1:9093", "127.0.0.1:9096"),
        ("PLAINTEXT://127.0.0.1:9097", "127.0.0.1:9098", "127.0.0.1:9099"),
        ("PLAINTEXT://127.0.0.1:9100", "127.0.0.1:9101", "127.0.0.1:9102"),
    ]
    assert {each.settings.brokers for each in plans} == {1}


def test_the_first_broker_checks_the_roles_of_the_node() -> None:
    """The check of the first broker's settings refuses the roles; the checks of the others pass."""
    for roles, controller in (("broker", None), ("broker,controller", "10.0.0.1:9095")):
        first, second = planned(2, roles=roles, controller=controller)
        with pytest.raises(InvalidConfig, match="--roles broker"):
            check(first.settings)
        check(second.settings)
    for plans in (planned(2, roles="broker", controller="10.0.0.1:9095"), planned(2, roles="broker,controller")):
        for each in plans:
            check(each.settings)


def test_a_further_broker_changes_no_other_brokers_ports() -> None:
    assert ports_of(planned(4))[:2] == ports_of(planned(2))


def test_port_0_stays_0_for_every_broker() -> None:
    given: dict[str, Any] = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "grpc_listener": "127.0.0.1:0",
        "http_listener": ":0",
    }
    plans = planned(2, {"PLAINTEXT": 50000}, **given)
    assert ports_of(plans) == [("PLAINTEXT://127.0.0.1:0", "127.0.0.1:0", ":0")] * 2


def test_a_port_beyond_the_last_is_refused() -> None:
    assert [each.settings.http_listener for each in planned(2, http_listener=":65533")] == [":65534", ":65535"]
    with pytest.raises(InvalidConfig, match="no port is left after 65535"):
        planned(2, http_listener=":65535")


def test_the_advertised_port_is_as_far_from_the_given_one_as_the_bound_one() -> None:
    given: dict[str, Any] = {
        "listeners": "IN://127.0.0.1:9092,OUT://:9192",
        "advertised_listeners": "IN://127.0.0.1:9092,OUT://example.org:19192",
        "listener_security_protocol_map": "IN:PLAINTEXT,OUT:PLAINTEXT",
    }
    plans = planned(2, {"IN": 9092, "OUT": 9192}, **given)
    assert [each.settings.advertised_listeners for each in plans] == [
        "IN://127.0.0.1:9095,OUT://example.org:19193",
        "IN://127.0.0.1:9097,OUT://example.org:19194",
    ]
    assert [each.settings.listeners for each in plans] == [
        "IN://127.0.0.1:9095,OUT://:9193",
        "IN://127.0.0.1:9097,OUT://:9194",
    ]


def test_the_first_broker_has_the_controller() -> None:
    plans = planned(3)
    assert [each.goes_first for each in plans] == [True, False, False]
    assert [each.settings.controller_listener for each in plans] == [CONTROLLER, None, None]
    assert [each.settings.controller for each in plans] == [None, CONTROLLER, CONTROLLER]


def test_all_brokers_may_have_another_machines_controller() -> None:
    plans = planned(2, controller="there:9095")
    assert [(each.goes_first, each.settings.controller) for each in plans] == [(False, "there:9095")] * 2


def test_the_first_broker_alone_begins_or_takes_over_a_cluster() -> None:
    plans = planned(2, take_over="abc", verify=True, store="s3://here/x")
    assert [(each.settings.take_over, each.settings.verify) for each in plans] == [("abc", True), (None, False)]
    assert [each.settings.store for each in plans] == ["s3://here/x"] * 2


def test_the_rack_is_the_machine_unless_it_is_set() -> None:
    assert [each.settings.broker["broker.rack"] for each in planned(2)] == ["box", "box"]
    assert planned(1, broker={"broker.rack": "b"})[0].settings.broker["broker.rack"] == "b"


@pytest.mark.parametrize("broker", range(3))
def test_a_brokers_arguments_are_read_back_into_its_settings(broker: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line reads a broker's arguments back into the settings that they were made from."""
    given: dict[str, Any] = {
        "new_cluster": True,
        "log_format": "json",
        "s3_region": "eu",
        "broker": {"log.retention.ms": "7"},
    }
    settings = planned(3, **given)[broker].settings
    settings = settings.model_copy(update={"supervised": Supervision(pid=7, brokers=3, sockets={"PLAINTEXT": 5})})
    seen: list[NodeSettings] = []

    def run(read: NodeSettings) -> int:
        seen.append(read)
        return 0

    monkeypatch.setattr("service.cli.serve.start", run)
    ran = CliRunner().invoke(app, ["serve", *words_of(settings)])
    assert ran.exit_code == 0, ran.output
    assert seen == [settings]


def test_brokers_is_a_number_or_auto() -> None:
    assert load_settings({"brokers": "auto"}, environ={}).brokers == "auto"
    assert load_settings({}, environ={"TIDELOG_BROKERS": "4"}).brokers == 4
    for wrong in ("0", "-1", "many"):
        with pytest.raises(InvalidConfig, match="brokers"):
            load_settings({"brokers": wrong}, environ={})


# --- brokers that would be left out -----------------------------------------------------------------------------------
def test_fewer_brokers_than_hold_partitions_are_refused(tmp_path: Path) -> None:
    settings = NodeSettings(data_dir=tmp_path)
    check_none_left_out(settings, 1)
    (tmp_path / "brokers" / "2").mkdir(parents=True)
    (tmp_path / "brokers" / "3" / "orders-0").mkdir(parents=True)
    check_none_left_out(settings, 3)
    said = (
        r"broker 3 holds partitions in .*/brokers/3.* start with --brokers 3; .* `tidelog cluster drain 3 --execute`$"
    )
    for fewer in (1, 2):
        with pytest.raises(InvalidConfig, match=said):
            check_none_left_out(settings, fewer)
    with pytest.raises(InvalidConfig, match="start with the --node-id that the first broker had"):
        check_none_left_out(NodeSettings(data_dir=tmp_path, node_id=4), 2)
    (tmp_path / "brokers" / "3" / "orders-0").rmdir()
    check_none_left_out(settings, 1)


def test_a_single_broker_does_not_leave_others_out_either(tmp_path: Path) -> None:
    (tmp_path / "brokers" / "2" / "orders-0").mkdir(parents=True)
    ran = CliRunner().invoke(app, ["serve", "--data-dir", str(tmp_path), "--store", "none"])
    assert ran.exit_code == 1
    assert "start with --brokers 2" in ran.output


# --- sockets ----------------------------------------------------------------------------------------------------------
def test_a_port_of_a_brokers_own_that_is_taken_is_named() -> None:
    port = free_port()
    given: dict[str, Any] = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "grpc_listener": "127.0.0.1:0",
        "http_listener": "127.0.0.1:0",
    }
    plans = planned(2, {"PLAINTEXT": port}, **given)
    own = int(plans[1].settings.listeners.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", own)):
        with pytest.raises(InvalidConfig, match=f"broker 2 cannot listen on 127.0.0.1:{own}: .*or choose other ports"):
            check_free(plans)
        other = {**given, "listeners": f"PLAINTEXT://127.0.0.1:{port + 10}"}
        check_free(planned(2, {"PLAINTEXT": port + 10}, **other))
    check_free(plans)


def test_a_taken_bootstrap_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = NodeSettings(listeners=f"PLAINTEXT://127.0.0.1:{port}")
        said = rf"cannot listen on PLAINTEXT://127.0.0.1:{port} for Kafka's clients: .* another address in --listeners"
        with pytest.raises(InvalidConfig, match=said), bootstrap_sockets(settings):
            pass


def test_the_controllers_port_stays_this_nodes() -> None:
    """A broker of this node can listen on the port, and a process that asks for a free port does not get it."""
    with held_address(NodeSettings()) as address:
        assert re.fullmatch(r"127\.0\.0\.1:\d+", address)
        port = int(address.rpartition(":")[2])
        with socket.create_server(("127.0.0.1", port)):
            pass
        with socket.create_server(("127.0.0.1", port)):
            pass
    with held_address(NodeSettings(controller_listener="127.0.0.1:9095")) as address:
        assert address == "127.0.0.1:9095"
