//! The checks after a crash.
//!
//! - The log has all answered changes, and a prefix of the records that were put into it.
//! - The tree agrees with the operations in the log, as far as [`Expected`] says. So handles of existing objects work,
//!   and no others do.
//! - Every file has the contents that the model allows.

use std::collections::{BTreeMap, BTreeSet};

use forebay_engine::{UserRecord, UserRecordId};
use forebay_oplog::{Identity, Operation, Outcome, Record, RenameIntent};

use super::harness::{Answer, Ended, Logged, Xid};
use super::world::World;
use crate::hits::Fault;
use crate::namespace::check::{Crash, Expected};
use crate::namespace::history::{History, Set, Step};
use crate::namespace::volume::{State as Names, Volume};

/// A session that has ended, from the file system at its start.
pub(super) struct Crashed {
    initial: Volume,
    before: u64,
    /// The steps of the session. Transactions are counted from its start.
    steps: Vec<Step>,
    /// The number of transactions at the start, and the number that is left.
    begin: usize,
    left: usize,
    answers: BTreeMap<u64, Logged>,
    order: Vec<u64>,
    /// The requests with an answer in the log when the session began.
    known: BTreeSet<Xid>,
    /// The operations in the log, once the log was read.
    logged: Option<BTreeSet<u64>>,
    /// The last change that a checkpoint of the session covers. A recovery that is cut short may have logged a later
    /// checkpoint.
    checkpoint: Option<u64>,
}

impl Crashed {
    /// Gathers the facts about a crashed session that the checks after the next start need. Places of transactions
    /// are counted from the begin of the session.
    pub(super) fn new(world: &mut World, ended: Ended) -> Self {
        let Ended { mut steps, answers, order, released, dropped } = ended;
        (world.released, world.dropped) = (released, dropped);
        let begin = world.begin;
        for step in &mut steps {
            (step.begin, step.end) = (step.begin - begin, step.end - begin);
        }
        let left = world.shared.store.lock().transactions();
        let initial = world.initial.clone();
        let known = world.kept.iter().filter_map(|(_, it)| Answer::read(&it.reply));
        let known = known.map(|(xid, _)| xid).collect();
        Crashed {
            initial,
            before: world.before,
            steps,
            begin,
            left,
            answers,
            order,
            known,
            logged: None,
            checkpoint: None,
        }
    }

    /// Notes the checkpoint in the log. The first recovery after the session knows it.
    pub(super) fn read_checkpoint(&mut self, checkpoint: u64) {
        self.checkpoint.get_or_insert(checkpoint);
    }

    /// Notes that only this number of transactions is left.
    pub(super) fn cut(&mut self, transactions: usize) {
        self.left = self.left.min(transactions);
    }

    fn transactions(&self) -> usize {
        self.left - self.begin
    }

    /// Checks that no request was carried out twice, or carried out again with its answer in the log.
    fn check_once(&self) -> Result<(), String> {
        let mut known = self.known.clone();
        let carried_out = self.steps.iter().filter_map(|step| Answer::read(&step.done.operation.reply));
        match carried_out.map(|(xid, _)| xid).find(|xid| !known.insert(*xid)) {
            Some(xid) => Err(format!("request {xid} was carried out twice (P14)")),
            None => Ok(()),
        }
    }

    /// Compares the log with the records that were put into it. User records up to `released` may be missing.
    fn check_log(
        &mut self,
        found: &BTreeMap<u64, Operation>,
        released: UserRecordId,
        dropped: &BTreeSet<u64>,
    ) -> Result<(), String> {
        self.check_once()?;
        let mut logged = BTreeSet::new();
        for Step { done, .. } in &self.steps {
            let number = done.operation.number;
            let Logged { note, answered } = self.answers.get(&number).cloned().unwrap_or_default();
            match found.get(&number) {
                Some(operation) if *operation != done.operation => {
                    return Err(format!("operation {number} or its reply is not what was logged (P14)"));
                }
                Some(_) => _ = logged.insert(number),
                None if note.is_some_and(|note| note <= released) => _ = logged.insert(number),
                None if dropped.contains(&number) => _ = logged.insert(number),
                None if answered => {
                    return Err(format!("operation {number} was answered and is not in the log (P1)"));
                }
                None => {}
            }
        }
        let lost = self.order.iter().find(|number| !logged.contains(number));
        let later = lost.and_then(|lost| {
            let behind = self.order.iter().skip_while(|number| *number != lost);
            behind.copied().find(|number| logged.contains(number))
        });
        if let (Some(lost), Some(later)) = (lost, later) {
            return Err(format!("the log has operation {later} and not {lost} before it (P3)"));
        }
        self.logged = Some(logged);
        Ok(())
    }

    /// Checks names, handles and attributes against the operations that recovery found in the log. Operations without
    /// a record may or may not have happened.
    fn check_tree(&self, after: &Volume, checkpoint: u64) -> Result<(), String> {
        let logged = self.logged.as_ref();
        let set = self.steps.iter().enumerate().fold(0, |set: Set, (index, step)| {
            let is_logged = logged.is_some_and(|logged| logged.contains(&step.done.operation.number));
            set | Set::from(is_logged) << index
        });
        let history = History::of(self.initial.clone(), self.steps.clone(), self.before);
        let crash = Crash { logged: set, reverse: false, checkpoint, transactions: self.transactions() };
        Expected::new(&history, crash).check(after)
    }

    /// Returns all objects of the session, by the identity that clients know.
    fn identities(&self) -> Vec<Identity> {
        History::of(self.initial.clone(), self.steps.clone(), self.before).identities().collect()
    }
}

impl World {
    /// Checks that the log has the records that were put into it.
    pub(super) fn check_log(&mut self, notes: &[UserRecord]) -> Result<(), String> {
        let operation = |note: &UserRecord| match Record::decode(&note.bytes) {
            Some(Record::Operation(operation)) => Some((note.id, *operation)),
            _ => None,
        };
        let operations: Vec<(UserRecordId, Operation)> = notes.iter().filter_map(operation).collect();
        let found: BTreeMap<u64, Operation> =
            operations.iter().map(|(_, it)| (it.number, it.clone())).collect();
        for (note, operation) in &self.kept {
            let may_be_gone = *note <= self.released || self.dropped.contains(&operation.number);
            if !may_be_gone && found.get(&operation.number) != Some(operation) {
                return Err(format!(
                    "operation {}, found before, is not in the log any more (P14)",
                    operation.number
                ));
            }
        }
        if let Some(crashed) = self.crashed.as_mut().filter(|crashed| crashed.logged.is_none()) {
            crashed.check_log(&found, self.released, &self.dropped)?;
        }
        (self.kept, self.released) = (operations, 0);
        self.dropped.clear();
        Ok(())
    }

    /// Checks that the tree agrees with the log.
    pub(super) fn check_names(&mut self, checkpoint: u64) -> Result<(), String> {
        let volume = self.shared.store.lock().volume.clone();
        if let Some(crashed) = &self.crashed {
            crashed.check_tree(&volume, crashed.checkpoint.unwrap_or(checkpoint))?;
            let gone = |object: &Identity| volume.resolve(*object).is_none();
            if let Some(risen) = self.dead.iter().find(|dead| !gone(dead)) {
                return Err(format!("{risen:?} was removed in an earlier session and its handle works"));
            }
            // No client knows an object whose creation is not in the log.
            let logged = |number| crashed.logged.as_ref().is_some_and(|logged| logged.contains(number));
            let steps = crashed.steps.iter().filter(|step| !logged(&step.done.operation.number));
            let unknown: BTreeSet<Identity> = steps.filter_map(|step| step.done.made()).collect();
            let identities = crashed.identities().into_iter().filter(|object| !unknown.contains(object));
            self.dead.extend(identities.filter(gone));
        }
        for (file, _) in self.shared.numbered() {
            if volume.resolve(file).is_none() {
                self.shared.forget(file);
            }
        }
        Ok(())
    }

    /// Checks that the tree has all changes since the last start.
    pub(super) fn check_names_after_stop(&mut self) -> Result<(), String> {
        if let Some(crashed) = &mut self.crashed {
            crashed.check_once()?;
            crashed.logged = Some(crashed.steps.iter().map(|step| step.done.operation.number).collect());
        }
        self.check_names(0)
    }

    /// Counts the cases that a crash has left for recovery.
    pub(super) fn count_crash(&self, intents: &[RenameIntent], checkpoint: u64) {
        let Some(crashed) = &self.crashed else { return };
        let logged = |number: &u64| crashed.logged.as_ref().is_some_and(|logged| logged.contains(number));
        let left = crashed.transactions();
        let steps = || crashed.steps.iter().map(|step| (step.done.operation.number, step));
        let hits = &self.shared.hits;
        for (hit, fault) in [
            (
                steps().any(|(number, step)| logged(&number) && number > checkpoint && step.end > left),
                Fault::JoinedLost,
            ),
            (steps().any(|(number, step)| !logged(&number) && step.begin < left), Fault::JoinedAhead),
            (
                intents.iter().any(|intent| !logged(&intent.number) && intent.number > self.before),
                Fault::JoinedIntent,
            ),
        ] {
            if hit {
                hits.hit(fault);
            }
        }
    }

    /// Counts the effects of recovery. Returns the objects that it recreated.
    pub(super) fn count_outcome(&self, before: &Names, after: &Names, outcome: &Outcome) -> Vec<Identity> {
        let known = |outer: &Identity| before.identities.entry(outer).is_some();
        let made = outcome.aliases.iter().map(|(outer, _)| *outer).filter(|outer| !known(outer));
        let made: Vec<Identity> = made.collect();
        if !made.is_empty() {
            self.shared.hits.hit(Fault::JoinedMadeAgain);
        }
        let stays = |dir: &Identity, name: &[u8], object: &Identity| {
            after.inodes.get(dir).is_some_and(|inode| inode.entries.get(name) == Some(object))
        };
        let taken = before
            .inodes
            .iter()
            .any(|(dir, inode)| inode.entries.iter().any(|(name, object)| !stays(dir, name, object)));
        if taken {
            self.shared.hits.hit(Fault::JoinedTaken);
        }
        made
    }
}
