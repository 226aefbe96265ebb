"""Errors on gRPC's wire: each has a name and a status that fits its advice, and decodes to the same error."""

from __future__ import annotations

import grpc
import pytest

from grpc_api.contract import coordinator_errors
from grpc_api.messages.errors import DETAILS_KEY, TABLE, detail_in, detail_of, error_of, retriable, trailing_metadata
from grpc_api.proto.errors_pb2 import ErrorDetail, Status
from kafka_gateway.errors import CODES
from storage_tiers import errors
from storage_tiers.errors import Advice, LogError

ALL_ERRORS = [
    error
    for error in {**vars(errors), **vars(coordinator_errors)}.values()
    if isinstance(error, type) and issubclass(error, LogError)
]


def test_every_error_is_in_the_table_under_the_gateways_name() -> None:
    assert {kind: meaning.kafka for kind, meaning in TABLE.items()} == {kind: CODES[kind].name for kind in ALL_ERRORS}


@pytest.mark.parametrize("error", ALL_ERRORS, ids=lambda error: error.__name__)
def test_every_error_has_a_status_that_fits_its_advice(error: type[LogError]) -> None:
    code = TABLE[error].status

    retried_by_clients = code is grpc.StatusCode.UNAVAILABLE
    assert not retried_by_clients or error.advice is Advice.RETRY
    assert code not in (grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
    assert (code is grpc.StatusCode.DATA_LOSS) == (error.advice is Advice.PAGE)


@pytest.mark.parametrize("error", ALL_ERRORS, ids=lambda error: error.__name__)
def test_every_error_comes_back_as_itself(error: type[LogError]) -> None:
    detail = detail_in(trailing_metadata(error("the reason, and what to do")))

    assert detail is not None
    back = error_of(detail)
    assert (type(back), str(back)) == (error, "the reason, and what to do")
    assert detail.retriable == retriable(back) == (error.advice in (Advice.RETRY, Advice.REDIRECT))


def test_the_detail_has_the_key_and_form_of_rich_grpc_errors() -> None:
    ((key, value),) = trailing_metadata(errors.NotLeader("moved"))

    status = Status.FromString(value)
    assert key == DETAILS_KEY == "grpc-status-details-bin"
    assert (status.code, status.message) == (grpc.StatusCode.ABORTED.value[0], "moved")
    (packed,) = status.details
    detail = ErrorDetail()
    assert packed.Unpack(detail)
    assert (detail.kafka_error, detail.reason, detail.retriable) == ("NOT_LEADER_OR_FOLLOWER", "NotLeader", True)


def test_a_reason_of_a_newer_node_is_still_an_error_with_its_sentence() -> None:
    newer = detail_of(errors.NotLeader("moved"))
    newer.reason = "SomethingNew"

    back = error_of(newer)

    assert type(back) is LogError
    assert str(back) == "NOT_LEADER_OR_FOLLOWER: moved"


@pytest.mark.parametrize("named", ["x" * 1_000_000, "ж" * 10_000, "\ud800" * 5000])
def test_a_sentence_that_quotes_much_is_cut_and_its_ends_stay(named: str) -> None:
    error = errors.InvalidTopic(f"begins {named} ends")
    ((_, value),) = trailing_metadata(error)

    assert len(value) < 3000
    detail = detail_in([(DETAILS_KEY, value)])
    assert detail is not None
    assert detail.message.startswith("begins ") and " … " in detail.message and detail.message.endswith(" ends")


@pytest.mark.parametrize("kind", [errors.InvalidRecord, errors.InvalidTimestamp])
def test_the_records_to_blame_come_back(kind: type[errors.InvalidRecord | errors.InvalidTimestamp]) -> None:
    faults = [errors.RecordFault(3, "no key"), errors.RecordFault(5, "none either")]

    back = error_of(detail_of(kind("refused", faults)))

    assert isinstance(back, kind) and back.faults == faults
