//! Deliberate bugs, one at a time, to prove that the simulator finds them. Without the feature `plant` there are no
//! such bugs, and no code of this module is in a build.

/// Lists the bugs of a module in three constants: `PLANTS` are found by random worlds, `IN_SCENARIOS` only by a
/// scenario, `IN_UNIT_TESTS` by a unit test. Also defines `active`, which tells if a bug is planted in the code that
/// this thread runs.
#[cfg(feature = "plant")]
#[macro_export]
macro_rules! planted_bugs {
    ($($bug:literal,)* $(; in scenarios: $($rare:literal,)*)? $(; in unit tests: $($unit:literal,)*)?) => {
        /// The bugs that random worlds find.
        pub const PLANTS: &[&str] = &[$($bug),*];
        /// The bugs that only a scenario finds.
        pub const IN_SCENARIOS: &[&str] = &[$($($rare),*)?];
        /// The bugs that a unit test finds.
        pub const IN_UNIT_TESTS: &[&str] = &[$($($unit),*)?];

        /// Returns true if the bug is planted in the code that this thread runs. One of the lists must have the bug.
        pub(crate) fn active(bug: &'static str) -> bool {
            let lists = [PLANTS, IN_SCENARIOS, IN_UNIT_TESTS];
            debug_assert!(lists.iter().any(|list| list.contains(&bug)), "{bug} is not listed");
            $crate::planted_bugs::is_planted(bug)
        }
    };
}

/// Lists the bugs of a module; `active` always returns false.
#[cfg(not(feature = "plant"))]
#[macro_export]
macro_rules! planted_bugs {
    ($($bug:literal,)* $(; in scenarios: $($rare:literal,)*)? $(; in unit tests: $($unit:literal,)*)?) => {
        /// Returns false: this build has no planted bugs.
        pub(crate) const fn active(_bug: &'static str) -> bool {
            false
        }
    };
}

#[cfg(feature = "plant")]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug of any list, or none, in the code that this thread runs.
#[cfg(feature = "plant")]
pub fn plant(bug: Option<&'static str>) {
    ACTIVE.set(bug);
}

/// Returns the bug that is planted in the code that this thread runs.
#[cfg(feature = "plant")]
pub fn planted() -> Option<&'static str> {
    ACTIVE.get()
}

/// Returns true if the bug is planted in the code that this thread runs.
#[cfg(feature = "plant")]
pub fn is_planted(bug: &'static str) -> bool {
    ACTIVE.get() == Some(bug)
}
