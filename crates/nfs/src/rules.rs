//! The exports with their rules, which may be replaced in service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_common::lock::RwLock;
use forebay_config::Export;

/// The rules in force.
#[derive(Debug)]
pub(crate) struct Rules {
    now: RwLock<Arc<[Export]>>,
    /// Changes with them: whoever remembers what follows from a rule remembers of which generation it was.
    generation: AtomicU64,
}

impl Rules {
    pub(crate) fn new(exports: Vec<Export>) -> Self {
        Rules { now: RwLock::new(exports.into()), generation: AtomicU64::new(0) }
    }

    /// To be asked for before the rules themselves.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The exports with their rules.
    pub(crate) fn now(&self) -> Arc<[Export]> {
        self.now.read().clone()
    }

    /// From the return on no request is admitted by an older rule, but for those under way.
    pub(crate) fn replace(&self, exports: Vec<Export>) {
        *self.now.write() = exports.into();
        self.generation.fetch_add(1, Ordering::Release);
    }
}
