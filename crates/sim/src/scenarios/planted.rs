//! Planted bugs that random worlds hardly reach: each has a scenario that fails with it.

use std::panic::catch_unwind;

use forebay_plant::plant;

use super::*;

/// A bug, and the scenario that finds it.
const FINDERS: &[(&str, fn())] = &[(
    "a failed sync counts for its caller only",
    syncs::a_failed_sync_counts_for_every_sync_of_the_file_that_was_under_way,
)];

#[test]
fn each_bug_that_is_planted_for_scenarios_is_found_by_one() {
    let bugs = forebay_engine::plant::IN_SCENARIOS.iter();
    for bug in bugs {
        let finder = FINDERS.iter().find(|(found, _)| found == bug);
        let (_, scenario) = finder.unwrap_or_else(|| panic!("no scenario looks for: {bug}"));
        plant(Some(bug));
        let failed = catch_unwind(scenario).is_err();
        plant(None);
        assert!(failed, "MISSED: {bug}");
    }
}
