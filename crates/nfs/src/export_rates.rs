//! Limits on the rates of exports: operations, and bytes of READ and WRITE, of all clients together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_common::lock::RwLock;
use forebay_rpc::{Peer, SharedRate};

use crate::service::Nfs;

/// A limited export, by its number, with its rate.
type Limited = (u32, Arc<SharedRate>);

/// The rates of the exports that have a limit.
#[derive(Default)]
pub(crate) struct ExportRates {
    /// True if an export has, or had, a limit. Without one, no request takes the lock.
    is_limited: AtomicBool,
    rates: RwLock<Arc<[Limited]>>,
}

impl ExportRates {
    /// Counts an operation of a connection on an export. The connection is not read while the export is beyond its
    /// rate.
    pub(crate) fn count(&self, peer: &Peer, export: u32, bytes: usize) {
        if !self.is_limited.load(Relaxed) {
            return;
        }
        let rates = self.rates.read();
        let rate = rates.iter().find(|(limited, _)| *limited == export).map(|(_, rate)| rate);
        rate.into_iter().for_each(|rate| rate.charge(1, bytes));
        peer.last_rate.note(rate);
    }
}

impl Nfs {
    /// Limits the rates of exports. The rates of exports that have none any more are ended.
    pub fn limit_exports(&self, rates: Vec<(u32, Arc<SharedRate>)>) {
        let limits = &self.shared.profiled.rates;
        limits.is_limited.fetch_or(!rates.is_empty(), Relaxed);
        let before = std::mem::replace(&mut *limits.rates.write(), rates.into());
        let now = limits.rates.read();
        let is_kept = |old: &Arc<SharedRate>| now.iter().any(|(_, new)| Arc::ptr_eq(old, new));
        before.iter().filter(|(_, old)| !is_kept(old)).for_each(|(_, old)| old.end());
    }
}
