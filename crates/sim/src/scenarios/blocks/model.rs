//! The known contents of a block device with a volatile write cache.
//!
//! The unit is a sector of 512 bytes. A crash may lose any subset of the changes that no flush followed. So a sector
//! then has the value of its last durable change, or of any later change. If only the server is killed, its logged
//! changes are durable as well. A discarded sector has zeros or its value from before.

use std::collections::BTreeMap;

use forebay_volume::disk::Stability;

use crate::world::Crash;

/// Bytes of a sector.
pub(super) const SECTOR: usize = 512;
/// The value of a sector of zeros.
pub(super) const ZERO: u64 = 0;

/// A change of a run of sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// A write, or zeros. Each sector gets a value of its own.
    Put,
    /// Zeros.
    Zero,
    /// A discard.
    Discard,
}

#[derive(Clone, Debug)]
struct Sector {
    /// The possible values without the changes of `later`.
    base: Vec<u64>,
    /// Changes that are not known to be durable, oldest first: number, kind.
    later: Vec<(u64, Change)>,
    /// Values that may be found as well, each because of a change that has failed: its number, the value. They last
    /// until a later change is durable, or until a crash decides.
    doubtful: Vec<(u64, u64)>,
}

/// The device as its clients know it.
#[derive(Debug, Default)]
pub(super) struct Model {
    sectors: BTreeMap<u64, Sector>,
    /// Answered changes that are not known to be durable: number, first sector, end.
    answered: Vec<(u64, u64, u64)>,
    /// Those of them that a crash of the server alone does not lose.
    logged: Vec<u64>,
    last: u64,
    /// True if a failed sync may take back changes in service that no flush followed.
    pub(super) lossy: bool,
}

/// Returns the value of a sector that change `number` put there.
pub(super) fn value(number: u64, sector: u64) -> u64 {
    number << 24 | (sector + 1)
}

/// Fills a sector with a value.
pub(super) fn fill(bytes: &mut [u8], value: u64) {
    for chunk in bytes.chunks_exact_mut(8) {
        chunk.copy_from_slice(&value.to_le_bytes());
    }
}

/// Returns the value of a sector; `None` if it is torn.
pub(super) fn read(bytes: &[u8]) -> Option<u64> {
    let first = u64::from_le_bytes(bytes[..8].try_into().ok()?);
    bytes.chunks_exact(8).all(|chunk| chunk == first.to_le_bytes()).then_some(first)
}

impl Sector {
    fn new() -> Self {
        Sector { base: vec![ZERO], later: Vec::new(), doubtful: Vec::new() }
    }

    /// Applies a change to the possible values of a sector. A discard leaves the old value possible beside zeros.
    fn apply(values: &mut Vec<u64>, sector: u64, (number, change): (u64, Change)) {
        match change {
            Change::Put => *values = vec![value(number, sector)],
            Change::Zero => *values = vec![ZERO],
            Change::Discard if values.contains(&ZERO) => {}
            Change::Discard => values.push(ZERO),
        }
    }

    /// Returns the values that a read may find if no change is in progress.
    fn now(&self, sector: u64) -> Vec<u64> {
        let mut values = self.base.clone();
        self.later.iter().for_each(|change| Sector::apply(&mut values, sector, *change));
        values
    }

    /// Returns the values that a crash may leave.
    fn after_crash(&self, sector: u64) -> Vec<u64> {
        let mut values = self.base.clone();
        for change in &self.later {
            let mut one = Vec::new();
            Sector::apply(&mut one, sector, *change);
            values.extend(one);
        }
        values.sort_unstable();
        values.dedup();
        values
    }
}

impl Model {
    /// Begins a change of sectors. Returns its number.
    pub(super) fn begin(&mut self, sectors: std::ops::Range<u64>, change: Change) -> u64 {
        self.last += 1;
        for sector in sectors {
            self.sectors.entry(sector).or_insert_with(Sector::new).later.push((self.last, change));
        }
        self.last
    }

    /// Ends a change, which has this stability.
    pub(super) fn end(&mut self, number: u64, sectors: std::ops::Range<u64>, stability: Stability) {
        self.answered.push((number, sectors.start, sectors.end));
        match stability {
            Stability::Unstable => {}
            Stability::Logged => self.logged.push(number),
            Stability::Durable => self.durable(&[number]),
        }
    }

    /// Notes that a change has failed. Each of its sectors may have the older value or the new one, now and later.
    pub(super) fn failed(&mut self, number: u64, sectors: std::ops::Range<u64>) {
        for (sector, state) in self.sectors.range_mut(sectors) {
            let values = state.after_crash(*sector);
            state.doubtful.extend(values.into_iter().map(|value| (number, value)));
            state.later.retain(|(it, _)| *it != number);
        }
    }

    /// Returns the answered changes. A successful flush that begins now makes them durable.
    pub(super) fn answered(&self) -> Vec<u64> {
        self.answered.iter().map(|(number, ..)| *number).collect()
    }

    /// Notes that changes are durable.
    pub(super) fn durable(&mut self, numbers: &[u64]) {
        let (done, rest) = self.answered.drain(..).partition(|(number, ..)| numbers.contains(number));
        self.answered = rest;
        let mut done: Vec<(u64, u64, u64)> = done;
        done.sort_unstable();
        for (number, start, end) in done {
            for (sector, state) in self.sectors.range_mut(start..end) {
                let Some(at) = state.later.iter().position(|(it, _)| *it == number) else { continue };
                let before: Vec<_> = state.later.drain(..=at).collect();
                match before.last() {
                    // An earlier change may still be lost.
                    Some((_, Change::Discard)) => {
                        let earlier =
                            Sector { base: state.base.clone(), later: before, doubtful: Vec::new() };
                        state.base = earlier.after_crash(*sector);
                    }
                    Some(change) => {
                        state.doubtful.retain(|(failed, _)| *failed > number);
                        Sector::apply(&mut state.base, *sector, *change);
                    }
                    None => {}
                }
            }
        }
    }

    /// Notes a crash: every change may be lost that is neither durable nor, if the server was killed, logged.
    pub(super) fn crash(&mut self, how: Crash) {
        let logged = std::mem::take(&mut self.logged);
        if how == Crash::Kill {
            self.durable(&logged);
        }
        self.answered.clear();
        for (sector, state) in &mut self.sectors {
            state.base = state.after_crash(*sector);
            state.base.extend(state.doubtful.drain(..).map(|(_, value)| value));
            state.later.clear();
        }
    }

    /// Checks the bytes of a read, with no change of them in progress. Later reads must find the same.
    pub(super) fn check(&mut self, first: u64, bytes: &[u8]) -> Result<(), String> {
        for (sector, bytes) in (first..).zip(bytes.chunks_exact(SECTOR)) {
            let state = self.sectors.entry(sector).or_insert_with(Sector::new);
            let mut possible = state.now(sector);
            if self.lossy {
                possible.extend(state.after_crash(sector));
            }
            possible.extend(state.doubtful.iter().map(|(_, value)| value));
            match read(bytes).filter(|found| possible.contains(found)) {
                Some(found) if state.later.is_empty() && state.doubtful.is_empty() => {
                    state.base = vec![found]
                }
                Some(_) => {}
                None => {
                    return Err(format!(
                        "sector {sector} holds {:x?}, possible are {possible:x?}",
                        read(bytes)
                    ));
                }
            }
        }
        Ok(())
    }
}

#[test]
fn a_crash_may_lose_any_unflushed_change_and_no_flushed_one() {
    let mut model = Model::default();
    let change = |model: &mut Model, change| {
        let number = model.begin(0..1, change);
        model.end(number, 0..1, Stability::Unstable);
        number
    };
    let holds = |model: &mut Model, value| {
        let mut bytes = [0; SECTOR];
        fill(&mut bytes, value);
        model.check(0, &bytes).is_ok()
    };
    let first = change(&mut model, Change::Put);
    let flushed = model.answered();
    let second = change(&mut model, Change::Put);
    model.durable(&flushed);
    assert!(!holds(&mut model, value(first, 0)) && holds(&mut model, value(second, 0)));
    model.crash(Crash::Kill);
    assert!(!holds(&mut model, ZERO) && holds(&mut model, value(first, 0)));
    assert!(!holds(&mut model, value(second, 0)), "what was read stays");
    let third = change(&mut model, Change::Discard);
    model.durable(&[third]);
    assert!(holds(&mut model, ZERO) && !holds(&mut model, value(first, 0)));
}
