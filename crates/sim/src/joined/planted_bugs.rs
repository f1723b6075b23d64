//! Deliberate bugs of the harness, one at a time, to prove that joined worlds find them.

forebay_common::planted_bugs![
    "aliases are not applied to keys",
    "a reply is lost",
    "replies in the log are not remembered",
    "an answer is kept before the record is durable",
    "a request sent again does not wait for the first",
    "a cut goes past the cache",
    "a new file has the contents of another",
    "COMMIT does not sync",
    "a write past the log does not wait for a checkpoint",
    "a change of size does not wait for a checkpoint",
    "a clone leaves out what is dirty in its source",
    ; in scenarios:
    "a change of size is answered though its checkpoint was late",
];
