//! Deliberate bugs, one at a time, to prove that the simulator finds them.

forebay_common::planted_bugs![
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
    "identities that were made and removed are not spent",
    "an object with a spent identity keeps it",
    "the handle of an object that is known by another identity works",
    "the identity of a recreated object is not spent",
    "spent identities are forgotten at the next start",
    "an identity is spent only until its number is seen",
    "an identity is spent although its object is there",
    "a half-made object has the identity of another",
];
