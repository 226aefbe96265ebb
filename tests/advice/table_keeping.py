"""Rows of the table of advice (`table.py`) for operators of a node and its store."""

from __future__ import annotations

from tests.advice.rows import (
    BROKER,
    COLD,
    DAMAGE,
    DIRECTORY,
    FAULTS,
    HOT,
    LIBRARIES,
    REPAIR,
    REQUESTS,
    STORE,
    TIER,
    WORDS,
    row,
)

CLEANING = "tests/storage_tiers/compaction/test_cleaning.py::"

# --- the data directory and its disk ----------------------------------------------------------------------------------
_DISK_FULL = (
    FAULTS + "test_disk_full.py::test_appends_are_refused_and_reads_continue_until_space_returns",
    FAULTS + "test_disk_full.py::test_metadata_and_checkpoints_are_refused_whole",
    FAULTS + "test_disk_full_hot.py::test_truncation_eviction_and_restart_need_no_space",
)
_DISK_MENDED = (
    HOT + "test_short_of_resources.py::test_a_transient_refusal_is_retried",
    BROKER + "fetching/test_fetching.py::test_a_disk_that_cannot_be_read_costs_its_partition_alone",
    BROKER + "background/test_flusher.py::test_a_transient_error_does_not_refuse_writes_until_the_restart",
)
_STOP_THIS_NODE = (
    FAULTS + "test_two_nodes.py::test_the_copy_that_runs_second_is_refused",
    FAULTS + "test_two_nodes.py::test_once_the_copy_has_committed_the_original_cannot",
    "tests/service/takeover/test_takeover.py::test_a_lost_disk_comes_back_from_the_bucket_and_the_old_node_is_fenced",
    "tests/service/takeover/test_takeover.py::test_an_older_copy_of_a_lost_directory_names_the_way_to_continue_the_cluster",
)
_PUT_BACK = (
    BROKER
    + "background/test_store_backwards.py::test_partitions_lead_and_the_store_is_not_written_to_until_it_is_put_back",
    STORE + "another_store_is_corrected",
)
_FSYNC_FAILED = (
    BROKER + "background/test_flusher.py::test_a_failed_fsync_is_final_until_the_next_start",
    HOT + "test_failed_fsync.py::test_records_flushed_after_the_restart_are_on_disk",
)

_OLDER_CONTROLLER = "tests/service/serve/test_older_controller.py::test_"

DIRECTORY_ROWS = (
    row(
        "another process uses …; stop it",
        FAULTS + "test_two_nodes.py::test_a_second_process_on_the_same_directory_is_refused",
    ),
    row(
        "restore it from a copy: it names cluster, node and disk",
        DIRECTORY + "a_damaged_identity_is_restored_from_a_copy",
    ),
    row(
        "give the --store that the node had",
        "tests/service/directory/test_beginning.py::test_a_node_with_offloaded_records_does_not_start_without_a_store",
    ),
    row("use the right --data-dir", DIRECTORY + "another_nodes_directory_is_left_alone_and_the_right_one_serves"),
    row(
        "^Restore the file from a copy of this data directory",
        DIRECTORY + "a_damaged_metadata_log_is_restored_from_a_copy",
        DIRECTORY + "damaged_metadata_are_set_aside_and_rebuilt_from_the_store",
    ),
    row(
        "the metadata log is lost; restore it from a copy, or rebuild it from the store",
        BROKER + "partition/test_damaged_files.py::test_an_emptied_metadata_log_sets_no_partition_aside",
        DIRECTORY + "a_lost_metadata_log_is_rebuilt_from_the_store_and_partitions_stay",
        DIRECTORY + "the_error_of_a_lost_metadata_log_says_how_to_keep_partitions",
    ),
    row(
        "start with --take-over CLUSTER_ID: it restores the topics",
        "tests/service/directory/test_beginning.py::test_an_empty_directory_is_refused_beside_a_cluster",
        "tests/service/directory/test_beginning.py::test_the_new_cluster_option_starts_a_cluster_and_may_stay_on_the_command_line",
        "tests/service/takeover/test_takeover.py::test_a_lost_disk_comes_back_from_the_bucket_and_the_old_node_is_fenced",
    ),
    row("start it with the --store of that take-over", DIRECTORY + "a_take_over_that_began_is_finished_with_its_store"),
    row("belongs to cluster … already: give an empty --data-dir", LIBRARIES + "a_restore_goes_to_an_empty_directory"),
    row(
        "nothing else names the topic of these records; restore it from a copy|write the two lines `version: 0`",
        BROKER + "partition/test_damaged_files.py::test_an_unrecoverable_topic_id_holds_back_only_its_partition",
    ),
    row("has …; move it away", DIRECTORY + "another_topics_directory_in_the_way_is_moved_and_stays_whole"),
    row("remove it by hand", DIRECTORY + "a_deleted_topics_directory_that_cannot_be_removed_is_removed_by_hand"),
    row(
        "leave it there: a starting node rebuilds it",
        BROKER + "partition/test_epoch_history.py::test_records_stay_where_the_epoch_history_is_lost",
        BROKER
        + "partition/test_epoch_history.py::test_a_damaged_history_of_a_log_without_a_bucket_is_read_from_its_batches",
    ),
    row("Keep this file and the segments beside it", DAMAGE + "a_file_that_fsck_says_to_keep_shows_what_is_missing"),
    row(
        "Keep it, and restart the node, which rebuilds it from the batches",
        HOT + "test_recovery.py::test_a_damaged_transaction_index_is_rebuilt",
    ),
    row(
        "^look at it with `tidelog log dump|ends before offset …; put the file back|see `tidelog log dump …`",
        DAMAGE + "local_damage_is_shown_by_a_dump_and_mended_by_a_copy",
    ),
    row(
        "put the file back from a copy…$",
        DIRECTORY + "a_damaged_batch_is_put_back_from_a_copy",
        BROKER + "background/test_tiering.py::test_bytes_damaged_by_the_disk_do_not_get_a_good_checksum",
    ),
    row(
        "^, or delete the records below offset … to continue without them",
        BROKER + "background/test_tiering.py::test_bytes_damaged_by_the_disk_do_not_get_a_good_checksum",
        COLD + "test_sidecar.py::test_the_error_of_a_damaged_header_advises_no_deletion",
    ),
    row(
        "it is not uploaded; put the file back from a copy",
        STORE + "a_file_that_changed_before_it_was_uploaded_is_put_back",
    ),
    row(
        "cannot swap segments .*repair or replace the disk, then restart the node",
        CLEANING + "test_a_swap_that_the_disk_refuses_is_completed_by_the_next_start",
    ),
    row(
        "more keys than the cleaner's map.*raise log.cleaner.dedupe.buffer.size",
        CLEANING + "test_a_batch_of_more_keys_than_the_map_holds_names_the_config",
    ),
    row("no sound record batch .*put it back from a copy", CLEANING + "test_damage_is_not_rewritten"),
    row(
        "^… is damaged .*; put it back from a copy$",
        CLEANING + "test_a_damaged_decision_is_named_and_put_back_from_a_copy",
    ),
    row(
        "the cleaner process ended; see its last lines",
        BROKER + "background/cleaner/test_cleaning.py::test_a_cleaner_that_dies_is_started_again",
    ),
    row("fsync failed .*repair or replace the disk, then restart the node", *_FSYNC_FAILED),
    row(
        "an fsync of the log in … failed, .*the node tries again",
        HOT + "test_failed_fsync.py::test_a_copy_that_cannot_be_made_is_made_at_the_next_start",
    ),
    row(
        "the node tries again: raise the limit of open files, or repair or replace the disk",
        HOT + "test_short_of_resources.py::test_a_transient_refusal_is_retried",
        FAULTS + "test_descriptors.py::test_the_descriptor_limit_is_raised_and_the_need_is_logged",
    ),
    row(r"(; |, )free space, or repair or replace the disk$", *_DISK_FULL),
    row(r"[^m] \(…\); repair or replace the disk$|^…: …; repair or replace the disk$", *_DISK_MENDED),
    row(
        r"cannot be read to compare them \(…\); repair or replace the disk",
        LIBRARIES + "a_saved_manifest_that_cannot_be_read_is_put_back",
    ),
    row(
        "free space, lower retention, or bring the object store back",
        *_DISK_FULL,
        FAULTS + "test_disk_full.py::test_a_full_disk_still_allows_removals",
        FAULTS + "test_store_trouble.py::test_produce_continues_up_to_the_disk_watermark",
        BROKER + "background/test_tiering.py::test_below_log_start_the_disk_is_freed_while_the_store_is_unreachable",
    ),
    row(
        "free some space, or let the node write there",
        COLD + "test_chunk_file.py::test_an_unwritable_file_is_an_error",
        TIER + "test_read_ahead.py::test_a_full_disk_shrinks_the_cache_and_asks_to_retry",
    ),
    row(
        "cannot apply its metadata .*start it again",
        LIBRARIES + "a_node_that_cannot_apply_its_metadata_is_started_again",
    ),
    row(
        "start the version that wrote it, or newer",
        LIBRARIES + "a_metadata_record_of_a_newer_version_is_applied_by_that_version",
    ),
)

# --- the store --------------------------------------------------------------------------------------------------------
STORE_ROWS = (
    row(
        "holds no cluster …(: it holds …. Name one of those|, nor any other; correct --store)",
        STORE + "the_error_of_an_unknown_cluster_names_the_clusters_of_the_store",
    ),
    row(
        "there is no directory …: mount it, or correct --store",
        "tests/service/offline/test_restore.py::test_a_directory_is_restored_without_serving",
    ),
    row(
        "the program was replaced while the node ran; restart the node",
        TIER + "test_tier_protocol.py::test_a_question_without_a_row_gets_an_error_and_the_process_continues",
    ),
    row(
        "Made by `python -m service.configs.typed`: change the registry instead",
        "tests/service/configs/test_values.py::test_the_module_is_current",
    ),
    row("the bucket went backwards: (cluster|its cluster.json)", *_PUT_BACK),
    row("an older manifest has replaced the newest one. Delete none of its objects", *_PUT_BACK),
    row(
        "the store holds nothing of cluster …, .* Check --store, its prefix, and --s3-endpoint",
        "tests/service/cli/test_cold_repair.py::test_a_store_that_holds_nothing_of_the_cluster_is_not_written_to",
    ),
    row("Stop this (node|one); the (one|node) that started last owns the cluster", *_STOP_THIS_NODE),
    row(
        r"Start the newer directory again\. |^…, …keep this one and start on another, empty --data-dir with --take-over",
        BROKER + "partition/test_copies.py::test_a_copy_that_missed_changes_claims_nothing_and_the_original_continues",
        "tests/service/takeover/test_takeover.py::test_an_older_copy_without_a_topic_says_how_to_continue_the_cluster",
        _OLDER_CONTROLLER + "a_snapshot_in_the_store_ends_an_older_controller_before_it_claims_the_store",
    ),
    row(
        "runs on an older data directory; nothing was changed, retry once it runs on the newest one",
        "tests/service/controller/test_brokers.py::test_metadata_of_a_controller_on_an_older_disk_is_not_followed",
    ),
    row(
        "Start the controller with its newest data directory. If that is lost, take the cluster over from its bucket",
        _OLDER_CONTROLLER + "brokers_end_on_an_older_controller_until_the_newest_one_is_back",
        _OLDER_CONTROLLER + "brokers_that_end_on_an_older_controller_join_the_cluster_that_is_taken_over",
    ),
    row("topic.json of … …, revision … was seen", STORE + "a_topic_file_that_went_backwards_is_put_back"),
    row(
        "choose a prefix of its own for tidelog, or start with --new-cluster",
        STORE + "a_prefix_full_of_other_things_is_left_or_shared",
    ),
    row(
        "or see what `tidelog cold repair …` can prove",
        BROKER
        + "background/test_store_lineage.py::test_a_manifest_that_went_back_between_two_starts_blocks_its_partition",
        BROKER + "background/test_store_lineage.py::test_a_manifest_that_goes_back_while_the_node_runs_is_noticed",
        BROKER + "background/test_store_lineage.py::test_a_manifest_of_another_partition_is_ignored",
        COLD + "test_repair.py::test_a_repair_restores_everything_and_the_partition_continues",
        "tests/service/cli/test_cold_repair.py::test_a_manifest_that_was_lost_is_committed_again",
    ),
    row(
        "the records between them left this disk after the store had shown them",
        f"{BROKER}background/"
        "test_store_lineage.py::test_offsets_that_are_missing_between_bucket_and_log_show_that_the_store_went_back",
    ),
    row(
        "is deleted in the bucket, which is final: nothing more",
        REPAIR + "a_mistaken_deletion_is_undone_by_the_previous_version_of_the_manifest",
        REPAIR + "an_intended_deletion_of_a_manifest_is_followed_by_that_of_its_topic",
    ),
    row(
        "is deleted in the bucket, which is final for a partition|is deleted; delete the topic and create it again",
        REPAIR + "a_mistaken_deletion_is_undone_by_the_previous_version_of_the_manifest",
        REPAIR + "an_intended_deletion_of_a_manifest_is_followed_by_that_of_its_topic",
    ),
    row("none was ever seen here", REPAIR + "the_newest_manifest_is_restored_where_none_was_seen_before"),
    row(
        "Consume these from this node and save them",
        REPAIR + "records_that_a_repair_elsewhere_lacks_are_consumed_and_kept",
    ),
    row("If this node's history is the one to keep", REPAIR + "the_chosen_one_of_two_histories_is_restored"),
    row("there was a newer manifest", REPAIR + "a_newer_manifest_that_was_seen_is_restored"),
    row(
        "It names segments that nothing else names: put it back",
        REPAIR + "objects_of_old_segments_that_are_missing_are_put_back",
    ),
    row(
        "put the object back. Only if no copy of it exists anywhere",
        "tests/service/cli/test_cold_repair.py::test_lost_segments_are_named_and_nothing_changes",
        "tests/service/cli/test_cold_repair.py::test_lost_segments_are_accepted_by_name",
        COLD + "test_accepted_loss.py::test_only_lost_segments_are_accepted",
        REPAIR + "an_object_that_a_pin_keeps_is_put_back",
        "tests/service/cli/test_cold_repair.py::test_missing_objects_of_a_sound_manifest_are_reported",
    ),
    row(
        "which of its transactions were aborted: put the .idx back",
        COLD + "test_lost_sidecar.py::test_an_index_whose_aborted_transactions_nothing_shows_is_put_back",
    ),
    row(
        "put it back, or remove the pin",
        COLD + "test_lost_pinned_sidecar.py::test_no_other_index_is_written_in_place_of_a_pinned_one",
    ),
    row(
        "name another directory in TMPDIR and restart; no manifest was changed",
        COLD + "test_lost_sidecar.py::test_a_full_disk_of_temporary_files_is_named",
    ),
    row(
        "give them up with `tidelog cold repair … --accept-loss …:…-… --apply`",
        BROKER
        + "background/test_lost_moves.py::test_the_partition_continues_at_the_buckets_end_once_the_loss_is_accepted",
    ),
    row("Run this without --accept-loss", COLD + "test_accepted_loss.py::test_without_a_loss_nothing_is_accepted"),
    row(
        "losses are accepted topic by topic: name the topic|write PARTITION:START-END",
        "tests/service/cli/test_cold_repair.py::test_lost_segments_are_accepted_by_name",
    ),
    row(
        "are for a stopped node: give both, or neither|give the stopped node's directory",
        "tests/service/cli/test_cold_repair.py::test_a_stopped_node_is_repaired_by_its_directory",
    ),
    row(
        "see what `tidelog cold repair …` would write",
        BROKER
        + "background/test_files_written_again.py::test_a_topic_file_that_went_backwards_blocks_until_it_is_written_again",
    ),
    row("plan its repair again", COLD + "test_repair.py::test_a_repair_that_meets_another_manifest_changes_nothing"),
    row(
        "Run it again with --apply",
        "tests/service/cli/test_cold_repair.py::test_a_manifest_that_was_lost_is_committed_again",
    ),
    row(
        "nothing says that this id was deleted or replaced",
        "tests/service/takeover/test_steps.py::test_a_live_topic_with_a_missing_or_older_file_is_not_deleted",
    ),
    row(
        "correct --store or the cluster id, or put the file back", STORE + "a_cluster_file_that_is_missing_is_put_back"
    ),
    row(
        "stop that one and begin again on another, empty --data-dir",
        STORE + "the_intended_one_of_two_take_overs_is_repeated",
    ),
    row("the bucket mixes states of different times", STORE + "a_bucket_with_objects_of_different_moments_is_put_back"),
    row("Move this object out of the prefix", STORE + "a_damaged_snapshot_is_moved_out_and_the_previous_one_is_used"),
    row(
        "were committed after that: the manifest is gone",
        "tests/service/takeover/test_steps.py::test_a_manifest_that_is_gone_or_older_is_not_taken_over",
    ),
    row(
        "was checked and is not sound",
        "tests/service/offline/test_restore.py::test_a_directory_is_restored_without_serving",
    ),
    row(
        "shorten its retention if those records may be deleted",
        STORE + "a_full_manifest_accepts_segments_after_retention_is_shortened",
    ),
    row(": upgrade( it)?$", STORE + "files_of_a_newer_version_are_readable_after_the_upgrade"),
    row(
        "has a pin named|pins, the maximum; remove one",
        STORE + "names_of_pins_are_free_again_once_they_are_removed",
    ),
    row(
        "drop those that are gone",
        LIBRARIES + "tombstoned_keys_that_are_gone_make_room",
        COLD + "test_partition_tier.py::test_more_orphans_than_one_commit_may_tombstone_are_all_swept",
    ),
    row("upload under a new uuid", LIBRARIES + "a_segment_is_offloaded_again_under_a_new_name"),
    row("is not deleted in the bucket; delete it first", STORE + "objects_to_be_swept_are_deleted_first"),
    row(
        "(r|R)un `tidelog fsck`",
        DAMAGE + "damage_is_found_where_the_error_says_to_look",
        DAMAGE + "a_manifest_that_is_gone_is_found_where_the_error_says_to_look",
    ),
    row(
        "correct the store's URL$",
        WORDS + "the_advised_words_of_a_command_are_accepted",
        LIBRARIES + "a_bucket_that_is_missing_is_created",
    ),
    row("give this user the right to", LIBRARIES + "a_directory_is_readable_after_access_is_granted"),
    row(
        "^correct the store's settings$|^allow s3:ListBucket|check AWS_|this machine's clock is wrong; set it|"
        "the bucket is in another region; set that region|Check the store's URL",
        COLD + "stores/test_s3.py::test_denied_access_is_refused_with_advice",
        LIBRARIES + "a_request_refused_by_s3_succeeds_after_the_correction",
        COLD + "stores/test_s3.py::test_wrong_keys_are_refused_by_a_real_server",
        COLD + "stores/test_s3.py::test_missing_credentials_are_refused_with_advice",
    ),
    row(
        "use a store that answers as S3 does",
        "tests/service/serve/test_store_without_etags.py::test_a_store_without_etags_is_refused_at_the_probe",
    ),
    row(
        "Use a store with conditional writes",
        COLD + "stores/test_probe.py::test_a_store_that_ignores_conditions_is_refused",
        COLD + "stores/test_probe.py::test_good_stores_pass_and_are_left_clean",
    ),
    row(
        "aborted meanwhile; upload it again",
        COLD + "stores/test_s3.py::test_an_upload_that_was_swept_is_uploaded_again_by_its_writer",
    ),
    row(
        "raise tidelog.tier.chunk.cache.bytes and restart the node",
        REQUESTS + "the_chunk_cache_has_its_configured_size",
        TIER + "test_under_fire.py::test_few_sidecars_in_memory_are_enough",
    ),
)
