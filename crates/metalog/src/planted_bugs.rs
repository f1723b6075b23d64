//! Deliberate bugs, one at a time, to prove that joined worlds of the simulator find them.

forebay_common::planted_bugs![
    "answered before the record is durable",
    "a RENAME says nothing in its slot",
    "a checkpoint without a commit",
    "notes are let go without a checkpoint",
    "notes are let go though the journal fails",
    "a late commit covers what was done while it was under way",
    "a commit proves what was done before it ended",
    "records go to the log as they come",
    "records are carried from before the checkpoint of a start",
    ; in unit tests:
    "a checkpoint covers a RENAME that is not carried out",
];
