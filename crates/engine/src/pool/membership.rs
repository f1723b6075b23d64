//! Changes of the pool's members, one at a time.

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

    /// Records durably on the remaining devices that a device is lost. Returns every device that the pool has given
    /// up so far. Recovery ignores data that is written to those devices alone from now on.
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
        if plant::active("the end of the log is not recorded") {
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
        if plant::active("the end of the log is not recorded") {
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

    /// Removes a drained device from the pool, durably. The device stays if that fails. Also returns every device
    /// that the pool has given up so far.
    pub(crate) async fn remove(&self, index: u16, log: &Log) -> (Result<(), PoolError>, AlsoLost) {
        let mut pool = self.take().await;
        let removed = pool.remove(index).await.map(drop);
        log.set_epoch(pool.epoch);
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
