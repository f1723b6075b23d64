//! The connections of a backing device, one after another.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_common::lock::{Condvar, Mutex};
use forebay_common::nbd_url::NbdUrl;
use forebay_engine::buffer::BLOCK;
use forebay_engine::wait::Gate;
use forebay_runtime::block_on;
use forebay_wire::nbd::transmission;

use super::connection::Connection;
use super::handshake::Export;
use super::link::LinkError;

/// The time for which requests wait for a new connection. After that they fail until there is one.
const PATIENCE: Duration = Duration::from_secs(30);
/// The time between two attempts to connect.
const PAUSE: Duration = Duration::from_secs(1);
/// The reason why there is no connection.
pub(super) enum Unconnected {
    /// The server cannot be reached, or does not serve the export now.
    Unreachable(String),
    /// The export is another one than before, or cannot be a backing device.
    Unfit(String),
}

/// The state that requests share with the thread that connects.
pub(super) struct Inner {
    pub(super) url: NbdUrl,
    pub(super) read_only: bool,
    /// The shape of the export at the first connection. A later connection must have at least this size.
    pub(super) shape: OnceLock<Shape>,
    pub(super) state: Mutex<State>,
    /// Wakes requests that wait for a connection.
    pub(super) changed: Gate,
    /// Wakes the thread that connects.
    pub(super) wanted: Condvar,
    /// Told when the connection is lost (false), and when there is one again (true).
    pub(super) tell: Box<dyn Fn(bool) + Send + Sync>,
}

/// The properties of an export that do not change.
#[derive(Clone, Copy, Default)]
pub(super) struct Shape {
    pub(super) size: u64,
    pub(super) unit: u32,
    pub(super) rotational: bool,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) connection: Option<Arc<Connection>>,
    /// The time since which there is no connection.
    pub(super) lost_at: Option<Instant>,
    /// True if requests fail, because there is no connection for long.
    pub(super) gives_up: bool,
    /// True if changes that completed on a lost connection were not flushed, and no sync has failed for that since.
    pub(super) doubtful: bool,
    /// The number of connections that ended.
    pub(super) losses: u64,
    /// The number of the connection in use.
    pub(super) number: u64,
    pub(super) closed: bool,
}

impl Inner {
    /// Returns why an export cannot be this backing device.
    fn judge(&self, export: &Export) -> Result<(), String> {
        if !self.read_only && export.has(transmission::READ_ONLY) {
            return Err("its export is read-only; make the volume read-only as well".to_owned());
        }
        if !self.read_only && !export.has(transmission::SEND_FLUSH) {
            return Err("it has no FLUSH, so it cannot say when writes are durable".to_owned());
        }
        let most = self.shape.get().map_or(BLOCK as u32, |shape| shape.unit);
        if export.minimum > most {
            return Err(format!("its blocks are larger than {most} bytes"));
        }
        match self.shape.get() {
            Some(before) if export.size < before.size => {
                Err(format!("its export has {} bytes, and before it had {}", export.size, before.size))
            }
            _ => Ok(()),
        }
    }

    /// Makes connection `number`. What an earlier connection has left in the server's cache is durable then: copies
    /// of it must not outlive it.
    pub(super) fn connect(inner: &Arc<Self>, number: u64) -> Result<(), Unconnected> {
        let weak = Arc::downgrade(inner);
        let on_lost = move || {
            if let Some(inner) = weak.upgrade() {
                inner.lost(number);
            }
        };
        let connection = Connection::open(&inner.url, on_lost).map_err(Unconnected::Unreachable)?;
        let export = *connection.export();
        inner.judge(&export).map_err(Unconnected::Unfit)?;
        let ended =
            || Unconnected::Unreachable("it does not flush what earlier connections wrote".to_owned());
        if !inner.read_only {
            block_on(connection.flush()).result.map_err(|_| ended())?;
        }
        let shape = Shape { size: export.size, unit: export.minimum, rotational: export.is_rotational() };
        inner.shape.get_or_init(|| shape);
        let mut state = inner.state.lock();
        if state.closed || connection.is_lost() {
            return Err(Unconnected::Unreachable("it ends the connection at once".to_owned()));
        }
        (state.connection, state.number) = (Some(Arc::new(connection)), number);
        (state.lost_at, state.gives_up) = (None, false);
        drop(state);
        inner.changed.wake();
        Ok(())
    }

    /// Records the end of a connection.
    fn lost(&self, number: u64) {
        let mut state = self.state.lock();
        state.losses += 1;
        if state.number == number
            && let Some(connection) = state.connection.take()
        {
            state.doubtful |= connection.needs_flush();
            state.lost_at.get_or_insert_with(Instant::now);
            drop(state);
            // The connection may end here, outside of the lock.
            drop(connection);
            (self.tell)(false);
        }
        self.wanted.notify_all();
    }

    /// Returns the connection in use, or waits for one.
    pub(super) async fn connection(&self) -> Result<Arc<Connection>, LinkError> {
        self.changed
            .until(|| {
                let state = self.state.lock();
                match &state.connection {
                    Some(connection) if !connection.is_lost() => Some(Ok(connection.clone())),
                    _ if state.gives_up || state.closed => Some(Err(LinkError::Lost)),
                    _ => None,
                }
            })
            .await
    }

    /// Connects again whenever the connection is lost, until the link is dropped.
    pub(super) fn keep_connected(self: &Arc<Self>) {
        let mut told = None;
        loop {
            let mut state = self.state.lock();
            while state.connection.is_some() && !state.closed {
                told = None;
                state = self.wanted.wait(state);
            }
            if state.closed {
                return;
            }
            let next = state.number + 1;
            drop(state);
            let failed = Self::connect(self, next).err().map(|unconnected| match unconnected {
                Unconnected::Unreachable(reason) | Unconnected::Unfit(reason) => reason,
            });
            let mut state = self.state.lock();
            match failed {
                None => {
                    drop(state);
                    (self.tell)(true);
                    state = self.state.lock();
                }
                Some(reason) => {
                    if told.as_ref() != Some(&reason) {
                        tracing::warn!("{}: no connection: {reason}; it is tried again", self.url);
                        told = Some(reason);
                    }
                    let is_late = state.lost_at.is_some_and(|at| at.elapsed() >= PATIENCE);
                    if is_late && !std::mem::replace(&mut state.gives_up, true) {
                        drop(state);
                        self.changed.wake();
                        state = self.state.lock();
                    }
                }
            }
            // A server that ends each connection at once is not asked without a pause.
            drop(self.wanted.wait_while_for(state, PAUSE, |state| !state.closed));
        }
    }
}
