//! Planted bugs that random worlds hardly reach. Each has a scenario that fails with it.

use std::panic::catch_unwind;

use forebay_common::planted_bugs::plant;

use super::*;
use crate::recovery::{log, records, segments};

/// A bug, and the scenario that finds it.
const FINDERS: &[(&str, fn())] = &[
    (
        "a failed sync counts for its caller only",
        syncs::a_failed_sync_counts_for_every_sync_of_the_file_that_was_under_way,
    ),
    (
        "a change of size is answered though its checkpoint was late",
        crate::joined::scenarios::a_size_that_was_answered_survives_a_removal_that_the_log_lost,
    ),
    (
        "a flush is answered before the frame is durable",
        blocks::no_flushed_change_of_a_volume_is_lost_and_any_unflushed_one_may_be,
    ),
    (
        "a write with FUA is answered before the frame is durable",
        blocks::no_flushed_change_of_a_volume_is_lost_and_any_unflushed_one_may_be,
    ),
    (
        "a write with FUA does not sync what went past the log",
        blocks::a_volume_with_a_mode_of_its_own_keeps_what_was_flushed,
    ),
    (
        "a write with FUA flushes the volume",
        blocks::fua::a_write_with_fua_is_durable_and_waits_for_no_other_write,
    ),
    (
        "a logged write is answered before its frame",
        blocks::a_logged_write_survives_a_kill_right_after_its_answer,
    ),
    (
        "a flush does not sync what went past the log",
        blocks::a_volume_with_a_mode_of_its_own_keeps_what_was_flushed,
    ),
    (
        "a map finds the dirty blocks after the holes",
        blocks::no_flushed_change_of_a_volume_is_lost_and_any_unflushed_one_may_be,
    ),
    (
        "a discard drops what only the log has",
        blocks::no_flushed_change_of_a_volume_is_lost_and_any_unflushed_one_may_be,
    ),
    (
        "zeros past the log leave older copies",
        blocks::no_flushed_change_of_a_volume_is_lost_and_any_unflushed_one_may_be,
    ),
    (
        "the key of a volume is taken for a file's",
        blocks::no_flushed_change_of_a_volume_is_lost_and_any_unflushed_one_may_be,
    ),
    (
        "a write past the log waits for a refused block",
        blocks::mixed::bad_ranges_changes_of_modes_and_files_beside_it_cost_a_volume_nothing_that_was_flushed,
    ),
    (
        "a block that the device refuses counts as written",
        blocks::mixed::bad_ranges_changes_of_modes_and_files_beside_it_cost_a_volume_nothing_that_was_flushed,
    ),
    (
        "a block that the device cannot read is zeros",
        blocks::mixed::bad_ranges_changes_of_modes_and_files_beside_it_cost_a_volume_nothing_that_was_flushed,
    ),
    (
        "a read past the cache finds no dirty blocks",
        blocks::mixed::bad_ranges_changes_of_modes_and_files_beside_it_cost_a_volume_nothing_that_was_flushed,
    ),
    (
        "a volume has the number of a file system",
        blocks::mixed::bad_ranges_changes_of_modes_and_files_beside_it_cost_a_volume_nothing_that_was_flushed,
    ),
    (
        "blocks that stay are dropped without a free segment",
        policy::pinned_blocks_stay_while_the_log_takes_each_segment_that_becomes_free,
    ),
    (
        "priorities do not count",
        priority::at_equal_use_data_of_a_higher_priority_is_found_in_the_cache_more_often,
    ),
    (
        "high priority has no limit",
        priority::data_of_high_priority_beyond_half_of_the_devices_is_data_like_any_other,
    ),
    (
        "high priority stays for ever",
        priority::a_block_of_high_priority_that_nobody_reads_survives_one_eviction_and_no_second_one,
    ),
    ("a stale leg counts at recovery", log::r19_a_leg_that_lacks_a_frame_before_the_last_one_does_not_count),
    ("frames of an older epoch count", log::r12_a_frame_of_another_epoch_does_not_count),
    (
        "frames behind the next segment's first one count",
        log::r13_a_frame_that_the_next_segment_has_again_does_not_count,
    ),
    (
        "frames that were acknowledged may be missing",
        log::r18_a_log_without_a_frame_that_is_known_to_be_durable_is_a_hole,
    ),
    (
        "a log without a frame begins anywhere",
        devices::a_device_without_a_frame_of_the_log_is_not_opened_alone,
    ),
    ("the reach of the last frame does not count", log::r20_the_last_frame_says_where_the_log_begins),
    (
        "a dropped log leaves its clean copies",
        damaged::clean_copies_do_not_return_after_the_log_that_invalidated_them_was_dropped,
    ),
    (
        "segments from before a device came back count",
        segments::r1_a_header_from_before_the_device_was_a_member_does_not_count,
    ),
    ("a segment of an older life counts", segments::r2_of_two_lives_of_a_number_the_later_one_counts),
    (
        "the newest segment may be missing",
        segments::r17_a_log_without_the_newest_segment_that_is_known_is_a_hole,
    ),
    (
        "a frame is acknowledged when the one before it is durable",
        early::a_write_is_answered_once_its_own_frame_is_durable,
    ),
    (
        "a frame is acknowledged before a lost leg is recorded",
        early::a_write_is_answered_once_the_survivor_says_durably_that_the_other_device_is_lost,
    ),
    (
        "a cut is carried out before its record is durable",
        early::a_file_is_cut_once_the_record_of_that_is_durable,
    ),
    ("a cut waits for each batch of destaging", waiting::a_cut_waits_for_one_batch_of_destaging),
    (
        "a write past the log overtakes a cut that waits",
        waiting::a_cut_waits_only_for_writes_past_the_log_that_began_before_it,
    ),
    (
        "a logged cut does not hold its segment",
        records::r24_a_cut_is_carried_out_before_service_and_keeps_its_segment_until_then,
    ),
    (
        "what a power cut may take back of the backing file is cached",
        unsynced::no_copy_outlives_a_write_past_the_log_that_a_power_cut_took,
    ),
    (
        "a loss waits for a device that is being added",
        joining::the_loss_of_a_member_is_recorded_at_once_while_a_device_that_is_added_hangs,
    ),
    (
        "a device that is being added is waited for",
        joining::a_device_that_hangs_while_it_is_added_is_given_up_and_the_pool_is_as_before,
    ),
    (
        "a device that was not added leaves its epoch",
        joining::what_is_acknowledged_after_a_device_could_not_be_added_survives,
    ),
    (
        "a device is waited for while the pool is opened",
        opening::a_start_goes_on_without_a_device_that_does_not_answer_from_any_of_its_operations_on,
    ),
    (
        "a device is waited for while the pool is recovered",
        opening::a_start_goes_on_without_a_device_that_does_not_answer_from_any_of_its_operations_on,
    ),
    (
        "a device is waited for while the engine stops",
        late::a_stop_ends_though_a_device_does_not_answer_from_any_of_its_operations_on,
    ),
    (
        "a stop waits for a volume that does not answer",
        volumes::a_stop_ends_though_a_volume_does_not_answer_and_what_it_lacks_stays_in_the_log,
    ),
    (
        "a device that is needed is left out of the pool",
        opening::a_device_that_is_needed_is_waited_for_at_a_start_and_that_is_told,
    ),
    (
        "a device that owes no answer is taken for one that answers",
        opening::a_device_is_not_given_up_for_one_that_owes_no_answer_and_gives_none,
    ),
    (
        "blocks moved while they are destaged stay dirty",
        overtaken::blocks_that_move_while_they_are_destaged_are_clean_afterwards,
    ),
    (
        "a failed sync is noted once its caller knows",
        unsynced::a_failed_sync_is_told_to_a_sync_that_begins_after_it,
    ),
    (
        "a refused part is tried again as it was",
        refused::a_block_that_cannot_be_written_holds_up_no_other_of_its_file,
    ),
    (
        "a volume works again though it refuses blocks",
        refused::a_block_that_cannot_be_written_holds_up_no_other_of_its_file,
    ),
    ("epochs are not given out", stale::two_devices_that_are_each_there_alone_do_not_go_on_in_one_epoch),
];

#[test]
fn each_bug_that_is_planted_for_scenarios_is_found_by_one() {
    let bugs = [
        forebay_engine::planted_bugs::IN_SCENARIOS,
        forebay_volume::planted_bugs::IN_SCENARIOS,
        crate::joined::planted_bugs::IN_SCENARIOS,
    ];
    for bug in bugs.into_iter().flatten() {
        let finder = FINDERS.iter().find(|(found, _)| found == bug);
        let (_, scenario) = finder.unwrap_or_else(|| panic!("no scenario looks for: {bug}"));
        plant(Some(bug));
        let failed = catch_unwind(scenario).is_err();
        plant(None);
        assert!(failed, "MISSED: {bug}");
    }
}
