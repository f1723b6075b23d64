//! Deliberate bugs, one at a time, to prove that the worlds in `tests/worlds.rs` find them.

forebay_common::planted_bugs![
    "a retransmission is carried out",
    "a false retransmission gets the reply",
    "a refused SEQUENCE moves the slot",
    "no slot jumps after a recovery",
    "a slot jumps back after a recovery",
    "replies are not recovered",
    "a reply is not in the log",
    "read locks do not conflict",
    "an unlock frees the end of the lock as well",
    "locks are not recovered",
    "an unlock need not be in the log",
    "a restarted client keeps its old state",
    "shares are not compared",
    "a close keeps the deny bits",
    "NLM locks are in a table of their own",
    "a write open leaves read delegations",
    "a delegation is granted during a change",
    "an expired client keeps its locks",
    "waiters are not served",
];
