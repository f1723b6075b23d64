//! Deliberate bugs, one at a time, to prove that the simulator finds them. Without the feature `plant` there are none.

/// Every bug there is.
#[cfg(feature = "plant")]
pub const PLANTS: &[&str] = &[
    "2: what lost its name stays without",
    "3: what is in the way and known stays",
    "4: what is in the way and unknown is removed",
    "5: what is gone is not made again",
    "5: the alias comes last",
    "11: what was removed stays",
    "12: what has the name of something removed is removed",
    "intents are not read",
    "the horizon is the checkpoint",
    "attributes stay as they are",
];

#[cfg(feature = "plant")]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// Plants one of [`PLANTS`] in what this thread runs, or none.
#[cfg(feature = "plant")]
pub fn plant(bug: Option<&'static str>) {
    ACTIVE.set(bug);
}

#[cfg(feature = "plant")]
pub(crate) fn active(bug: &'static str) -> bool {
    debug_assert!(PLANTS.contains(&bug), "{bug} is not listed");
    ACTIVE.get() == Some(bug)
}

#[cfg(not(feature = "plant"))]
pub(crate) const fn active(_bug: &'static str) -> bool {
    false
}
