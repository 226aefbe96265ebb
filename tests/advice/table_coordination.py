"""Rows of the table of advice (`table.py`) for members of groups and transactional producers."""

from __future__ import annotations

from tests.advice.rows import row

_BOUNDS = "tests/service/coordination/groups/test_bounds.py::test_"
_ADVICE = "tests/service/coordination/test_advice.py::test_"
_HANDLERS = "tests/kafka_gateway/handlers/"
_LARGE = "tests/service/coordination/test_large_records.py::test_"
_RUNTIME = "tests/service/coordination/test_runtime.py::test_"

COORDINATION_ROWS = (
    row(
        "give each process its own group.instance.id",
        _ADVICE + "processes_with_instance_ids_of_their_own_are_all_members",
    ),
    row("the group id is empty; set group.id", _ADVICE + "a_member_that_sets_its_group_id_joins"),
    row(
        "session.timeout.ms is …; set it to",
        _ADVICE + "a_session_timeout_within_the_bounds_or_other_bounds_let_a_member_join",
    ),
    row("raise group.max.size or start fewer", _ADVICE + "a_larger_bound_or_fewer_members_make_room"),
    row(
        "Set partition.assignment.strategy",
        _ADVICE + "an_assignment_strategy_that_all_members_have_lets_a_member_join",
    ),
    row(
        "set partition.assignment.strategy to fewer",
        _BOUNDS + "a_member_of_fewer_protocols_joins",
    ),
    row(
        "start fewer, or raise max.message.bytes",
        _BOUNDS + "subscriptions_that_cannot_be_recorded_are_refused_until_the_bound_is_raised_or_a_member_leaves",
    ),
    row(
        "start fewer members, or raise max.message.bytes",
        _ADVICE + "a_group_whose_record_did_not_fit_is_recorded_with_a_larger_bound_or_fewer_members",
    ),
    row(
        "the commit makes a record of … bytes, more than …; raise max.message.bytes",
        _LARGE + "a_commit_that_no_record_holds_is_refused_as_a_whole",
    ),
    row(
        "removing it, or an offset, takes a record of … bytes, more than …; raise max.message.bytes",
        _LARGE + "offsets_and_groups_whose_tombstones_do_not_fit_stay_until_they_do",
    ),
    row(
        "use fewer partitions in one transaction, or raise max.message.bytes",
        _LARGE + "a_transaction_that_no_record_holds_leaves_the_shard_as_it_is",
        _LARGE + "a_transaction_that_is_open_while_the_bound_falls_ends_once_it_rises",
    ),
    row(
        "lowering its offset of … takes a record of … bytes, more than …; raise max.message.bytes",
        _LARGE + "an_offset_is_lowered_once_its_record_fits",
    ),
    row(
        "completing its transaction takes a record of … bytes, more than …; raise max.message.bytes",
        _LARGE + "a_decided_transaction_is_completed_once_its_record_fits",
        _LARGE + "a_completion_that_does_not_fit_is_logged_and_leaves_the_shard_as_it_is",
    ),
    row("has … members; stop them first", _ADVICE + "a_group_whose_members_have_stopped_is_deleted"),
    row(
        "whose topics are not known; stop them first|is subscribed to …; stop its members first",
        _ADVICE + "offsets_of_a_group_whose_members_have_stopped_are_deleted",
    ),
    row(
        "commit as one of them, or stop them first",
        _ADVICE + "a_commit_counts_as_a_member_or_once_the_members_have_stopped",
    ),
    row(
        "find the coordinator again",
        _RUNTIME + "requests_that_wait_end_when_the_node_loses_the_partition",
        _RUNTIME + "a_failed_write_drops_the_shard_and_loads_the_log",
    ),
    row(
        "ask for 0 \\(group\\) or 1",
        _HANDLERS + "test_find_coordinator.py::test_a_coordinator_is_found_at_its_listener",
    ),
    row(
        "needs the protocol's type and its name; send both",
        _HANDLERS + "test_groups.py::test_a_sync_that_names_the_protocols_type_and_name_is_accepted",
    ),
    row(
        "transaction.timeout.ms is …; set it to",
        _ADVICE + "a_timeout_within_the_bound_or_a_larger_bound_lets_a_producer_begin",
    ),
    row("call InitProducerId again", _ADVICE + "a_producer_whose_id_expired_begins_again"),
    row(
        "because a newer producer uses the id; stop this one",
        _ADVICE + "once_the_older_producer_has_stopped_the_newer_one_continues",
    ),
    row(
        "abort and begin again",
        _ADVICE + "a_transaction_with_a_partition_that_was_not_added_is_aborted_and_the_next_one_has_it",
    ),
)
