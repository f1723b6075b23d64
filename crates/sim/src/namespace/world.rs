//! Random long lives of trees: one seed is one tree that lives through several crashes.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_oplog::{Identity, Kind, New};

use super::check::{Crash, Expected, recover};
use super::choice::{any_place, any_request};
use super::exhaustive::small_tree;
use super::history::{History, Set};
use super::volume::Volume;
use crate::hits::{Fault, Hits};
use crate::rng::{Rng, mix};
use crate::world::Outcome;

/// The number of operations that may lack a record at a crash, and the number of last operations that they are among.
const OPEN: u32 = 6;
const WINDOW: usize = 12;

/// More slots than the last operations need.
const SLOTS: u64 = 16;

struct World {
    rng: Rng,
    hits: Hits,
    steps: u64,
    digest: u64,
    log: Option<Vec<String>>,
    /// The objects that were removed in an earlier life.
    dead: BTreeSet<Identity>,
}

/// Runs the world of `seed` to its end.
pub fn run(seed: u64, keep_log: bool) -> Outcome {
    let rng = Rng::new(seed);
    let mut world = World {
        rng,
        hits: Hits::default(),
        steps: 0,
        digest: seed,
        log: keep_log.then(Vec::new),
        dead: BTreeSet::new(),
    };
    let failure = world.live().err();
    let World { hits, steps, digest, log, .. } = world;
    Outcome { failure, digest, steps, hits: Arc::new(hits), log: log.unwrap_or_default() }
}

impl World {
    /// Adds a line to the log, if a person asked for one.
    fn tell(&mut self, line: impl FnOnce() -> String) {
        if let Some(log) = &mut self.log {
            log.push(line());
        }
    }

    /// Carries out the lives of the tree: each is a number of requests, a crash and a recovery with checks. The
    /// digest covers every recovered state.
    fn live(&mut self) -> Result<(), String> {
        let (mut volume, mut number) = (small_tree(), 0);
        for life in 0..self.rng.within(2, 6) {
            self.tell(|| format!("life {life}"));
            let mut history = History::new(volume, number);
            let count = self.rng.within(1, 40) as usize;
            while history.steps.len() < count {
                self.step(&mut history);
            }
            number += count as u64;
            let logged;
            (volume, logged) = self.crash(&history)?;
            // The checkpoint is durable.
            volume.state.slots.clear();
            volume.read_identities();
            self.bury(&history, logged, &volume)?;
            self.steps += history.volume.history.len() as u64;
            self.digest = format!("{:?}", volume.state)
                .bytes()
                .fold(self.digest, |sum, byte| mix(sum ^ u64::from(byte)));
        }
        Ok(())
    }

    /// Carries out one operation that is not refused.
    fn step(&mut self, history: &mut History) {
        let slot = (history.before + history.steps.len() as u64 + 1) % SLOTS;
        loop {
            let request = any_request(&mut self.rng, &history.volume);
            if let Ok(done) = history.carry_out(&request, slot as usize) {
                let told = format!("{} {:?}", done.operation.number, done.request);
                return self.tell(|| told);
            }
        }
    }

    /// Cuts the power, perhaps again in the recovery. Returns the state that the last recovery leaves, and
    /// the operations in the log.
    fn crash(&mut self, history: &History) -> Result<(Volume, Set), String> {
        let crash = self.choose(history);
        self.tell(|| format!("{crash:?}"));
        let expected = Expected::new(history, crash);
        let crashed = history.crashed(crash.transactions);
        self.meddle(history, crash, &crashed)?;
        let mut recovered = recover(history, crash, crashed)?;
        expected.check(&recovered.volume)?;
        for cut in 0..self.rng.below(4) {
            if recovered.volume.history.is_empty() {
                break;
            }
            let at = self.rng.index(recovered.volume.history.len());
            self.tell(|| format!("cut again after {} steps of recovery", at + 1));
            self.hits.hit(if cut == 0 { Fault::NamesCutInRecovery } else { Fault::NamesCutAgain });
            recovered = recover(history, crash, recovered.volume.with(&recovered.volume.history[at]))?;
            expected.check(&recovered.volume)?;
        }
        let made = recovered.outcome.aliases.len() > history.initial.state.identities.entries().count();
        self.count(&[(made, Fault::NamesMadeAgain)]);
        Ok((recovered.volume, crash.logged))
    }

    fn count(&self, hits: &[(bool, Fault)]) {
        hits.iter().filter(|(hit, _)| *hit).for_each(|(_, fault)| self.hits.hit(*fault));
    }

    /// Chooses the remains of the log and the file system.
    fn choose(&mut self, history: &History) -> Crash {
        let count = history.steps.len();
        let mut logged: Set = (1 << count) - 1;
        for index in (count.saturating_sub(WINDOW)..count).rev() {
            let without = logged & !(1 << index);
            if (!without).trailing_zeros() < count as u32
                && count as u32 - without.count_ones() <= OPEN
                && self.rng.chance(6000)
                && history.may_be_logged(without)
            {
                logged = without;
            }
        }
        let oldest = (!logged).trailing_zeros() as usize;
        // An operation with a number below the checkpoint may lack its record, too.
        let checkpoint = self.rng.below(oldest.min(count) as u64 + 2).min(count as u64);
        let checkpoint = if self.rng.chance(3000) { 0 } else { checkpoint };
        let durable = if checkpoint == 0 { 0 } else { history.steps[checkpoint as usize - 1].end };
        let all = history.steps[count - 1].end;
        let least = if self.rng.chance(5000) { durable.max(all.saturating_sub(2 * WINDOW)) } else { durable };
        let transactions = self.rng.within(least as u64, all as u64) as usize;
        let reverse = self.rng.chance(5000);
        let steps = || history.steps.iter().enumerate().map(|(index, step)| (logged >> index & 1 == 1, step));
        self.count(&[
            (steps().any(|(logged, step)| logged && step.end > transactions), Fault::NamesLost),
            (steps().any(|(logged, step)| !logged && step.begin < transactions), Fault::NamesAhead),
            (steps().any(|(_, step)| step.begin < transactions && transactions < step.end), Fault::NamesHalf),
            (checkpoint > 0 && checkpoint < count as u64, Fault::NamesCheckpoint),
            (
                reverse && history.records(logged, true) != history.records(logged, false),
                Fault::NamesOtherOrder,
            ),
        ]);
        Crash { logged, reverse, checkpoint: history.before + checkpoint, transactions }
    }

    /// Puts a file somewhere before the recovery, like an administrator. Recovery must not remove it.
    fn meddle(&mut self, history: &History, crash: Crash, crashed: &Volume) -> Result<(), String> {
        let mut meddled = crashed.clone();
        let (dir, name) = any_place(&mut self.rng, crashed, false);
        let dir = crashed.resolve(dir).unwrap_or(Volume::root());
        let theirs = history.identity_for_others(&meddled);
        if meddled.make_as(Some(theirs), (dir, &name), Kind::File, &New::Plain).is_err() {
            return Ok(());
        }
        self.hits.hit(Fault::NamesMeddled);
        let recovered = recover(history, crash, meddled)?;
        self.count(&[(!recovered.outcome.set_aside.is_empty(), Fault::NamesSetAside)]);
        match recovered.volume.inode(theirs) {
            Ok(_) => Ok(()),
            Err(_) => Err(format!("what somebody put at {:?} is gone", (dir, name))),
        }
    }

    /// Checks that removed objects stay removed in all lives.
    fn bury(&mut self, history: &History, logged: Set, volume: &Volume) -> Result<(), String> {
        if let Some(risen) = self.dead.iter().find(|dead| volume.resolve(**dead).is_some()) {
            return Err(format!("{risen:?} was removed in an earlier life and its handle works"));
        }
        // No client knows an object whose creation is not in the log.
        let made = history.steps.iter().enumerate().filter(|(index, _)| logged >> index & 1 == 1);
        let made = made.filter_map(|(_, step)| step.done.made());
        let before = history.initial.state.inodes.keys().map(|inner| history.initial.outer(*inner));
        self.dead.extend(before.chain(made).filter(|object| volume.resolve(*object).is_none()));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_worlds() {
        for seed in 1..=60 {
            assert_eq!(run(seed, false).failure, None, "seed {seed}");
        }
    }
}
