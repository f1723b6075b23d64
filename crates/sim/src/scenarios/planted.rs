//! Planted bugs that random worlds hardly reach: each has a scenario that fails with it.

use std::panic::catch_unwind;

use forebay_plant::plant;

use super::*;

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
];

#[test]
fn each_bug_that_is_planted_for_scenarios_is_found_by_one() {
    let bugs = [forebay_engine::plant::IN_SCENARIOS, crate::joined::plant::IN_SCENARIOS];
    for bug in bugs.into_iter().flatten() {
        let finder = FINDERS.iter().find(|(found, _)| found == bug);
        let (_, scenario) = finder.unwrap_or_else(|| panic!("no scenario looks for: {bug}"));
        plant(Some(bug));
        let failed = catch_unwind(scenario).is_err();
        plant(None);
        assert!(failed, "MISSED: {bug}");
    }
}
