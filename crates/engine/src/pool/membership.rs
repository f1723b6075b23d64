//! Changes of the pool's membership, one at a time.

use std::sync::Arc;

use crate::Seq;
use crate::io::Device;
use crate::log::Log;
use crate::plant;
use crate::pool::{AlsoLost, Member, Pool, PoolError, State};
use crate::segments::Reach;
use crate::wait::Gate;
use forebay_common::lock::Mutex;

/// The pool, lent to one change at a time.
pub(crate) struct Members {
    pool: Mutex<Option<Pool>>,
    back: Gate,
}

impl Members {
    pub(crate) fn new(pool: Pool) -> Self {
        Members { pool: Mutex::new(Some(pool)), back: Gate::default() }
    }

    async fn take(&self) -> Pool {
        self.back.until(|| self.pool.lock().take()).await
    }

    fn put(&self, pool: Pool) {
        *self.pool.lock() = Some(pool);
        self.back.wake();
    }

    /// Makes it durable on the others that a device is lost. Returns every device that the pool has given up by now: what
    /// is written to them alone from now on is ignored by recovery.
    pub(crate) async fn lose(&self, index: u16, log: &Log) -> AlsoLost {
        if plant::active("a lost device is not recorded") {
            return AlsoLost::new();
        }
        let mut pool = self.take().await;
        let changed = pool.lose(index).await.map(drop);
        log.set_epoch(pool.epoch);
        let lost = given_up(&pool, &changed);
        self.put(pool);
        lost
    }

    /// Makes it durable how far the pool reaches back. Returns the devices that failed over it.
    pub(crate) async fn save_reach(&self, reach: Reach) -> Vec<u16> {
        let mut pool = self.take().await;
        let failed = pool.save_reach(reach).await;
        self.put(pool);
        failed
    }

    /// Makes it durable that a log segment was opened, whose header is, and up to which frame the log is. Returns the devices
    /// that failed over it.
    pub(crate) async fn save_newest(&self, seq: u64, durable: Seq) -> Vec<u16> {
        if plant::active("the end of the log is not recorded") {
            return Vec::new();
        }
        let mut pool = self.take().await;
        let failed = pool.save_newest(seq, durable).await;
        self.put(pool);
        failed
    }

    /// Nothing is written any more for a while: both copies of all superblocks say where the log ends, and either may rot.
    pub(crate) async fn rest(&self, durable: Seq) {
        if plant::active("the end of the log is not recorded") {
            return;
        }
        let mut pool = self.take().await;
        // A device that fails over it is as complete as the others: what it lacks only helps to notice rot.
        let _ = pool.save_durable(durable).await;
        self.put(pool);
    }

    /// Adds a device; durable on all when this returns it. Also returns every device that the pool has given up by now,
    /// whether it was added or not.
    pub(crate) async fn add(
        &self,
        device: Arc<dyn Device>,
        force: bool,
        log: &Log,
    ) -> (Result<Member, PoolError>, AlsoLost) {
        let mut pool = self.take().await;
        let added = pool.add(device, force).await;
        let added = added.map(|(index, _)| pool.members[usize::from(index)].clone());
        log.set_epoch(pool.epoch);
        let lost = given_up(&pool, &added);
        self.put(pool);
        (added, lost)
    }

    /// Takes a drained device out of the pool, durably; if that fails it stays. Also returns every device that the pool has
    /// given up by now.
    pub(crate) async fn remove(&self, index: u16, log: &Log) -> (Result<(), PoolError>, AlsoLost) {
        let mut pool = self.take().await;
        let removed = pool.remove(index).await.map(drop);
        log.set_epoch(pool.epoch);
        let lost = given_up(&pool, &removed);
        self.put(pool);
        (removed, lost)
    }
}

/// The members that carry no epoch which is in use, after a change that came out so. Where it could be made durable on
/// nobody, or the witness did not note it, that is all of them, those too that are there and answer.
fn given_up<T>(pool: &Pool, changed: &Result<T, PoolError>) -> AlsoLost {
    let none = matches!(changed, Err(PoolError::NoMemberLeft | PoolError::Unnoted(_)));
    let is_out = |member: &&Member| {
        none || member.state == State::Lost || (member.state == State::Active && member.device.is_none())
    };
    pool.members.iter().filter(is_out).map(|member| member.index).collect()
}
