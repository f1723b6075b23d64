//! The connections that asked for one reply. The last of them that has received it takes the reply along.

use std::num::NonZeroU64;

use smallvec::SmallVec;

/// The number of connections recorded as askers of one reply. With more askers the reply is kept until it expires.
pub(super) const MAX_ASKERS: usize = 4;

/// The connections that asked for a reply and are still open, by [`Peer::id`](forebay_rpc::Peer::id). The value has two
/// words, since nearly every reply is asked for once. So an entry and its key share a processor's cache line.
#[derive(Default)]
pub(super) struct Askers {
    first: Option<NonZeroU64>,
    others: Option<Box<Others>>,
}

/// The further connections that asked for a reply.
#[derive(Default)]
struct Others {
    open: SmallVec<[u64; MAX_ASKERS - 1]>,
    /// True if there were too many connections to record.
    more: bool,
}

/// Numbers connections from 1, so that zero stands for no connection.
fn asker(connection: u64) -> Option<NonZeroU64> {
    NonZeroU64::new(connection.wrapping_add(1))
}

impl Askers {
    /// Returns the askers of a reply that one connection asked for.
    pub(super) fn one(connection: u64) -> Self {
        Askers { first: asker(connection), others: None }
    }

    /// Returns the recorded connections.
    pub(super) fn open(&self) -> impl Iterator<Item = u64> {
        let others = self.others.iter().flat_map(|others| others.open.iter().copied());
        self.first.into_iter().map(|first| first.get().wrapping_sub(1)).chain(others)
    }

    /// Records a connection. Beyond [`MAX_ASKERS`] only records that there were more.
    pub(super) fn add(&mut self, connection: u64) {
        if self.open().any(|open| open == connection) {
            return;
        }
        if self.first.is_none() {
            self.first = asker(connection);
            return;
        }
        let others = self.others.get_or_insert_default();
        if others.open.len() < MAX_ASKERS - 1 {
            others.open.push(connection);
        } else {
            others.more = true;
        }
    }

    /// Removes a connection; returns true if it was the last one.
    pub(super) fn remove(&mut self, connection: u64) -> bool {
        if self.first == asker(connection) {
            self.first = None;
        } else {
            let Some(others) = &mut self.others else { return false };
            let Some(at) = others.open.iter().position(|open| *open == connection) else { return false };
            others.open.swap_remove(at);
        }
        self.open().next().is_none() && !self.others.as_ref().is_some_and(|others| others.more)
    }
}
