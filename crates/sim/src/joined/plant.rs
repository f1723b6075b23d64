//! Deliberate bugs of the simulated server, one at a time, to prove that joined worlds find them. Without the feature `plant`
//! there are none.

/// Every bug there is.
#[cfg(feature = "plant")]
pub const PLANTS: &[&str] = &[
    "answered before the record is durable",
    "a RENAME says nothing in its slot",
    "a checkpoint without a commit",
    "notes are let go without a checkpoint",
    "aliases are not applied to keys",
    "a reply is lost",
    "a cut goes past the cache",
    "a new file has the contents of another",
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
