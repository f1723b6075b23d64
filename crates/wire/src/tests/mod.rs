//! Property tests over every type, and hand-written messages.

mod arbitrary_impls;
mod messages;
mod roundtrip;
