//! Tests of the codec: properties of every type, hand-written messages, and a comparison with an independent codec.

mod arbitrary_impls;
mod convert;
mod independent;
mod messages;
mod nbd;
mod nfs4_compound;
mod nfs4_golden;
mod nfs4_messages;
mod nfs4_roundtrip;
mod roundtrip;
mod small_programs;
