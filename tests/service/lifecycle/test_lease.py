"""A broker appends for the length of a session after its last contact with the controller."""

from __future__ import annotations

import pytest

from service.lifecycle.lease import FOREVER, Lease
from storage_tiers.errors import NotLeader


def test_a_lease_ends_a_session_after_the_last_heartbeat_was_sent() -> None:
    lease = Lease(0)
    with pytest.raises(NotLeader, match="this broker was paused"):
        lease.check(0)
    lease.touched(1000, 9000)
    lease.check(9999)
    with pytest.raises(NotLeader):
        lease.check(10_000)
    lease.touched(500, 9000)  # the answer to an earlier heartbeat
    assert lease.until_ms == 10_000


def test_a_node_with_its_own_controller_leads_for_ever() -> None:
    lease = Lease()
    lease.check(FOREVER - 1)
