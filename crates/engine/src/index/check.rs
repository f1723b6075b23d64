//! The invariants of an object, for tests and the simulator.

use super::fetch::Source;
use super::leaf::LEAF;
use super::object::{Busy, CachedObject, State};
use crate::buffer::BLOCK;

impl CachedObject {
    /// Checks the invariants of the object. The time is proportional to the number of its cached blocks.
    ///
    /// # Errors
    /// One sentence about the first invariant that does not hold, with the object's number.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.lock().check().map_err(|error| format!("object {}: {error}", self.number))
    }
}

fn holds(is_true: bool, says: impl FnOnce() -> String) -> Result<(), String> {
    if is_true { Ok(()) } else { Err(says()) }
}

impl State {
    /// Compares the counts of an object with its entries.
    fn check(&self) -> Result<(), String> {
        let dirty = self.dirty_entries(0..u64::MAX).count() as u64;
        holds(dirty == self.dirty, || format!("{dirty} entries are dirty, and {} are counted", self.dirty))?;
        for block in &self.damaged {
            holds(self.entry(*block).is_some_and(|entry| entry.dirty), || {
                format!("block {block} is damaged, and is not dirty")
            })?;
        }
        self.check_in_flight()?;
        self.check_end()
    }

    /// Checks what is in progress beside each other.
    fn check_in_flight(&self) -> Result<(), String> {
        let bypasses = || self.fetches.iter().filter(|fetch| fetch.source == Source::Client);
        holds(bypasses().count() == self.bypass_writes as usize, || {
            format!(
                "{} bypass writes are in flight, and {} are counted",
                bypasses().count(),
                self.bypass_writes
            )
        })?;
        holds(self.bypass_writes == 0 || (self.busy != Busy::Truncate && self.truncating.is_none()), || {
            "a bypass write is in flight beside a truncation".to_owned()
        })?;
        for bypass in bypasses() {
            let overlaps = |blocks: &std::ops::Range<u64>| {
                blocks.start < bypass.blocks.end && bypass.blocks.start < blocks.end
            };
            let mut current = self.fetches.iter().filter(|fetch| !fetch.stale && overlaps(&fetch.blocks));
            holds(current.all(|fetch| fetch.id == bypass.id), || {
                format!("contents of {:?} in flight are not stale beside a bypass write", bypass.blocks)
            })?;
        }
        Ok(())
    }

    /// Checks that the pages in memory have zeros at and beyond the object's size.
    fn check_end(&self) -> Result<(), String> {
        let end = self.size / BLOCK as u64;
        if !self.sized || self.gone {
            return Ok(());
        }
        for (number, leaf) in self.leaves.range(end / LEAF..) {
            for index in leaf.in_ram() {
                let block = number * LEAF + u64::from(index);
                let from = self.size.saturating_sub(block * BLOCK as u64).min(BLOCK as u64) as usize;
                let page = leaf.page(index).and_then(|page| page.get(from..)).unwrap_or_default();
                holds(page.iter().all(|byte| *byte == 0), || {
                    format!("block {block} has bytes beyond the size of {} bytes", self.size)
                })?;
            }
        }
        Ok(())
    }
}
