//! The outcome of a request that is tried without waiting.

use std::convert::Infallible;

/// The outcome of a READ or WRITE that is tried on a thread which must not wait for a disk. A function that never has
/// `FromSsd` or `FromBacking` says so with [`Infallible`], and its callers need no arm for the variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome<T, S = Infallible, B = Infallible> {
    /// The request is carried out, with this result.
    Done(T),
    /// All data of a READ is cached, some of it on the cache devices only. The READ waits for the cache devices, and
    /// needs no worker for that.
    FromSsd(S),
    /// The caller uses the backing file directly.
    FromBacking(B),
    /// The request has to wait, so a worker carries it out.
    Wait,
}
