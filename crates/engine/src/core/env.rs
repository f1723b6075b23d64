//! The environment of an engine.

use std::sync::Arc;

use crate::event::Event;
use crate::io::{Backing, Clock, Spawn, Witness};

/// Runs a batch of completions, in which the replies sent may be gathered.
pub type Deliver = Arc<dyn Fn(&mut dyn FnMut()) + Send + Sync>;

/// The environment of the engine: clock, tasks, backing store and callbacks.
#[derive(Clone)]
pub struct Env {
    /// The engine's clock.
    pub clock: Arc<dyn Clock>,
    /// Runs the engine's background tasks.
    pub spawn: Arc<dyn Spawn>,
    /// The backing store.
    pub backing: Arc<dyn Backing>,
    /// Knows which epoch of the pool is in use. Without a witness, a device that dropped out earlier and returns
    /// alone is believed.
    pub witness: Option<Arc<dyn Witness>>,
    /// Runs a batch of completions. The sender of replies may gather the replies of a batch.
    pub deliver: Deliver,
    /// Receives the events for the administrator.
    pub events: Arc<dyn Fn(Event) + Send + Sync>,
}
