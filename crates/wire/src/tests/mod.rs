//! Property tests over every type, hand-written messages, and an independent codec as a second opinion.

mod arbitrary_impls;
mod convert;
mod independent;
mod messages;
mod roundtrip;
