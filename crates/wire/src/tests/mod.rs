//! Tests of the codec: properties of every type, hand-written messages, and a comparison with an independent codec.

mod arbitrary_impls;
mod convert;
mod independent;
mod messages;
mod roundtrip;
