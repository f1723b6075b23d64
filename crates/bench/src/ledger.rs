//! The record of all writes. For each unit of a file it has three generations: the newest sent, the newest
//! acknowledged, and the newest promised to be on stable storage. From these follows which generations a read, or a
//! crash, may return.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};

/// The generations of one file. For each unit, durable <= acknowledged <= sent, and at most one write is in flight.
#[derive(Debug)]
pub(crate) struct Ledger {
    unit: u32,
    sent: Box<[AtomicU32]>,
    acknowledged: Box<[AtomicU32]>,
    durable: Box<[AtomicU32]>,
}

fn zeros(count: usize) -> Box<[AtomicU32]> {
    (0..count).map(|_| AtomicU32::new(0)).collect()
}

impl Ledger {
    /// Returns the ledger of an unwritten file of `size` bytes, in units of `unit` bytes.
    pub(crate) fn new(size: u64, unit: u32) -> Self {
        let count = size.div_ceil(u64::from(unit)) as usize;
        Self { unit, sent: zeros(count), acknowledged: zeros(count), durable: zeros(count) }
    }

    /// Returns the bytes of a unit.
    pub(crate) const fn unit(&self) -> u32 {
        self.unit
    }

    /// Returns the indices of the units in a range, which consists of whole units.
    fn units(&self, offset: u64, len: u32) -> std::ops::Range<usize> {
        let first = (offset / u64::from(self.unit)) as usize;
        first..first + (len / self.unit) as usize
    }

    /// Claims a range for one write, which gets the next generation of each unit. Returns false without a claim if
    /// another write to a part of the range is in flight.
    pub(crate) fn begin_write(&self, offset: u64, len: u32) -> bool {
        let range = self.units(offset, len);
        for at in range.clone() {
            let old = self.acknowledged[at].load(Ordering::Acquire);
            if self.sent[at].compare_exchange(old, old + 1, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                for claimed in range.start..at {
                    self.sent[claimed].fetch_sub(1, Ordering::AcqRel);
                }
                return false;
            }
        }
        true
    }

    /// Notes that a claimed write was acknowledged. `stable` is true if the acknowledgement promised stable storage.
    pub(crate) fn end_write(&self, offset: u64, len: u32, stable: bool) {
        for at in self.units(offset, len) {
            let generation = self.sent[at].load(Ordering::Acquire);
            if stable {
                self.durable[at].store(generation, Ordering::Release);
            }
            self.acknowledged[at].store(generation, Ordering::Release);
        }
    }

    /// Returns the acknowledged generations in a range. A COMMIT that is sent now makes them durable.
    pub(crate) fn acknowledged(&self, offset: u64, len: u32) -> impl Iterator<Item = u32> {
        self.units(offset, len).map(|at| self.acknowledged[at].load(Ordering::Acquire))
    }

    /// Notes that `generation` of the unit at `offset` is durable.
    pub(crate) fn make_durable(&self, offset: u64, generation: u32) {
        self.durable[(offset / u64::from(self.unit)) as usize].fetch_max(generation, Ordering::AcqRel);
    }

    /// Returns the newest generation sent for the unit at `offset`. A read must not return a newer one.
    pub(crate) fn sent(&self, offset: u64) -> u32 {
        self.sent[(offset / u64::from(self.unit)) as usize].load(Ordering::Acquire)
    }

    /// Makes the durable generations the acknowledged ones, because a restart of the server may lose all other
    /// writes.
    pub(crate) fn forget_unstable(&self) {
        for (acknowledged, durable) in self.acknowledged.iter().zip(&self.durable) {
            acknowledged.store(durable.load(Ordering::Acquire), Ordering::Release);
        }
    }

    /// Writes the generations that matter after a crash.
    pub(crate) fn save(&self, out: &mut impl Write) -> Result<()> {
        for words in [&self.sent, &self.durable] {
            let bytes: Vec<u8> =
                words.iter().flat_map(|word| word.load(Ordering::Acquire).to_le_bytes()).collect();
            out.write_all(&bytes).context("the state cannot be written")?;
        }
        Ok(())
    }

    /// Reads generations that [`Self::save`] wrote.
    pub(crate) fn load(size: u64, unit: u32, input: &mut impl Read) -> Result<Self> {
        let ledger = Self::new(size, unit);
        for words in [&ledger.sent, &ledger.durable] {
            let mut bytes = vec![0; words.len() * 4];
            input.read_exact(&mut bytes).context("the state file ends too early")?;
            for (word, bytes) in words.iter().zip(bytes.as_chunks::<4>().0) {
                word.store(u32::from_le_bytes(*bytes), Ordering::Release);
            }
        }
        if ledger
            .sent
            .iter()
            .zip(&ledger.durable)
            .any(|(sent, durable)| durable.load(Ordering::Relaxed) > sent.load(Ordering::Relaxed))
        {
            bail!("the state file is damaged: a durable generation is newer than the newest generation sent");
        }
        ledger.forget_unstable();
        Ok(ledger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_in_flight_exclude_each_other() {
        let ledger = Ledger::new(16384, 4096);
        assert!(ledger.begin_write(4096, 8192));
        assert_eq!([ledger.sent(0), ledger.sent(4096), ledger.sent(8192)], [0, 1, 1]);
        assert!(!ledger.begin_write(0, 8192));
        assert!(ledger.begin_write(0, 4096), "the claim was undone");
        assert_eq!(ledger.sent(0), 1);
        ledger.end_write(4096, 8192, true);
        assert!(ledger.begin_write(8192, 8192));
        assert_eq!((ledger.sent(8192), ledger.sent(12288)), (2, 1));
        assert_eq!(ledger.acknowledged(4096, 8192).collect::<Vec<_>>(), [1, 1]);
    }

    #[test]
    fn a_saved_ledger_keeps_what_was_sent_and_what_is_durable() {
        let ledger = Ledger::new(8192, 4096);
        for stable in [true, false] {
            assert!(ledger.begin_write(0, 4096));
            ledger.end_write(0, 4096, stable);
        }
        let mut saved = Vec::new();
        ledger.save(&mut saved).unwrap();
        let loaded = Ledger::load(8192, 4096, &mut saved.as_slice()).unwrap();
        assert_eq!((loaded.sent(0), loaded.sent(4096)), (2, 0));
        assert_eq!(loaded.acknowledged(0, 8192).collect::<Vec<_>>(), [1, 0]);
        assert!(Ledger::load(8192, 4096, &mut &saved[..15]).is_err());
        saved[8] = 9;
        assert!(Ledger::load(8192, 4096, &mut saved.as_slice()).is_err());
    }
}
