//! The exports with their rules, which may be replaced in service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_common::lock::RwLock;
use forebay_config::Export;

/// The rules in force.
#[derive(Debug)]
pub(crate) struct Rules {
    now: RwLock<Arc<[Export]>>,
    /// The generation of the rules. A cache of results that depend on a rule stores the generation of that rule.
    generation: AtomicU64,
}

impl Rules {
    pub(crate) fn new(exports: Vec<Export>) -> Self {
        Rules { now: RwLock::new(exports.into()), generation: AtomicU64::new(0) }
    }

    /// Returns the generation. Must be called before the rules themselves are read.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the exports with their rules.
    pub(crate) fn now(&self) -> Arc<[Export]> {
        self.now.read().clone()
    }

    /// Returns true if clients get delegations in the export with this id.
    pub(crate) fn delegates(&self, export: u32) -> bool {
        self.now.read().iter().any(|known| known.id == export && known.delegations)
    }

    /// Replaces the rules. After the return no request is admitted by an older rule, except requests in progress.
    pub(crate) fn replace(&self, exports: Vec<Export>) {
        *self.now.write() = exports.into();
        self.generation.fetch_add(1, Ordering::Release);
    }
}
