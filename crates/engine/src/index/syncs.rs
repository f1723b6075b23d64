//! Syncs of one object's file (`request/sync.rs`).

/// Syncs of one object's file.
#[derive(Debug, Default)]
pub(crate) struct Syncs {
    /// Number of failed syncs.
    failed: u64,
    /// Numbers of the syncs in flight, and the number of the last sync begun.
    under_way: Vec<u64>,
    last: u64,
}

impl Syncs {
    /// Returns the number of failed syncs. A writer asks before it writes the file.
    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }

    /// Begins a sync. Returns its number.
    pub(crate) fn begin(&mut self) -> u64 {
        self.last += 1;
        self.under_way.push(self.last);
        self.last
    }

    /// Ends sync `own`. Returns the last sync that began before it ended.
    pub(crate) fn end(&mut self, own: u64, failed: bool) -> u64 {
        self.under_way.retain(|other| *other != own);
        self.failed += u64::from(failed);
        self.last
    }

    /// Returns true if no sync up to `last` is in flight.
    pub(crate) fn are_ended(&self, last: u64) -> bool {
        self.under_way.iter().all(|other| *other > last)
    }
}
