"""Every request to a coordinator, reads included, names its caller for authorization, in process and over a channel."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf.message_factory import GetMessageClass

from grpc_api.contract import groups, transactions
from grpc_api.contract.caller import Caller
from grpc_api.proto import groups_pb2, transactions_pb2
from grpc_api.remote_groups import RemoteGroups
from grpc_api.remote_transactions import RemoteTransactions
from grpc_api.servicers.groups import CoreGroups
from grpc_api.servicers.transactions import CoreTransactions
from storage_tiers.errors import LogError

CALLER = Caller("User:ANONYMOUS", "app", "/10.1.2.3")
PRODUCER = transactions.ProducerIdAndEpoch(1, 0)
#: The arguments of each call before the caller.
GROUPS: dict[str, tuple[Any, ...]] = {
    "coordinator": ("g",),
    "join": (groups.JoinGroup("g", "", None, "consumer", [], 1, 1, False),),
    "sync": (groups.SyncGroup("g", 1, "m", None, []),),
    "heartbeat": (groups.Heartbeat("g", 1, "m", None),),
    "leave": (groups.LeaveGroup("g", []),),
    "commit_offsets": (groups.OffsetCommit("g", -1, "", None, []),),
    "commit_offsets_in_transaction": (
        groups.TxnOffsetCommit("g", transactions.ProducerTransaction("x"), 1, 0, -1, "", None, []),
    ),
    "fetch_offsets": (groups.OffsetFetch("g", None),),
    "delete_offsets": (groups.OffsetDelete("g", []),),
    "list_groups": (groups.ListGroups(),),
    "describe_group": (groups.DescribeGroup("g"),),
    "delete_group": (groups.DeleteGroup("g"),),
    "lower_offsets": (groups.LowerOffsets([], {}),),
}
TRANSACTIONS: dict[str, tuple[Any, ...]] = {
    "coordinator": ("x",),
    "init_producer": (transactions.InitProducer("x", 1),),
    "add_partitions": (transactions.AddPartitions("x", PRODUCER, []),),
    "add_offsets": (transactions.AddOffsets("x", PRODUCER, "g"),),
    "end": (transactions.EndTransaction("x", PRODUCER, commit=True),),
    "write_markers": (transactions.Markers("", PRODUCER, True, [], 0), 0),
    "list": (transactions.ListTransactions(),),
    "describe": ("x",),
}
CALLS = [(groups.Groups, RemoteGroups, name, asked) for name, asked in GROUPS.items()] + [
    (transactions.Transactions, RemoteTransactions, name, asked) for name, asked in TRANSACTIONS.items()
]


class Recorder:
    """Keeps the arguments of the last call of any of its methods, and refuses the call."""

    def __init__(self) -> None:
        self.asked: tuple[Any, ...] = ()

    def __getattr__(self, name: str) -> Any:
        def record(*asked: Any, **_: Any) -> None:
            self.asked = asked
            raise LogError("recorded")

        return record


def calls_of(contract: type) -> dict[str, inspect.Signature]:
    found = inspect.getmembers(contract, inspect.isfunction)
    return {name: inspect.signature(each) for name, each in found if not name.startswith("_")}


def rpcs() -> Iterator[Any]:
    for module, servicer, core in (
        (groups_pb2, CoreGroups, "groups"),
        (transactions_pb2, CoreTransactions, "transactions"),
    ):
        (service,) = module.DESCRIPTOR.services_by_name.values()
        for method in service.methods:
            yield pytest.param(servicer, core, method, id=f"{service.name}.{method.name}")


@pytest.mark.parametrize("contract", [groups.Groups, transactions.Transactions])
def test_every_call_of_a_contract_has_a_caller(contract: type) -> None:
    calls = calls_of(contract)
    assert calls.keys() == (GROUPS if contract is groups.Groups else TRANSACTIONS).keys()
    assert [name for name, signature in calls.items() if list(signature.parameters)[-1] != "caller"] == []


@pytest.mark.parametrize(("contract", "remote", "name", "asked"), CALLS, ids=lambda value: str(value)[:30])
async def test_a_remote_call_names_its_caller(contract: type, remote: Any, name: str, asked: tuple[Any, ...]) -> None:
    adapter, recorder = remote(SimpleNamespace(address="node", channel=_Channel())), Recorder()
    adapter._stub = recorder
    with pytest.raises(LogError, match="recorded"):
        await asyncio.ensure_future(getattr(adapter, name)(*asked, CALLER))
    (message,) = recorder.asked
    assert (message.caller.client_id, message.caller.host) == (CALLER.client_id, CALLER.host)


@pytest.mark.parametrize(("servicer", "part", "method"), list(rpcs()))
async def test_a_servicer_hands_the_caller_on(servicer: Any, part: str, method: Any) -> None:
    request: Any = GetMessageClass(method.input_type)()
    request.caller.client_id, request.caller.host = CALLER.client_id, CALLER.host
    if "transactional_id" in request.DESCRIPTOR.fields_by_name:
        request.transactional_id = "x"
    recorder = Recorder()
    bounds = SimpleNamespace(joining=lambda: _Nothing(), lowering=lambda: _Nothing())
    context = SimpleNamespace(peer_name="ipv4:127.0.0.1:5", bounds=bounds)
    with pytest.raises(LogError, match="recorded"):
        await getattr(servicer(SimpleNamespace(**{part: recorder})), method.name)(request, context)
    assert recorder.asked[-1] == CALLER


class _Channel:
    """Stands for a channel that no call uses."""

    def unary_unary(self, *_: Any, **__: Any) -> None: ...

    unary_stream = stream_unary = stream_stream = unary_unary


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...
