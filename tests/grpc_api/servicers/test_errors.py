from __future__ import annotations

import grpc
import pytest

from grpc_api.servicers.errors import BY_ADVICE, status_code, trailing_metadata
from storage_tiers import errors
from storage_tiers.errors import Advice, LogError

ALL_ERRORS = [error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, LogError)]


def test_every_advice_has_a_code_of_its_own() -> None:
    assert set(BY_ADVICE) == set(Advice)
    assert len(set(BY_ADVICE.values())) == len(Advice)


@pytest.mark.parametrize("error", ALL_ERRORS, ids=lambda error: error.__name__)
def test_every_error_has_a_status_that_fits_its_advice(error: type[LogError]) -> None:
    code = status_code(error("why"))

    retried_by_clients = code is grpc.StatusCode.UNAVAILABLE
    assert not retried_by_clients or error.advice is Advice.RETRY
    assert code not in (grpc.StatusCode.OK, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)


def test_metadata_names_the_error_and_its_advice() -> None:
    assert trailing_metadata(errors.NotLeader("moved")) == (
        ("tidelog-error", "NotLeader"),
        ("tidelog-advice", "REDIRECT"),
    )
