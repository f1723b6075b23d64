//! Contents of an object that are in flight: read from the backing store or the cache, or written past the log.

use std::ops::Range;

use crate::index::object::{Busy, State};

/// A read of the backing store that is in flight.
#[derive(Debug)]
pub(crate) struct Fetch {
    pub(crate) id: u64,
    pub(crate) blocks: Range<u64>,
    pub(crate) stale: bool,
    /// The object was truncated within or behind the range since the fetch began: its contents may mix two states.
    pub(crate) cut: bool,
    pub(crate) source: Source,
}

/// The source of contents that are in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A read of the backing store. Other readers may wait for its contents.
    Backing,
    /// A copy in the cache.
    Cache,
    /// A client's bypass write.
    Client,
}

impl State {
    /// Marks the fetches of any block of `range` as stale.
    pub(crate) fn outdate(&mut self, range: &Range<u64>) {
        for fetch in &mut self.fetches {
            let touched = fetch.blocks.start < range.end && range.start < fetch.blocks.end;
            fetch.stale |= touched;
            fetch.cut |= touched && range.end == u64::MAX;
        }
    }

    /// Records that contents of `blocks` are in flight. During a bypass write or a truncation of the object, their
    /// contents are never cached.
    pub(crate) fn begin_fetch(&mut self, blocks: Range<u64>, source: Source) -> u64 {
        self.next_fetch += 1;
        let stale = self.bypass_writes > 0 || self.busy == Busy::Truncate;
        self.fetches.push(Fetch { id: self.next_fetch, blocks, stale, cut: false, source });
        self.next_fetch
    }

    /// Records a bypass write of `blocks`. It overlaps no other bypass write.
    pub(crate) fn begin_own(&mut self, blocks: Range<u64>) -> u64 {
        self.next_fetch += 1;
        let source = Source::Client;
        self.fetches.push(Fetch { id: self.next_fetch, blocks, stale: false, cut: false, source });
        self.next_fetch
    }

    /// Returns true if a bypass write of any block of `range` is in flight.
    pub(crate) fn is_bypassed(&self, range: &Range<u64>) -> bool {
        let overlaps = |fetch: &Fetch| {
            fetch.source == Source::Client && fetch.blocks.start < range.end && range.start < fetch.blocks.end
        };
        self.bypass_writes > 0 && self.fetches.iter().any(overlaps)
    }

    /// Returns true if a fetch is in flight and not stale.
    pub(crate) fn is_current(&self, id: u64) -> bool {
        self.fetches.iter().any(|fetch| fetch.id == id && !fetch.stale)
    }

    pub(crate) fn is_fetching(&self, id: u64) -> bool {
        self.fetches.iter().any(|fetch| fetch.id == id)
    }

    /// Returns true if the object was truncated within the fetched range, or behind it, since the fetch began.
    pub(crate) fn is_cut(&self, id: u64) -> bool {
        self.fetches.iter().any(|fetch| fetch.id == id && fetch.cut)
    }

    /// Ends a fetch. Returns true if its contents may be cached.
    pub(crate) fn end_fetch(&mut self, id: u64) -> bool {
        let Some(at) = self.fetches.iter().position(|fetch| fetch.id == id) else { return false };
        !self.fetches.swap_remove(at).stale || crate::planted_bugs::active("stale fetches are cached")
    }
}
