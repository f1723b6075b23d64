//! Changes of the pool's membership, one at a time.

use std::sync::Arc;

use crate::Seq;
use crate::io::Device;
use crate::log::Log;
use crate::plant;
use crate::pool::{AlsoLost, Member, Pool, PoolError, State};
use crate::segments::Reach;
use crate::wait::Gate;
use forebay_lock::Mutex;

/// The pool, lent to one change at a time.
pub(crate) struct Members {
    pool: Mutex<Option<Pool>>,
    back: Gate,
}

impl Members {
    pub(crate) fn new(pool: Pool) -> Self {
        Members { pool: Mutex::new(Some(pool)), back: Gate::default() }
    }

    /// The devices by number.
    pub(crate) fn devices(pool: &Pool) -> Vec<Option<Arc<dyn Device>>> {
        pool.members.iter().map(|member| member.device.clone()).collect()
    }

    async fn take(&self) -> Pool {
        self.back.until(|| self.pool.lock().take()).await
    }

    fn put(&self, pool: Pool) {
        *self.pool.lock() = Some(pool);
        self.back.wake();
    }

    /// Makes it durable on the others that a device is lost. Returns those that failed over it.
    pub(crate) async fn lose(&self, index: u16, log: &Log) -> Vec<u16> {
        let mut pool = self.take().await;
        // Where no member is left there is nobody to tell.
        let silent = plant::active("a lost device is not recorded");
        let failed = if silent { Default::default() } else { pool.lose(index).await.unwrap_or_default() };
        log.set_epoch(pool.epoch);
        self.put(pool);
        failed
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
        // A device that fails over it is as complete as the others.
        let _ = pool.save_durable(durable).await;
        self.put(pool);
    }

    /// Adds a device; durable on all when this returns its number.
    pub(crate) async fn add(
        &self,
        device: Arc<dyn Device>,
        force: bool,
        log: &Log,
    ) -> Result<(Member, AlsoLost), PoolError> {
        let mut pool = self.take().await;
        let added = pool.add(device, force).await;
        let added = added.map(|(index, lost)| (pool.members[usize::from(index)].clone(), lost));
        log.set_epoch(pool.epoch);
        self.put(pool);
        added
    }

    /// Takes a drained device out of the pool, durably; if that fails it stays. Also returns the devices that are lost, those
    /// that failed over it among them.
    pub(crate) async fn remove(&self, index: u16, log: &Log) -> (Result<(), PoolError>, AlsoLost) {
        let mut pool = self.take().await;
        let removed = pool.remove(index).await.map(drop);
        log.set_epoch(pool.epoch);
        let lost = pool.members.iter().filter(|member| member.state == State::Lost);
        let lost = lost.map(|member| member.index).collect();
        self.put(pool);
        (removed, lost)
    }
}
