//! User records. Tasks write them beside the clients' work, and release them when the engine asks and at other times.
//! After every recovery they are compared with the expected ones. In some sessions one in a few is needed for good.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::io::{BackingError, Clock as _};
use forebay_engine::{Engine, USER_RECORD_MAX, UserRecord, UserRecordId};

use crate::client::{Allowed, Shared};
use crate::front::durable;
use crate::hits::Fault;
use crate::rng::{Rng, mix};

/// The user records that recovery must find.
#[derive(Default)]
pub struct Ledger {
    /// The number in the contents of the next user record.
    next: u64,
    /// The numbers of all user records since the engine was opened, and of the records that it found then.
    written: BTreeMap<UserRecordId, u64>,
    /// User records up to this one are durable.
    durable: UserRecordId,
    /// User records up to this one may be missing.
    released: UserRecordId,
    /// True if user records that are needed for good must not be missing.
    keeps: bool,
    /// True while the needed user records cannot be reappended: a flush then ends with an error.
    pub stuck: bool,
}

/// Returns true if a user record with these contents is needed in a session that keeps some.
fn is_needed(bytes: &[u8]) -> bool {
    number_of(bytes).is_none_or(|number| number.is_multiple_of(16))
}

/// Returns the contents of user record `number`. Most are short, some have the greatest length.
fn contents(number: u64) -> Vec<u8> {
    let most = if number.is_multiple_of(5) { USER_RECORD_MAX - 8 } else { 200 };
    let len = 8 + (mix(number) % (most as u64 + 1)) as usize;
    let words = (1..).flat_map(|word| mix(number ^ mix(word)).to_le_bytes());
    number.to_le_bytes().into_iter().chain(words).take(len).collect()
}

/// Returns the number of the user record with these contents.
fn number_of(bytes: &[u8]) -> Option<u64> {
    let (number, _) = bytes.split_first_chunk::<8>()?;
    let number = u64::from_le_bytes(*number);
    (contents(number) == bytes).then_some(number)
}

impl Ledger {
    /// Returns the contents of a new user record, from which its number can be read.
    fn begin(&mut self) -> Vec<u8> {
        self.next += 1;
        contents(self.next)
    }

    /// Notes a user record that the engine accepted. Fails if the engine has given its number to another record.
    fn wrote(&mut self, id: UserRecordId, bytes: &[u8]) -> Result<(), String> {
        let number = number_of(bytes).unwrap_or_default();
        match self.written.insert(id, number) {
            Some(_) => Err(format!("two notes have the number {id}")),
            None => Ok(()),
        }
    }

    fn durable(&mut self, id: UserRecordId) {
        self.durable = self.durable.max(id);
    }

    /// Notes that every device is lost for good.
    pub fn lose_all(&mut self) {
        self.written.clear();
        (self.durable, self.released) = (0, 0);
    }

    /// Compares the records that the engine found with the records that were written. The next recovery must find the
    /// same set again. Unless `strict`, both copies of a record may be lost.
    pub fn recovered(&mut self, notes: &[UserRecord], strict: bool) -> Result<(), String> {
        let numbers: Option<Vec<_>> = notes.iter().map(|note| number_of(&note.bytes)).collect();
        let numbers = numbers.ok_or("recovery hands back a note that nobody wrote")?;
        if !notes.iter().map(|note| note.id).eq(1..=notes.len() as UserRecordId) {
            return Err("recovered notes are not numbered from 1 on".to_owned());
        }
        if strict {
            self.compare(&numbers)?;
        }
        self.durable = notes.len() as UserRecordId;
        self.released = 0;
        self.written = notes.iter().map(|note| note.id).zip(numbers).collect();
        Ok(())
    }

    /// Compares the records that recovery returns with the written ones. Durable records must be there unless they
    /// were released (P1), and the order must be that of the log (P3).
    fn compare(&self, numbers: &[u64]) -> Result<(), String> {
        let known: BTreeSet<u64> = self.written.values().copied().collect();
        if let Some(number) = numbers.iter().find(|number| !known.contains(number)) {
            return Err(format!("recovery hands back note {number} from before the last recovery"));
        }
        let kept = |number: &u64| self.keeps && number.is_multiple_of(16);
        let found: BTreeSet<u64> = numbers.iter().copied().collect();
        let durable = || self.written.range(..=self.durable);
        if let Some((id, _)) = durable().find(|(_, number)| kept(number) && !found.contains(number)) {
            return Err(format!("recovery did not find note {id}, which is needed still (P1)"));
        }
        let in_order =
            |all: &mut dyn Iterator<Item = u64>| all.filter(|number| !kept(number)).collect::<Vec<_>>();
        let written = in_order(&mut self.written.values().copied());
        let found = in_order(&mut numbers.iter().copied());
        // A reappended record was written more than once.
        if !(0..=written.len()).any(|first| written[first..].starts_with(&found)) {
            return Err(format!("recovery found notes {found:?} of {written:?} (P3)"));
        }
        let mut needed = durable().filter(|(id, number)| **id > self.released && !kept(number));
        match needed.find(|(_, number)| !found.contains(number)) {
            Some((id, _)) => Err(format!("recovery did not find note {id} (P1)")),
            None => Ok(()),
        }
    }
}

/// A task that writes user records.
pub struct Notary {
    /// The state shared with the clients.
    pub shared: Arc<Shared>,
    /// The engine of this session.
    pub engine: Arc<Engine>,
    /// Errors that the task must accept.
    pub allowed: Allowed,
    /// The source of the task's choices.
    pub rng: Rng,
}

impl Notary {
    /// Writes `count` user records, and waits for some of them.
    pub async fn write(mut self, count: u32) {
        for _ in 0..count {
            let stable = self.rng.chance(7000);
            self.write_one(stable).await;
            if self.rng.chance(300) {
                self.let_go_some();
            }
            if self.rng.chance(3000) {
                let rest = self.rng.time(Duration::ZERO, self.shared.habits.rest);
                self.shared.executor.sleep(rest).await;
            }
            if self.shared.failure.lock().is_some() {
                return;
            }
        }
    }

    /// Writes a user record, and waits until it is durable if `stable`.
    pub async fn write_one(&self, stable: bool) {
        let bytes = self.shared.notes.lock().begin();
        let (seq, id) = match self.engine.note(&bytes).await {
            Ok(noted) => noted,
            Err(error) if self.allowed.permits(error) => return,
            Err(error) => return self.shared.fail(format!("a note failed: {error}")),
        };
        self.shared.tell(|| format!("note {id} of {} bytes in frame {seq}", bytes.len()));
        if let Err(error) = self.shared.notes.lock().wrote(id, &bytes) {
            self.shared.fail(error);
        }
        if stable && durable(&self.engine, seq).await.is_ok() {
            self.shared.notes.lock().durable(id);
            self.shared.tell(|| format!("note {id} is durable"));
        }
    }

    /// Releases user records without a request of the engine.
    fn let_go_some(&mut self) {
        let mut ledger = self.shared.notes.lock();
        let upto = self.rng.within(ledger.released, ledger.durable.max(ledger.released));
        if ledger.keeps {
            return;
        }
        ledger.released = upto;
        drop(ledger);
        self.shared.tell(|| format!("let go of notes up to {upto}"));
        self.engine.release_user_records(upto);
    }
}

/// Releases user records a while after the engine asks, since a checkpoint takes time. In some sessions some records
/// are still needed.
pub fn let_go_when_due(
    shared: Arc<Shared>,
    engine: Arc<Engine>,
    mut rng: Rng,
) -> impl Future<Output = ()> + Send {
    let keeps = rng.chance(3000);
    let_go_slowly(shared, engine, keeps, move || rng.time(Duration::ZERO, Duration::from_secs(1)))
}

/// Releases user records when the engine asks. Each release takes the time that `takes` returns. A session `keeps` some
/// records or none.
pub fn let_go_slowly(
    shared: Arc<Shared>,
    engine: Arc<Engine>,
    keeps: bool,
    mut takes: impl FnMut() -> Duration + Send,
) -> impl Future<Output = ()> + Send {
    {
        let mut ledger = shared.notes.lock();
        (ledger.keeps, ledger.stuck) = (keeps, false);
    }
    async move {
        while let Some(upto) = engine.user_records_due().await {
            shared.executor.sleep(takes()).await;
            {
                let mut ledger = shared.notes.lock();
                ledger.released = ledger.released.max(upto);
            }
            shared.tell(|| format!("let go of notes up to {upto}, as asked"));
            shared.hits.hit(Fault::NotesLetGo);
            if !keeps {
                engine.release_user_records(upto);
                continue;
            }
            shared.hits.hit(Fault::NotesCarried);
            let stuck = engine.let_go_but(upto, 0, is_needed).await != Ok(true);
            shared.notes.lock().stuck = stuck;
            engine.keep_notes(stuck.then_some(BackingError::Io(5)));
            if stuck {
                // The engine would ask again at once.
                shared.executor.sleep(Duration::from_secs(5)).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(numbers: &[u64]) -> Vec<UserRecord> {
        let note = |(id, number): (UserRecordId, &u64)| UserRecord { id, bytes: contents(*number).into() };
        (1..).zip(numbers).map(note).collect()
    }

    /// Returns a ledger with ten user records, of which 3 are released and 7 durable.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        for id in 1..=10 {
            let bytes = ledger.begin();
            ledger.wrote(id, &bytes).unwrap();
        }
        ledger.durable(7);
        ledger.released = 3;
        ledger
    }

    #[test]
    fn what_may_be_found() {
        for numbers in [4..=7, 1..=7, 2..=10, 4..=10] {
            assert_eq!(ledger().recovered(&found(&numbers.collect::<Vec<_>>()), true), Ok(()));
        }
    }

    #[test]
    fn what_is_needed_still_may_be_found_anywhere_and_must_be() {
        let ledger = || {
            let mut ledger = Ledger { keeps: true, ..Ledger::default() };
            for id in 1..=40 {
                let bytes = ledger.begin();
                ledger.wrote(id, &bytes).unwrap();
            }
            ledger.durable(40);
            ledger.released = 30;
            ledger
        };
        let rest = || 31..=40;
        for numbers in [
            (1..=40).collect(),
            [16].into_iter().chain(rest()).collect(),
            rest().chain([16, 32]).collect(),
            [30].into_iter().chain(rest()).chain([16]).collect::<Vec<_>>(),
        ] {
            assert_eq!(ledger().recovered(&found(&numbers), true), Ok(()), "{numbers:?}");
        }
        for numbers in [rest().collect(), [16].into_iter().chain(33..=40).collect::<Vec<_>>()] {
            assert!(ledger().recovered(&found(&numbers), true).is_err(), "{numbers:?}");
        }
    }

    #[test]
    fn what_may_not_be_found() {
        for numbers in
            [&[5, 6, 7][..], &[4, 5, 6], &[], &[4, 5, 7], &[4, 5, 5, 6, 7], &[5, 4, 6, 7], &[4, 5, 6, 7, 99]]
        {
            assert!(ledger().recovered(&found(numbers), true).is_err(), "{numbers:?}");
        }
        let mut torn = found(&[4]);
        torn[0].bytes[7] ^= 1;
        assert!(ledger().recovered(&torn, false).is_err());
    }
}
