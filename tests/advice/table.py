"""The table of all advice: every sentence in the product that tells somebody to do something, and the tests that follow it.

A row has a pattern for texts in the source (`messages.py`; placeholders are `…`) and tests that do what those texts say, on
real parts: the advice works, and no acknowledged record is lost. One row may cover several texts if the same tests follow them
all. Plain validation has tables of its own: refused words, the message, accepted words.

`RETRIED` matches texts that only say to retry, which clients do on their own. One test asserts that each of them is an error
that clients retry; the tests in its row show that a retry succeeds and leaves no duplicate.

`NO_ADVICE` matches texts that have the grammar of advice but are none, with the reason.
"""

from __future__ import annotations

from tests.advice.rows import BROKER, FAULTS, GATEWAY, REQUESTS, SDK, SERVICERS, TIER, row
from tests.advice.table_coordination import COORDINATION_ROWS
from tests.advice.table_keeping import DIRECTORY_ROWS, STORE_ROWS
from tests.advice.table_programs import (
    CLUSTER_ROWS,
    GROUP_COMMAND_ROWS,
    KAFKA_OPTION_ROWS,
    PERF_COMMAND_ROWS,
    REQUEST_ROWS,
    SPARK_ROWS,
    TRANSACTION_ROWS,
    WORD_ROWS,
)

ROWS = (
    *COORDINATION_ROWS,
    *DIRECTORY_ROWS,
    *STORE_ROWS,
    *REQUEST_ROWS,
    *CLUSTER_ROWS,
    *GROUP_COMMAND_ROWS,
    *KAFKA_OPTION_ROWS,
    *TRANSACTION_ROWS,
    *PERF_COMMAND_ROWS,
    *WORD_ROWS,
    *SPARK_ROWS,
)

# --- advice to retry --------------------------------------------------------------------------------------------------
_ASK_AGAIN = (
    TIER + "test_under_fire.py::test_no_gap_and_no_repeat_whatever_is_swept_evicted_or_lost",
    TIER + "test_under_fire.py::test_a_full_disk_makes_reads_retry_and_the_cache_small",
    TIER + "test_tier_process.py::test_a_process_that_is_killed_in_the_middle_of_work_is_replaced",
    TIER + "test_tier_process.py::test_a_commit_is_completed_after_a_kill_in_its_middle",
    TIER + "test_tier_process.py::test_a_process_that_hangs_is_killed_and_replaced_within_seconds",
    TIER + "test_tier_life.py::test_a_lost_process_fails_open_questions_and_restarts_with_back_off",
    FAULTS + "test_hung_tier_process.py::test_a_lookup_by_time_fails_at_its_deadline_and_succeeds_when_retried",
    FAULTS + "test_disk_full_metadata.py::test_a_full_disk_refuses_changes_and_allows_reads_until_space_returns",
    BROKER + "background/test_tiering.py::test_deleting_records_before_the_store_was_asked_may_be_repeated",
    BROKER + "api/test_repair_sound.py::test_segments_needed_by_a_repair_are_not_evicted_during_it",
    BROKER + "background/test_tiering.py::test_segments_that_may_be_offloaded_are_not_called_deleted",
    BROKER + "partition/test_waiting.py::test_an_append_that_is_discarded_for_the_buckets_history_is_refused",
    BROKER + "appending/test_append_queues.py::test_the_queue_is_bounded",
    REQUESTS + "requests_that_need_the_store_succeed_when_retried",
    GATEWAY + "test_server.py::test_a_request_that_the_core_gives_up_is_answered",
    SERVICERS + "test_bounds.py::test_beyond_a_bound_calls_are_refused_at_once_and_retriably",
    SDK + "test_failures.py::test_transient_errors_are_retried_in_order",
    "tests/service/directory/test_beginning.py::test_an_empty_directory_waits_for_an_unreachable_store",
)
RETRIED = row(
    "^(?!refresh metadata).*((ask|send|try) (it )?again( later)?|retry( later)?|ask (later|another)|send again later)\n?$",
    *_ASK_AGAIN,
)

#: (pattern, reason).
NO_ADVICE: tuple[tuple[str, str], ...] = (
    (
        r"^(abort the upload of|begin the upload of|complete the upload of|find|load|"
        r"flush|load|list uploads of|upload part|read|write|list|delete|upload|open|add|raise) "
        r"(…|by time|the bucket|objects|the store|… of …|… objects|log starts|partitions|transaction|lag)$",
        "the name of a piece of work, as in 'cannot …', or of a column",
    ),
    (
        "^SET BY$|^%.asctime|; read …$| or empty string$",
        "a heading, a form, the end of a line of numbers, a kind of value",
    ),
    (
        "^upload (… began|under way)|copied or put back|REGEX without repeats",
        "nouns and participles that look like imperatives",
    ),
    (
        "^Cannot update these configs|^Topic deletion is disabled|^Add voter request",
        "a sentence of Kafka's, which its clients know",
    ),
    (
        "^refresh metadata, ask again|^a newer owner exists|^stored bytes are damaged",
        "what a kind of error means (`Advice`), shown to nobody",
    ),
    ("failed in the tier process: …; see its log", "says where more is written"),
)
