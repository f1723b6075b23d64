//! The effect on a device's writes when the process dies or the power fails.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_engine::buffer::BLOCK;

use super::state::pages;
use super::{Disk, Page};
use crate::hits::Fault;
use crate::rng::Rng;

/// Bytes of a sector, the unit that real devices write as a whole.
const SECTOR: usize = 512;

impl Disk {
    /// Kills the process: writes in flight end somewhere, and nothing else is lost.
    pub fn kill(&self) {
        self.drop_held();
        let mut state = self.state.lock();
        for (block, data) in std::mem::take(&mut state.under_way).into_values() {
            let chances = state.rng.pick(&[0, 5000, 10_000]);
            state.completed += 1;
            for (place, page) in pages(&data).enumerate() {
                if state.rng.chance(chances) {
                    state.put(block + place as u64, page);
                }
            }
        }
    }

    /// Cuts the power: a subset of the writes that are not durable survives. Returns true if it was neither all nor
    /// none.
    pub fn power_cut(&self) -> bool {
        self.drop_held();
        let mut state = self.state.lock();
        for (block, data) in std::mem::take(&mut state.under_way).into_values() {
            state.completed += 1;
            for (place, page) in pages(&data).enumerate() {
                state.put(block + place as u64, page);
            }
        }
        let (grain, chances) = (state.rng.below(5), state.rng.pick(&[0, 500, 5000, 9500, 10_000]));
        let mut kept: BTreeMap<u64, bool> = BTreeMap::new();
        let mut outcomes = (0, 0);
        for (block, writes) in std::mem::take(&mut state.cached) {
            let mut page = state.stable.get(&block).cloned().unwrap_or_else(|| Arc::new([0; BLOCK]));
            // True if the device holds the newest write that was reported durable, or a later one in its place.
            let mut holds = true;
            for (number, new) in writes {
                let owed = state.promises.owes(number).then(|| new.clone());
                let whole = match grain {
                    0 => *kept.entry(number).or_insert_with(|| state.rng.chance(chances)),
                    _ => state.rng.chance(chances),
                };
                let torn = grain >= 2 && state.rng.chance(2000);
                if torn {
                    page = self.tear(&mut state.rng, grain == 4, &page, &new);
                } else if whole {
                    page = new;
                }
                holds = owed.map_or(holds || whole || torn, |owed| page == owed);
                *if whole { &mut outcomes.0 } else { &mut outcomes.1 } += 1;
            }
            state.stable.insert(block, page);
            if !holds {
                state.promises.harm(block);
            }
        }
        let some = outcomes.0 > 0 && outcomes.1 > 0;
        if some {
            self.hits.hit(Fault::Subset);
        }
        some
    }

    /// Returns the contents of a block after a torn write: some parts are old, the rest new. The unit is a sector, or
    /// a byte if the write is torn `by_byte`.
    fn tear(&self, rng: &mut Rng, by_byte: bool, old: &Page, new: &Page) -> Page {
        let mut page = **old;
        if by_byte {
            let at = rng.index(BLOCK + 1);
            if rng.chance(5000) {
                page[..at].copy_from_slice(&new[..at]);
            } else {
                page[at..].copy_from_slice(&new[at..]);
            }
            self.hits.hit(Fault::TornByte);
        } else {
            for sector in 0..BLOCK / SECTOR {
                if rng.chance(5000) {
                    let range = sector * SECTOR..(sector + 1) * SECTOR;
                    page[range.clone()].copy_from_slice(&new[range]);
                }
            }
            self.hits.hit(Fault::TornSector);
        }
        Arc::new(page)
    }
}
