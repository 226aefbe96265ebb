"""Errors of librdkafka as sentences for an operator."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from service.cli.errors import NodeUnreachable
from service.cli.kafka import explain


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError._TRANSPORT])
def test_a_controller_that_is_away_is_named(code: int) -> None:
    error = KafkaError(code, "Failed while waiting for controller: Local: Timed out")
    found = explain("127.0.0.1:9192", error, "cannot describe the cluster")
    assert isinstance(found, NodeUnreachable)
    assert "the node with the cluster's controller does not answer" in str(found)


def test_another_silent_node_may_have_another_port() -> None:
    error = KafkaError(KafkaError._TIMED_OUT, "Local: Timed out")
    assert "is that its Kafka port?" in str(explain("127.0.0.1:9192", error, "cannot describe the cluster"))
