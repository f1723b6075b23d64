//! READ, WRITE and COMMIT on existing files.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use forebay_wire::nfs3::StableHow;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};

use super::{Call, Next, Outcome, Progress, Workload};
use crate::content::{self, Mismatch};
use crate::ledger::Ledger;
use crate::protocol::{Answer, Handle, Link, Open, Request as Asked};

/// Number of random places that are tried before a client waits for the writes of other clients.
const TRIES: usize = 64;

/// A file to read and write.
#[derive(Debug)]
pub(crate) struct DataFile {
    /// Number that the content of the file contains.
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) handle: Handle,
    /// Bytes when the file is full.
    pub(crate) size: u64,
    /// Record of the writes, if content is checked.
    pub(crate) ledger: Option<Ledger>,
}

/// The order of records.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Access {
    /// Record `cursor * stride + first` of the client's own files or of the shared one.
    Sequential {
        first: u64,
        stride: u64,
    },
    Uniform,
    Zipf(Zipf<f64>),
}

/// The plan of a client on its files.
#[derive(Debug, Clone)]
pub(crate) struct DataPlan {
    pub(crate) files: Vec<Arc<DataFile>>,
    pub(crate) access: Access,
    /// Percentage of reads: 100 means reads only, 0 means writes only.
    pub(crate) read_percent: u8,
    pub(crate) record: u32,
    pub(crate) unit: u32,
    pub(crate) stable: StableHow,
    /// Number of unstable writes before a COMMIT; with `None`, COMMIT comes only at the end.
    pub(crate) commit_every: Option<u32>,
    /// Records in one pass.
    pub(crate) records: u64,
    /// Operations after which the client stops.
    pub(crate) limit: Option<u64>,
    /// True if no client writes meanwhile. Then no unit may be torn, and the part of a READ beyond the end of the
    /// file counts as never written.
    pub(crate) at_rest: bool,
    pub(crate) seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    None,
    Read { file: usize, offset: u64 },
    Write { file: usize, offset: u64 },
    Commit { file: usize },
}

#[derive(Debug)]
struct Slot {
    request: Request,
    /// For a read, the oldest generations that it may return. For a commit, the generations that it makes durable.
    generations: Vec<(u64, u32)>,
}

/// Writes to one file that no COMMIT has covered.
#[derive(Debug, Default)]
struct Dirty {
    writes: u64,
    /// Offsets and generations of units, if there is a ledger.
    units: Vec<(u64, u32)>,
}

/// A client that reads and writes data.
pub(crate) struct Data {
    plan: DataPlan,
    /// The opens of the files.
    opens: Vec<Open>,
    issued: u64,
    in_flight: u32,
    generation: u32,
    rng: SmallRng,
    slots: Vec<Slot>,
    dirty: Vec<Dirty>,
    since_commit: u32,
    committing: usize,
    verifier: Option<[u8; 8]>,
}

impl Data {
    /// Makes a client of the plan's files that has `depth` requests in flight and has sent none yet.
    pub(crate) fn new(plan: DataPlan, depth: u16) -> Self {
        let slots = (0..depth).map(|_| Slot { request: Request::None, generations: Vec::new() }).collect();
        let dirty = plan.files.iter().map(|_| Dirty::default()).collect();
        let committing = plan.files.len();
        let rng = SmallRng::seed_from_u64(plan.seed);
        Self {
            opens: vec![None; committing],
            plan,
            issued: 0,
            in_flight: 0,
            generation: 0,
            rng,
            slots,
            dirty,
            since_commit: 0,
            committing,
            verifier: None,
        }
    }

    /// Returns the file and byte offset of the next record.
    fn place(&mut self) -> (usize, u64) {
        let records = self.plan.records;
        let record = match self.plan.access {
            Access::Sequential { first, stride } => (self.issued % records) * stride + first,
            Access::Uniform => self.rng.random_range(0..records),
            // The multiplier spreads hot records over the files. It is prime and larger than any file.
            Access::Zipf(zipf) => {
                let rank = (zipf.sample(&mut self.rng) as u64).clamp(1, records) - 1;
                (u128::from(rank) * 2_305_843_009_213_693_951 % u128::from(records)) as u64
            }
        };
        let byte = record * u64::from(self.plan.record);
        let size = self.plan.files[0].size;
        ((byte / size) as usize, byte % size)
    }

    /// Chooses the place of the next READ. With a ledger, remembers for each unit the oldest generation that the READ
    /// may return.
    fn read(&mut self, slot: usize) -> Next {
        let (file, offset) = self.place();
        if let Some(ledger) = &self.plan.files[file].ledger {
            let units = (offset..).step_by(self.plan.unit as usize);
            self.slots[slot].generations.clear();
            self.slots[slot].generations.extend(units.zip(ledger.acknowledged(offset, self.plan.record)));
        }
        self.slots[slot].request = Request::Read { file, offset };
        Next::Begin
    }

    /// Chooses the place of the next WRITE, where no other WRITE is in flight if there is a ledger. Waits if it finds
    /// none in `TRIES` attempts.
    fn write(&mut self, slot: usize) -> Next {
        for _ in 0..TRIES {
            let (file, offset) = self.place();
            let ledger = &self.plan.files[file].ledger;
            if ledger.as_ref().is_none_or(|ledger| ledger.begin_write(offset, self.plan.record)) {
                self.generation = self.generation.wrapping_add(1).max(1);
                self.slots[slot].request = Request::Write { file, offset };
                return Next::Begin;
            }
        }
        Next::Wait
    }

    /// Starts a COMMIT of the next file that needs one, if any.
    fn commit(&mut self, slot: usize) -> Option<Next> {
        let file = (self.committing..self.dirty.len()).find(|file| self.dirty[*file].writes > 0)?;
        self.committing = file + 1;
        let dirty = std::mem::take(&mut self.dirty[file]);
        self.slots[slot] = Slot { request: Request::Commit { file }, generations: dirty.units };
        self.in_flight += 1;
        Some(Next::GoOn)
    }

    /// Checks the length of a READ and, with a ledger, the generation of every unit. A READ at rest may end at the
    /// end of the file.
    fn read_reply(&mut self, slot: usize, file: usize, offset: u64, answer: &Answer<'_>) -> Result<Progress> {
        let target = &self.plan.files[file];
        let what = || format!("{} at offset {offset}", target.name);
        let data = answer.named(answer.data(), what)?;
        let short = data.len() < self.plan.record as usize && self.plan.at_rest;
        if data.len() != self.plan.record as usize && !short {
            bail!("READ of {} returned {} of {} bytes", what(), data.len(), self.plan.record);
        }
        if let Some(ledger) = &target.ledger {
            let unit = self.plan.unit as usize;
            for (number, (at, oldest)) in self.slots[slot].generations.iter().enumerate() {
                let bytes = data.get(number * unit..(number + 1) * unit);
                let found = bytes.map_or(Ok(0), |bytes| content::check(bytes, target.id, *at));
                check_unit(found, *oldest, ledger.sent(*at), self.plan.at_rest)
                    .with_context(|| format!("{} at offset {at} is wrong", target.name))?;
            }
        }
        Ok(Progress::COMPLETE.with_bytes(data.len() as u64))
    }

    /// Checks that the WRITE is complete and as stable as the client asked. An unstable WRITE has to be committed
    /// later, under one write verifier.
    fn write_reply(&mut self, file: usize, offset: u64, answer: &Answer<'_>) -> Result<Progress> {
        let target = self.plan.files[file].clone();
        let what = || format!("{} at offset {offset}", target.name);
        let written = answer.named(answer.written(), what)?;
        if written.count != self.plan.record {
            bail!("WRITE of {} wrote {} of {} bytes", what(), written.count, self.plan.record);
        }
        if written.committed < self.plan.stable {
            bail!(
                "WRITE of {} is {:?}, but the client asked for {:?}",
                what(),
                written.committed,
                self.plan.stable
            );
        }
        let stable = written.committed != StableHow::Unstable;
        if !stable {
            self.check_verifier(written.verifier)?;
            self.dirty[file].writes += 1;
            self.since_commit += 1;
        }
        if let Some(ledger) = &target.ledger {
            ledger.end_write(offset, self.plan.record, stable);
            if !stable {
                let units = (offset..).step_by(self.plan.unit as usize);
                self.dirty[file].units.extend(units.zip(ledger.acknowledged(offset, self.plan.record)));
            }
        }
        Ok(Progress::COMPLETE.with_bytes(u64::from(written.count)))
    }

    /// Checks the write verifier of a COMMIT. The units that were acknowledged before it must survive a crash of the
    /// server from now on.
    fn commit_reply(&mut self, slot: usize, file: usize, answer: &Answer<'_>) -> Result<Progress> {
        let target = self.plan.files[file].clone();
        let verifier = answer.named(answer.committed(), || target.name.clone())?;
        self.check_verifier(verifier)?;
        if let Some(ledger) = &target.ledger {
            for (at, generation) in self.slots[slot].generations.drain(..) {
                ledger.make_durable(at, generation);
            }
        }
        Ok(Progress::ASIDE)
    }

    /// Fails if the write verifier differs from the first one. This client sends no WRITE again, so its unstable data
    /// may be lost.
    fn check_verifier(&mut self, verifier: [u8; 8]) -> Result<()> {
        if *self.verifier.get_or_insert(verifier) != verifier {
            bail!("the server's write verifier has changed: the server was restarted, or lost unstable data");
        }
        Ok(())
    }
}

/// Checks whether a READ may return this unit. `oldest` is the generation acknowledged before the READ was sent.
/// `newest` is the one sent last when the reply arrived.
fn check_unit(found: Result<u32, Mismatch>, oldest: u32, newest: u32, at_rest: bool) -> Result<()> {
    // A READ during a WRITE of the unit may return parts of both contents. No file system promises more.
    let racing = newest > oldest && !at_rest;
    match found {
        Err(Mismatch::Torn { .. }) if racing => Ok(()),
        Err(_) if racing && oldest == 0 => Ok(()),
        Err(mismatch) => Err(mismatch.into()),
        Ok(generation) if generation < oldest => {
            bail!("the unit went back to generation {generation} from {oldest}")
        }
        Ok(generation) if generation > newest => {
            bail!("the unit has generation {generation}, but the newest written was {newest}")
        }
        Ok(_) => Ok(()),
    }
}

impl Workload for Data {
    fn next(&mut self, slot: usize, stopping: bool) -> Next {
        if let Some(next) = self.commit(slot) {
            return next;
        }
        if stopping || self.plan.limit.is_some_and(|limit| self.issued >= limit) {
            if self.in_flight > 0 {
                return Next::Wait;
            }
            self.committing = 0;
            return self.commit(slot).unwrap_or(Next::Finished);
        }
        if self.plan.commit_every.is_some_and(|every| self.since_commit >= every) {
            (self.since_commit, self.committing) = (0, 0);
            if let Some(next) = self.commit(slot) {
                return next;
            }
        }
        let read = match self.plan.read_percent {
            0 => false,
            100 => true,
            percent => self.rng.random_range(0..100) < percent,
        };
        let next = if read { self.read(slot) } else { self.write(slot) };
        if next != Next::Wait {
            self.issued += 1;
            self.in_flight += 1;
        }
        next
    }

    fn send(&self, slot: usize, call: &mut Call<'_>) {
        let DataPlan { record, unit, stable, ref files, .. } = self.plan;
        match self.slots[slot].request {
            Request::Read { file, offset } => {
                let (open, file) = (self.opens[file], files[file].handle);
                call.start(&Asked::Read { file, open, offset, count: record });
            }
            Request::Write { file, offset } => {
                let (open, target) = (self.opens[file], &files[file]);
                let (file, count) = (target.handle, record);
                let out = call.start(&Asked::Write { file, open, offset, count, stable });
                for at in (offset..offset + u64::from(record)).step_by(unit as usize) {
                    let generation = target.ledger.as_ref().map_or(self.generation, |ledger| ledger.sent(at));
                    content::append(out, target.id, at, generation, unit as usize);
                }
            }
            Request::Commit { file } => {
                call.start(&Asked::Commit { file: files[file].handle });
            }
            Request::None => {
                call.start(&Asked::Null);
            }
        }
    }

    fn reply(&mut self, slot: usize, answer: &Answer<'_>) -> Result<Progress> {
        self.in_flight -= 1;
        match std::mem::replace(&mut self.slots[slot].request, Request::None) {
            Request::Read { file, offset } => self.read_reply(slot, file, offset, answer),
            Request::Write { file, offset } => self.write_reply(file, offset, answer),
            Request::Commit { file } => self.commit_reply(slot, file, answer),
            Request::None => Ok(Progress { outcome: Outcome::Aside, bytes: 0, entries: 0 }),
        }
    }

    fn prepare(&mut self, link: &mut Link) -> Result<()> {
        for (file, open) in self.plan.files.iter().zip(&mut self.opens) {
            *open = link.open_file(file.handle, &file.name)?;
        }
        Ok(())
    }

    fn finish(&mut self, link: &mut Link) -> Result<()> {
        for (file, open) in self.plan.files.iter().zip(&mut self.opens) {
            link.close_file(file.handle, open.take(), &file.name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_read_may_bring_depends_on_who_writes() {
        let torn = || Err(Mismatch::Torn { generation: 3, at: 128 });
        assert!(check_unit(Ok(3), 3, 3, false).is_ok());
        assert!(check_unit(Ok(2), 3, 3, false).is_err(), "it went back");
        assert!(check_unit(Ok(4), 3, 3, false).is_err(), "nobody wrote that");
        assert!(check_unit(torn(), 3, 3, false).is_err(), "nobody was writing");
        assert!(check_unit(torn(), 3, 4, false).is_ok(), "somebody was");
        assert!(check_unit(torn(), 3, 4, true).is_err(), "after a crash nobody is");
        assert!(check_unit(Err(Mismatch::Foreign), 0, 1, false).is_ok(), "half of the first content");
        assert!(check_unit(Err(Mismatch::Foreign), 1, 2, false).is_err());
    }
}
