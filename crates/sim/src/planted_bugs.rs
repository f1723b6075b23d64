//! Deliberate bugs in the calls of clients to the engine ([`crate::client`]), one at a time, to prove that worlds find
//! them.

forebay_common::planted_bugs![
    "a hole does not wait for dirty blocks",
    "a hole leaves copies in the cache",
    "a hole is not synced",
    "reserved space is not synced",
    "a clone leaves out dirty blocks",
    "a clone leaves copies in the cache",
    "a clone is not synced",
];
