//! Changes of the pool's members, one at a time.
//!
//! No write is acknowledged before the loss of a device is recorded, so the record of a loss waits only for members. A
//! device that is being added holds the pool only during the writes of its superblocks, and a loss ends these at once.

use std::sync::Arc;

use crate::Seq;
use crate::io::Device;
use crate::planted_bugs;
use crate::pool::deadline::{GivenUp, Watched};
use crate::pool::{AlsoLost, Candidate, Member, Pool, PoolError, State};
use crate::segments::Reach;
use crate::wait::Gate;
use forebay_common::lock::Mutex;

/// The pool, lent to one change at a time.
pub(crate) struct Members {
    pool: Mutex<Lent>,
    back: Gate,
    /// The device that is being added; one at a time.
    newcomer: Mutex<Option<Arc<Watched>>>,
    added: Gate,
}

/// The pool, unless it is lent.
struct Lent {
    pool: Option<Pool>,
    /// The device, no member yet, that the pool is lent for.
    to: Option<Arc<Watched>>,
}

/// The turn of a device that is being added.
struct Adding<'a>(&'a Members);

impl Drop for Adding<'_> {
    fn drop(&mut self) {
        *self.0.newcomer.lock() = None;
        self.0.added.wake();
    }
}

impl Members {
    /// Returns the membership of a pool, lent to nobody.
    pub(crate) fn new(pool: Pool) -> Self {
        Members {
            pool: Mutex::new(Lent { pool: Some(pool), to: None }),
            back: Gate::default(),
            newcomer: Mutex::default(),
            added: Gate::default(),
        }
    }

    async fn take(&self) -> Pool {
        self.back.until(|| self.pool.lock().pool.take()).await
    }

    /// Takes the pool as [`Members::take`] does, for a device that is no member yet.
    async fn take_for(&self, newcomer: &Arc<Watched>) -> Pool {
        let take = || {
            let mut lent = self.pool.lock();
            let pool = lent.pool.take()?;
            lent.to = Some(newcomer.clone());
            Some(pool)
        };
        self.back.until(take).await
    }

    /// Takes the pool as [`Members::take`] does, and gives up a device that holds it and is no member yet.
    async fn take_at_once(&self) -> Pool {
        let take = || {
            let newcomer = {
                let mut lent = self.pool.lock();
                if let Some(pool) = lent.pool.take() {
                    return Some(pool);
                }
                lent.to.clone()
            };
            let waits = planted_bugs::active("a loss waits for a device that is being added");
            newcomer.filter(|_| !waits).inspect(|newcomer| newcomer.give_up(GivenUp::Unused));
            None
        };
        self.back.until(take).await
    }

    /// Returns the pool after a change, and wakes the tasks that wait for it.
    fn put(&self, pool: Pool) {
        *self.pool.lock() = Lent { pool: Some(pool), to: None };
        self.back.wake();
    }

    /// Returns the device that is being added.
    pub(crate) fn newcomer(&self) -> Option<Arc<Watched>> {
        self.newcomer.lock().clone()
    }

    /// Waits for the turn of `device` to be added.
    async fn begin_adding(&self, device: &Arc<Watched>) -> Adding<'_> {
        let enter = || {
            let mut newcomer = self.newcomer.lock();
            newcomer.is_none().then(|| *newcomer = Some(device.clone()))
        };
        self.added.until(enter).await;
        Adding(self)
    }

    /// Records durably on the remaining devices that a device is lost. Returns every device that the pool has given
    /// up so far. Recovery ignores data that is written to those devices alone from now on.
    pub(crate) async fn lose(&self, index: u16, set_epoch: impl FnOnce(u64)) -> AlsoLost {
        if planted_bugs::active("a lost device is not recorded") {
            return AlsoLost::new();
        }
        let mut pool = self.take_at_once().await;
        let changed = pool.lose(index).await.map(drop);
        set_epoch(pool.epoch);
        let lost = given_up(&pool, &changed);
        self.put(pool);
        lost
    }

    /// Records durably how far back the pool reaches. Returns the devices that failed.
    pub(crate) async fn save_reach(&self, reach: Reach) -> Vec<u16> {
        let mut pool = self.take().await;
        let failed = pool.save_reach(reach).await;
        self.put(pool);
        failed
    }

    /// Records durably that a log segment was opened, whose header is durable, and up to which frame the log is
    /// durable. Returns the devices that failed.
    pub(crate) async fn save_newest(&self, seq: u64, durable: Seq) -> Vec<u16> {
        if planted_bugs::active("the end of the log is not recorded") {
            return Vec::new();
        }
        let mut pool = self.take().await;
        let failed = pool.save_newest(seq, durable).await;
        self.put(pool);
        failed
    }

    /// Records the end of the log in both copies of all superblocks, since no frame is written for a while and either
    /// copy may rot.
    pub(crate) async fn rest(&self, durable: Seq) {
        if planted_bugs::active("the end of the log is not recorded") {
            return;
        }
        let mut pool = self.take().await;
        // A failed device is as complete as the others: this record only helps to detect rot.
        let _ = pool.save_durable(durable).await;
        self.put(pool);
    }

    /// Adds a device, durably on all devices when this returns it. Also returns every device that the pool has given
    /// up so far, even if the device was not added.
    pub(crate) async fn add(
        &self,
        device: &Arc<Watched>,
        force: bool,
        set_epoch: impl FnOnce(u64),
    ) -> (Result<Member, PoolError>, AlsoLost) {
        let _adding = self.begin_adding(device).await;
        let candidate = match self.prepare(device, force).await {
            Ok(candidate) => candidate,
            Err(error) => return (Err(error), AlsoLost::new()),
        };
        let mut pool = self.take_for(device).await;
        let added = pool.join(&candidate, force).await;
        let added = added.map(|(index, _)| pool.members[usize::from(index)].clone());
        set_epoch(pool.epoch);
        let lost = given_up(&pool, &added);
        self.put(pool);
        (added, lost)
    }

    /// Reads and erases a device that is to be added. No change of the pool waits for that.
    async fn prepare(&self, device: &Arc<Watched>, force: bool) -> Result<Candidate, PoolError> {
        let candidate = Candidate::look(device.clone() as Arc<dyn Device>).await?;
        let pool = self.take().await;
        let may_join = pool.may_join(&candidate, force);
        self.put(pool);
        may_join?;
        candidate.erase().await?;
        Ok(candidate)
    }

    /// Removes a drained device from the pool, durably. The device stays if that fails. Also returns every device
    /// that the pool has given up so far.
    pub(crate) async fn remove(
        &self,
        index: u16,
        set_epoch: impl FnOnce(u64),
    ) -> (Result<(), PoolError>, AlsoLost) {
        let mut pool = self.take().await;
        let removed = pool.remove(index).await.map(drop);
        set_epoch(pool.epoch);
        let lost = given_up(&pool, &removed);
        self.put(pool);
        (removed, lost)
    }
}

/// Returns the members that carry no epoch in use, after a change with result `changed`. If the change is durable on
/// no device, or the witness did not record it, that is every member, even those that answer.
fn given_up<T>(pool: &Pool, changed: &Result<T, PoolError>) -> AlsoLost {
    let none = matches!(changed, Err(PoolError::NoMemberLeft | PoolError::Unnoted(_)));
    let is_out = |member: &&Member| {
        none || member.state == State::Lost || (member.state == State::Active && member.device.is_none())
    };
    pool.members.iter().filter(is_out).map(|member| member.index).collect()
}
