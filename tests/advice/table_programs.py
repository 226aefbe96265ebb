"""Rows of the table of advice (`table.py`) for programs and command lines."""

from __future__ import annotations

from tests.advice.rows import GATEWAY, LIBRARIES, REQUESTS, SDK, SERVICERS, SPARK, WORDS, row

# --- requests, programs, command lines --------------------------------------------------------------------------------

REQUEST_ROWS = (
    row(
        "ask ListOffsets where the log (begins|ends)|is below log start …; read from there",
        REQUESTS + "a_client_out_of_range_asks_for_the_first_or_last_offset",
    ),
    row("or use -1 for it", REQUESTS + "records_are_deleted_up_to_the_high_watermark"),
    row(
        "leave it null for an idempotent producer",
        REQUESTS + "without_a_transactional_id_a_producer_is_idempotent",
    ),
    row("a newer instance holds epoch …: stop this one", REQUESTS + "the_older_of_two_instances_of_a_producer_stops"),
    row(
        "send (smaller batches|larger blocks|one batch per partition|exactly one)|use a client of Kafka 0.11|"
        "use none, gzip, snappy, lz4 or zstd|is not allowed here; use another",
        REQUESTS + "a_refused_batch_is_accepted_when_sent_as_advised",
        GATEWAY + "test_hot_parse.py::test_refused_batches_are_answered_in_request_order",
    ),
    row(
        "refresh (the )?metadata$",
        REQUESTS + "a_client_with_an_old_leader_epoch_refreshes_metadata",
        REQUESTS + "a_reader_of_a_recreated_topic_refreshes_metadata",
        GATEWAY + "handlers/test_fetch.py::test_a_session_learns_the_name_of_an_id_when_the_topic_is_there",
    ),
    row(
        "split it into smaller requests$|send smaller requests$",
        REQUESTS + "a_change_that_is_too_large_must_be_split",
        GATEWAY + "test_long_requests.py::test_more_rows_than_one_request_may_have_are_refused_by_name",
        SERVICERS + "test_bounds.py::test_many_rows_are_worked_on_some_at_a_time",
        SERVICERS + "test_records.py::test_more_records_than_a_request_holds_are_sent_in_parts",
    ),
    row(
        "use version 12",
        GATEWAY + "handlers/test_metadata.py::test_a_topic_without_a_name_or_with_an_id_too_early_is_refused",
        GATEWAY + "handlers/test_metadata.py::test_topics_are_described_by_id",
    ),
    row(
        "is a running broker of this cluster; stop it first",
        "tests/service/serve/test_cluster_moves.py::test_a_drained_broker_is_removed_and_comes_back",
    ),
    row(
        "remove those that are gone with `tidelog cluster unregister`",
        "tests/service/metadata/test_registrations.py::test_a_broker_beyond_the_maximum_is_refused_until_one_is_removed",
    ),
    row(
        "give it fewer listeners, or shorter names",
        "tests/service/metadata/test_registrations.py::test_a_registration_is_bounded_in_bytes",
    ),
    row(
        "is stopping; retry in a second",
        "tests/service/metadata/test_registrations.py::test_a_broker_that_is_stopping_is_removed_a_moment_later",
    ),
    row(
        "and stop it again$",
        "tests/service/serve/test_cluster_moves.py::test_a_drained_broker_is_removed_and_comes_back",
    ),
    row("start it with --store$", REQUESTS + "a_node_without_a_store_is_started_with_one"),
    row(
        "read it with Kafka's protocol, or continue after it",
        SERVICERS + "test_bounds.py::test_a_batch_that_no_message_holds_is_an_error_in_its_place",
    ),
    row(
        "share one among your producers",
        SERVICERS + "test_bounds.py::test_beyond_a_bound_calls_are_refused_at_once_and_retriably",
        SDK + "test_blocking.py::test_threads_share_a_producer",
    ),
    row(
        "name a node's gRPC listener, by default port 9093",
        SDK + "test_preflight.py::test_the_other_ports_of_a_node_are_named_and_the_remedy_works",
    ),
    row(
        "no node answers at …",
        SDK + "test_preflight.py::test_a_port_without_a_listener_is_named_at_once",
        SDK + "test_preflight.py::test_the_grpc_listener_of_a_node_passes",
    ),
    row(
        "create it with `create_topic`",
        SDK + "test_wrong_input.py::test_a_missing_topic_is_created_as_the_error_advises",
    ),
    row("read batches through Log", SERVICERS + "test_records.py::test_too_many_reads_are_refused"),
    row("read them in several calls", SERVICERS + "test_records.py::test_many_partitions_are_read_in_several_calls"),
    row(
        "set `idempotent` too",
        SERVICERS + "test_streams.py::test_a_malformed_stream_is_refused",
        SERVICERS + "test_streams.py::test_a_resumed_stream_keeps_its_identity_and_drops_duplicates",
    ),
    row(
        "open a stream without a token",
        SERVICERS + "test_streams.py::test_a_token_that_this_cluster_never_gave_is_refused",
        SERVICERS + "test_streams.py::test_a_resumed_stream_keeps_its_identity_and_drops_duplicates",
    ),
    row(
        "ask for all of a group's offsets, or for those of some topics",
        SERVICERS + "test_groups.py::test_requests_that_the_contract_cannot_hold_are_refused",
    ),
    row(
        "ask for all topics, or for some by name or id",
        SERVICERS + "test_bad_input.py::test_a_wrong_call_ends_with_status_and_detail",
        "tests/conformance/test_contract.py::test_topics_and_partitions_are_described_as_they_are_now",
    ),
    row("encode it first", LIBRARIES + "the_arguments_that_the_sdk_advises_are_accepted"),
    row(
        "^give cluster_id$|^choose one by the option clusterId$|^name one$",
        SPARK + "test_bucket.py::test_several_clusters_are_listed",
        LIBRARIES + "among_several_clusters_the_named_one_is_read",
    ),
    row("start within them, or seal the topic first", LIBRARIES + "records_outside_the_bucket_are_sealed_first"),
    row("the producer is closed; make another", LIBRARIES + "the_arguments_that_the_sdk_advises_are_accepted"),
    row(
        "choose that, or idempotent=False|say which, as tzinfo",
        LIBRARIES + "the_arguments_that_the_sdk_advises_are_accepted",
    ),
)

_SETTINGS = "tests/service/settings/test_node_settings.py::test_"

WORD_ROWS = (
    row(
        "^name one topic, or give --cluster for all|^give (one of )?--|write beginning, end, an offset|leave --quick out|"
        "omit --key-separator|^name the topic, or give --json|give --from an offset between them|"
        "correct its bucket or prefix|is not an address: write HOST:PORT|start one with `tidelog serve`|"
        "^…: write KEY=VALUE|name a partition's directory|write address:count",
        WORDS + "the_advised_words_of_a_command_are_accepted",
    ),
    row(
        "^no Kafka listener: …; give a node's Kafka listener",
        "tests/service/cli/test_listener.py::test_a_nodes_other_listeners_are_named",
    ),
    row(r"write the table \[", "tests/service/cli/test_profiles.py::test_a_profile_is_added_as_the_error_advises"),
    row("give its HTTP address with --http", WORDS + "top_accepts_the_advised_http_address"),
    row(
        "choose another (--|address in --listeners)|Set it when the node starts|^--set …: write|^write HOST:PORT|write NAME://|"
        "^--new-cluster begins .*give one of them|give its --store|write …:PLAINTEXT|add …:PLAINTEXT|"
        "write … in advertised.listeners|add it(?: there)?, or take it out",
        WORDS + "the_advised_options_start_a_node",
        LIBRARIES + "a_restore_goes_to_an_empty_directory",
    ),
    row(
        r"^name the variable …BROKER__…$|^put it into the table \[broker\]$",
        _SETTINGS + "a_broker_config_beside_the_settings_is_answered_with_its_place",
        _SETTINGS + "a_variable_of_a_broker_config_is_answered_with_the_name_that_it_needs",
    ),
    row(
        r"^write (listeners|\{0\}before|node.id)",
        WORDS + "the_replacement_of_a_removed_broker_config_is_accepted",
        WORDS + "the_replacement_of_a_removed_topic_config_is_accepted",
    ),
    row(
        "^write metadata.version through",
        GATEWAY + "handlers/test_cluster.py::test_a_feature_can_be_set_to_its_current_level",
    ),
    row(
        r"pip install ",
        "tests/service/cli/test_main.py::test_without_the_server_distribution_the_command_names_it",
        SPARK + "test_package.py::test_missing_extras_are_named_with_the_command",
        LIBRARIES + "extras_that_messages_name_exist",
    ),
)

SPARK_ROWS = (
    row(
        "with pushdown, call load\\(\\) again for each query",
        SPARK + "test_spark.py::test_a_pruned_plan_is_for_one_query",
    ),
    row(
        "^(name (the topics|each topic) with the option|no broker is needed; name)",
        SPARK + "test_options.py::test_unknown_options_are_named_with_the_known_ones",
        SPARK + "test_options.py::test_options_have_no_case",
    ),
    row(
        "read a bucket or a directory",
        SPARK + "test_options.py::test_wrong_options_are_refused",
        SPARK + "test_options.py::test_options_have_their_defaults",
    ),
    row(
        "give … as option\\(|are given; give one of them",
        SPARK + "test_options.py::test_a_path_as_an_address_gets_a_hint_to_its_option",
        SPARK + "test_options.py::test_wrong_options_are_refused",
    ),
    row("start there, or at -2", SPARK + "test_reading.py::test_a_start_below_log_start_reads_from_log_start"),
    row(
        "wait until it is offloaded",
        SPARK + "test_reading.py::test_offsets_that_are_not_offloaded_yet_are_read_once_they_are",
    ),
    row("give a commit for each", SPARK + "test_tables.py::test_each_partition_has_its_own_commits"),
    row(
        "Run the query again",
        SPARK + "test_reading.py::test_a_range_swept_since_the_plan_is_an_error",
        SPARK + "test_reading.py::test_a_range_rewritten_and_swept_since_the_plan_is_an_error",
    ),
    row("choose offsets, times and columns", SPARK + "test_tables.py::test_chosen_columns_of_a_range_are_read"),
    row(
        "set it to the brokers' store",
        "tests/lambdas/test_verify_commit.py::test_the_error_names_the_missing_settings",
        "tests/lambdas/test_verify_commit.py::test_each_commit_triggers_a_check_of_its_segments",
    ),
    row(
        "connect the function to the queue",
        "tests/lambdas/test_verify_commit.py::test_an_event_that_is_not_a_batch_names_the_fault",
        "tests/lambdas/test_verify_commit.py::test_each_commit_triggers_a_check_of_its_segments",
        "tests/lambdas/test_package.py::test_a_commit_wakes_the_handler",
    ),
)

_GROUP = "tests/service/cli/client/test_group.py::test_"
_CONSUME_GROUP = "tests/service/cli/client/test_consume_group.py::test_"

_KAFKAS_OPTION = "tests/service/cli/test_main.py::test_an_option_of_kafkas_tools_is_answered_with_the_words_for_it"
_WITH_A_NODE = "tests/service/cli/client/test_with_a_node.py::test_"

_METADATA = "tests/service/metadata/"
_CLUSTER_STORE = "tests/service/serve/test_cluster_store.py::test_"
_MOVES = "tests/service/serve/test_moves.py::"
_PLAN = "tests/service/supervisor/test_plan.py::test_"
_BROKERS = "tests/service/controller/test_brokers.py::test_"
_DRAINED = "tests/service/serve/test_cluster_moves.py::test_a_drained_broker_holds_nothing_and_gets_its_share_back"
_MOVE_COMMANDS = "tests/service/cli/client/test_cluster_moves.py::test_"

CLUSTER_ROWS = (
    row(
        "ask for a replication factor of 1",
        _METADATA + "test_planner.py::test_a_partition_has_one_replica_whatever_is_asked_for_or_configured",
    ),
    row("name one broker", _MOVES + "test_a_partition_moves_to_one_broker"),
    row(
        "set remote.storage.enable=true and",
        _MOVES + "test_a_topic_that_is_not_tiered_moves_once_it_is",
        _MOVE_COMMANDS + "partitions_that_cannot_move_are_named",
    ),
    row(
        "stop it, or choose another node.id",
        _METADATA
        + "test_registrations.py::test_the_same_disk_registers_at_once_and_another_one_only_for_a_dead_broker",
    ),
    row(
        "send one of `commands.proto`|upgrade the controller before its brokers",
        _METADATA + "test_command_codec.py::test_other_bytes_are_refused",
        _METADATA + "test_command_codec.py::test_commands_and_results_survive_a_round_trip_through_bytes",
    ),
    row(
        "give its --controller-listener as --controller|give --roles broker, or leave one of them out|"
        "a controller is in the process of a broker",
        "tests/service/settings/test_derived.py::test_roles_are_those_of_the_node",
        "tests/service/settings/test_derived.py::test_other_roles_are_refused",
    ),
    row(
        "give --controller, or --controller-listener for its own|give them there, and only --controller here",
        "tests/service/settings/test_derived.py::test_a_broker_has_one_controller_which_begins_its_cluster",
    ),
    row(
        "repair them through that node",
        _CLUSTER_STORE + "files_of_the_cluster_are_repaired_through_the_controllers_node",
    ),
    row(
        "give the controller's --store here, too",
        _CLUSTER_STORE + "a_broker_without_the_store_of_its_cluster_is_refused",
    ),
    row("retry to see it", _BROKERS + "a_broker_that_learns_late_of_its_change_returns_a_retriable_error"),
    row("a heartbeat stream belongs to one registration", _BROKERS + "a_heartbeat_stream_belongs_to_one_registration"),
    row(
        "give the broker the address of its own controller",
        _BROKERS + "a_broker_finds_its_own_controller_after_another_ones_refusal",
    ),
    row(
        "or choose other ports: every broker has its own ports",
        _PLAN + "a_port_of_a_brokers_own_that_is_taken_is_named",
    ),
    row("choose lower ports, or start fewer --brokers", _PLAN + "a_port_beyond_the_last_is_refused"),
    row(
        "leaves it out; start with --brokers|start with the --node-id that the first broker had",
        _PLAN + "fewer_brokers_than_hold_partitions_are_refused",
        "tests/service/serve/test_brokers_of_one_command.py::test_a_stop_ends_all_and_a_start_finds_all",
        _DRAINED,
    ),
    row(
        "^use --to BROKER, or --cancel$",
        _MOVE_COMMANDS + "arguments_that_name_nothing_are_refused",
        _MOVE_COMMANDS + "moves_in_progress_are_cancelled",
    ),
    row(
        "^stop broker … before new partitions are created there$",
        _MOVE_COMMANDS + "a_drained_broker_is_to_be_stopped",
        _DRAINED,
    ),
    row(
        "start it, then drain it$|start another broker first$",
        _MOVE_COMMANDS + "a_broker_that_cannot_be_drained_is_named_with_the_reason",
    ),
    row(
        "^… cannot move without a leader; start broker …",
        _MOVE_COMMANDS + "partitions_that_cannot_move_are_named",
    ),
    row("for brokers; stop the process using it, or choose another address", _BROKERS + "a_taken_address_is_named"),
    row(
        "is not registered with this controller; start it again|start the controller with its newest directory",
        _METADATA + "test_registrations.py::test_another_registration_is_refused",
    ),
    row(
        "runs without the disk of its partitions; start it with its first --data-dir",
        "tests/service/serve/test_cluster.py::test_a_broker_with_an_empty_disk_leads_nothing_of_the_lost_one",
        "tests/service/cli/client/test_cluster_status.py"
        "::test_a_ready_broker_whose_partitions_have_no_leader_runs_without_their_disk",
    ),
    row(
        "is not a controller's listener; give",
        _BROKERS + "another_listener_of_the_controllers_node_is_named",
    ),
    row(
        "the node with the cluster's controller does not answer",
        "tests/service/cli/test_kafka_errors.py::test_a_controller_that_is_away_is_named",
    ),
)
KAFKA_OPTION_ROWS = (
    row("^write --to ", _KAFKAS_OPTION, _GROUP + "every_position_is_one_to_continue_from"),
    row(
        "^write --from beginning|^choose the output with",
        _KAFKAS_OPTION,
        _WITH_A_NODE + "consume_begins_at_the_given_position",
        _WITH_A_NODE + "json_shows_everything_of_a_record",
    ),
    row("^write --config NAME=VALUE$", _WITH_A_NODE + "alter_sets_and_deletes_configs_and_adds_partitions"),
    row(
        "^write the name after the command, without an option|^leave it out: (members|offsets|the state)",
        _KAFKAS_OPTION,
        _GROUP + "members_are_shown_and_keep_their_offsets",
    ),
    row(
        "^leave it out: nothing is changed without --execute",
        _KAFKAS_OPTION,
        _GROUP + "without_execute_nothing_is_changed",
    ),
    row(
        "^leave it out: nothing is changed without --apply",
        _KAFKAS_OPTION,
        "tests/service/cli/test_cold_repair.py::test_a_manifest_that_was_lost_is_committed_again",
    ),
)
GROUP_COMMAND_ROWS = (
    row("name one of --to, --shift-by", _GROUP + "every_position_is_one_to_continue_from"),
    row(
        "name the partitions: either|name the partitions with --topic|write TOPIC, or TOPIC:0,2",
        _GROUP + "every_position_is_one_to_continue_from",
        _GROUP + "scopes_and_files_are_read",
        _MOVE_COMMANDS + "arguments_that_name_nothing_are_refused",
    ),
    row(
        "leave --topic and --all-topics out|write lines of TOPIC,PARTITION,OFFSET",
        _GROUP + "offsets_are_moved_by_a_number_of_records_or_kept_or_read_from_a_file",
    ),
    row(
        "has committed no offset of …; use --to",
        _GROUP + "offsets_are_moved_by_a_number_of_records_or_kept_or_read_from_a_file",
    ),
    row(
        "leave --partition out|leave --to out, or use --exit-at-end|the name of the group is empty",
        _CONSUME_GROUP + "words_that_a_group_contradicts_are_refused",
        _CONSUME_GROUP + "the_next_run_resumes_where_the_last_one_ended",
    ),
    row(
        "use `tidelog group reset-offsets` to move the group",
        _CONSUME_GROUP + "the_option_from_applies_to_partitions_without_a_committed_offset",
    ),
    row("…: write one of …", _GROUP + "groups_are_listed_by_state_and_type"),
    row(
        "Run it again with --execute",
        _GROUP + "without_execute_nothing_is_changed",
        _MOVE_COMMANDS + "without_execute_nothing_is_moved",
    ),
    row("stop the members first", _GROUP + "members_are_shown_and_keep_their_offsets"),
    row("leave the header line out", _GROUP + "wrong_files_are_explained"),
    row(
        "accepts only records with keys",
        "tests/service/cli/client/test_with_a_node.py::test_a_compacted_topic_that_refuses_a_record_without_a_key_says_so",
    ),
)

_TXN = "tests/service/cli/client/test_txn.py::test_"

_TRANSACTIONAL = SDK + "test_transactional.py::test_"

TRANSACTION_ROWS = (
    row(
        "set auto_commit_s=None",
        _TRANSACTIONAL + "wrong_use_is_explained",
        _TRANSACTIONAL + "a_copy_loop_copies_each_record_once",
    ),
    row(
        "leave idempotent=False out",
        _TRANSACTIONAL + "wrong_use_is_explained",
        _TRANSACTIONAL + "records_of_a_block_are_read_once_it_is_committed",
    ),
    row("create a new producer", _TRANSACTIONAL + "a_producer_that_was_fenced_learns_it_and_commits_nothing"),
    row(
        "begin another with `transaction",
        _TRANSACTIONAL + "wrong_use_is_explained",
        _TRANSACTIONAL + "records_of_a_block_are_read_once_it_is_committed",
    ),
    row(
        "take both from InitProducer",
        SERVICERS + "test_transactions.py::test_a_producer_that_kafka_cannot_name_is_refused",
    ),
    row("write 90s or 1h30m", _TXN + "filters_choose_by_state_producer_age_and_name", _TXN + "durations_are_read"),
    row("is not a state of a transaction; write one of", _TXN + "filters_choose_by_state_producer_age_and_name"),
    row("--partition needs a topic; name it with --topic", _TXN + "a_hanging_transaction_is_found_and_ended"),
    row(
        "name a transactional id, or a hanging transaction",
        _TXN + "an_open_transaction_is_listed_described_and_aborted",
        _TXN + "a_hanging_transaction_is_found_and_ended",
    ),
)

_PERF = "tests/service/cli/client/test_perf.py::test_"

PERF_COMMAND_ROWS = (
    row("give this run an id of its own with --transactional-id", _PERF + "a_transactional_id_in_use_is_named"),
    row("transactions need --acks all; leave the option out", _PERF + "wrong_words_are_refused"),
    row("raise --timeout, or lower --records", _PERF + "too_few_records_are_a_failure_with_figures"),
)
