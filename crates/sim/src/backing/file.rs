//! One file behind a page cache.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use forebay_engine::buffer::BLOCK;
use forebay_engine::io::Time;

use crate::content::Content;
use crate::disk::Page;
use crate::rng::Rng;

#[derive(Default)]
pub(crate) struct File {
    pub(crate) durable: Content,
    pub(crate) current: Content,
    /// Changes that are not durable, oldest first, numbered.
    pub(crate) pending: Vec<(u64, Change)>,
    /// Blocks that a failed sync marked clean and lost.
    pub(crate) lost: BTreeMap<u64, ()>,
    /// The number of syncs that failed.
    pub(crate) failures: u64,
}

pub(crate) enum Change {
    Page(u64, Page),
    /// The block has no space any more, and reads as zeros.
    Hole(u64),
    Size(u64),
    Mtime(Time),
}

impl File {
    /// Carries out one change on one of the two contents of a file, the durable or the current one.
    pub(crate) fn apply(content: &mut Content, change: &Change) {
        match change {
            Change::Page(block, page) => content.put(*block, page.clone()),
            Change::Hole(block) => content.free(*block),
            Change::Size(size) => content.resize(*size),
            Change::Mtime(time) => content.mtime = *time,
        }
    }

    /// Carries out a change in the page cache only. A sync, or luck in a power cut, makes it durable.
    pub(crate) fn change(&mut self, number: u64, change: Change) {
        Self::apply(&mut self.current, &change);
        self.pending.push((number, change));
    }

    /// Writes into the page cache, block by block, and grows the file if the range ends behind its end. All changes
    /// get `number`, and no part is durable before a sync.
    pub(crate) fn write(&mut self, number: u64, offset: u64, data: &[u8], now: Time) {
        let end = offset + data.len() as u64;
        if end > self.current.size {
            self.change(number, Change::Size(end));
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let within = (at % BLOCK as u64) as usize;
            let count = (BLOCK - within).min(data.len() - done);
            let mut page = self.current.page(at / BLOCK as u64);
            Arc::make_mut(&mut page)[within..within + count].copy_from_slice(&data[done..done + count]);
            self.lost.remove(&(at / BLOCK as u64));
            self.change(number, Change::Page(at / BLOCK as u64, page));
            done += count;
        }
        self.change(number, Change::Mtime(now));
    }

    /// Fills bytes with zeros, and frees the space of whole blocks, in the page cache only. The size stays.
    pub(crate) fn punch(&mut self, number: u64, range: &Range<u64>, now: Time) {
        let block = BLOCK as u64;
        for at in range.start / block..range.end.min(self.current.size).div_ceil(block) {
            let (start, end) = (range.start.max(at * block), range.end.min((at + 1) * block));
            self.lost.remove(&at);
            if start == at * block && (end == start + block || end >= self.current.size) {
                self.change(number, Change::Hole(at));
            } else if self.current.has(at) {
                let mut page = self.current.page(at);
                Arc::make_mut(&mut page)[(start - at * block) as usize..(end - at * block) as usize].fill(0);
                self.change(number, Change::Page(at, page));
            }
        }
        self.change(number, Change::Mtime(now));
    }

    /// Gives the holes of a range space, and the file at least the range's end as its size, in the page cache only.
    pub(crate) fn reserve(&mut self, number: u64, range: &Range<u64>, now: Time) {
        if range.end > self.current.size {
            self.change(number, Change::Size(range.end));
        }
        for at in range.start / BLOCK as u64..range.end.div_ceil(BLOCK as u64) {
            if !self.current.has(at) {
                self.change(number, Change::Page(at, Arc::new([0; BLOCK])));
            }
        }
        self.change(number, Change::Mtime(now));
    }

    /// Returns a block as a clone of the file has it, or `None` for a hole. A page that a failed sync has lost is not
    /// written any more, so the clone has the contents before it.
    pub(crate) fn shared(&self, block: u64) -> Option<Page> {
        let of = if self.lost.contains_key(&block) { &self.durable } else { &self.current };
        of.has(block).then(|| of.page(block))
    }

    /// Gives blocks from `first` on these contents, and the file at least `end` as its size, in the page cache only.
    pub(crate) fn share(&mut self, number: u64, first: u64, pages: Vec<Option<Page>>, end: u64, now: Time) {
        if end > self.current.size {
            self.change(number, Change::Size(end));
        }
        for (block, page) in (first..).zip(pages) {
            self.lost.remove(&block);
            let change = page.map_or(Change::Hole(block), |page| Change::Page(block, page));
            self.change(number, change);
        }
        self.change(number, Change::Mtime(now));
    }

    /// Makes the changes up to number `mark` durable. If the sync `fails`, chance decides for each block whether its
    /// change is durable or lost, and later syncs do not write the lost blocks.
    pub(crate) fn sync(&mut self, mark: u64, rng: &mut Rng, fails: bool) {
        for (number, change) in std::mem::take(&mut self.pending) {
            if number > mark {
                self.pending.push((number, change));
                continue;
            }
            match &change {
                Change::Page(block, _) if fails && rng.chance(6000) => {
                    self.lost.insert(*block, ());
                }
                _ => Self::apply(&mut self.durable, &change),
            }
        }
        // A page that was written again since the sync began is dirty again.
        for (_, change) in &self.pending {
            if let Change::Page(block, _) = change {
                self.lost.remove(block);
            }
        }
    }

    /// Cuts the power. Returns true if an unsynced change was lost.
    pub(crate) fn cut(&mut self, rng: &mut Rng) -> bool {
        let sizes = self.pending.iter().filter(|(_, change)| matches!(change, Change::Size(_))).count();
        let mut keep_sizes = rng.within(0, sizes as u64);
        let chances = rng.pick(&[0, 5000, 9000, 10_000]);
        let (mut lost, mut cut_off) = (false, false);
        for (_, change) in std::mem::take(&mut self.pending) {
            let keep = match &change {
                Change::Size(size) => {
                    let keep = keep_sizes > 0;
                    keep_sizes = keep_sizes.saturating_sub(1);
                    cut_off |= !keep && *size < self.durable.size;
                    keep
                }
                Change::Page(..) | Change::Hole(_) => !cut_off && rng.chance(chances),
                Change::Mtime(_) => rng.chance(5000),
            };
            lost |= !keep;
            if keep {
                Self::apply(&mut self.durable, &change);
            }
        }
        self.current = self.durable.clone();
        self.lost.clear();
        lost
    }

    /// Drops the pages that a failed sync has lost from the page cache. From then on a read finds their durable
    /// contents.
    pub(crate) fn evict(&mut self) {
        for block in std::mem::take(&mut self.lost).into_keys() {
            self.current.revert(block, &self.durable);
        }
    }
}
