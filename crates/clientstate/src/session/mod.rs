//! A session: its channels, its connections and its slots.
//!
//! A session is a piece of its own. The server keeps an `Arc<Session>` beside each connection. SEQUENCE takes the
//! lock of this session only, so requests of different sessions share no lock. [`Session::sequence`] has the table of
//! cases.

mod back;
mod channel;
mod memory;
mod slot;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use forebay_common::lock::Mutex;
use smallvec::SmallVec;

use crate::lease::Lease;
use crate::limits::Limits;
use crate::record::{Record, SlotReply};
use crate::{ClientId, Connection, SessionId};

use back::BackSlot;
pub use back::CallbackEnd;
pub use channel::{CONN_BACK_CHAN, Channel, Directions, PERSIST, status};
pub(crate) use memory::Memory;
use memory::Share;
use slot::Slot;
pub use slot::{Answer, Request, Sequenced, Waiter};

/// A session.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    client: ClientId,
    lease: Arc<Lease>,
    pub(crate) fore: Channel,
    pub(crate) back: Channel,
    pub(crate) flags: u32,
    /// The sequence number of its CREATE_SESSION.
    pub(crate) sequence: u32,
    connections_max: usize,
    /// Slots that the client is to use while it keeps many bytes of replies.
    few_slots: u32,
    kept_memory: Arc<Memory>,
    destroyed: AtomicBool,
    state: Mutex<State>,
}

/// The changing part of a session.
#[derive(Debug)]
struct State {
    /// Slots that were used; a slot beyond them has not been.
    slots: Vec<Slot>,
    /// The memory of their replies.
    kept: Share,
    /// Slots that the client may use.
    granted: u32,
    /// True from a recovery on: a slot that was not used since accepts any first number.
    recovered: bool,
    connections: SmallVec<[(Connection, Directions); 2]>,
    /// The slots of call-backs that were used.
    back: Vec<BackSlot>,
    /// The program number and the security of call-backs, opaque to this crate.
    callback: (u32, Vec<u8>),
}

/// The parts of a session that CREATE_SESSION or a record decides.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) id: SessionId,
    pub(crate) client: ClientId,
    pub(crate) sequence: u32,
    pub(crate) flags: u32,
    pub(crate) fore: Channel,
    pub(crate) back: Channel,
}

impl Session {
    /// Returns a session without connections. In a recovered session a slot accepts any first number, because
    /// requests without effects are not in the log.
    pub(crate) fn new(
        parts: Parts,
        lease: Arc<Lease>,
        limits: &Limits,
        memory: Arc<Memory>,
        recovered: bool,
    ) -> Self {
        let Parts { id, client, sequence, flags, fore, back } = parts;
        let state = State {
            slots: Vec::new(),
            kept: Share::new(memory.clone(), lease.clone()),
            granted: fore.slots,
            recovered,
            connections: SmallVec::new(),
            back: Vec::new(),
            callback: (0, Vec::new()),
        };
        Session {
            id,
            client,
            lease,
            fore,
            back,
            flags,
            sequence,
            connections_max: limits.connections_per_session.max(1),
            few_slots: limits.slots_under_pressure,
            kept_memory: memory,
            destroyed: false.into(),
            state: Mutex::new(state),
        }
    }

    /// Returns the name of the session.
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Returns the client of the session.
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Returns the attributes of the fore channel.
    pub fn fore(&self) -> Channel {
        self.fore
    }

    /// Returns the attributes of the back channel.
    pub fn back(&self) -> Channel {
        self.back
    }

    /// Returns the granted flags.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Returns the lease of the session's client.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// Returns true if the client has used no later number in a slot: it may not have the reply to this one yet.
    pub fn is_last(&self, slot: u32, sequence: u32) -> bool {
        self.state.lock().slots.get(slot as usize).is_some_and(|slot| slot.sequence() == sequence)
    }

    /// Returns true if the client has used a later number than `sequence` in a slot: it has the reply to this one.
    pub fn is_past(&self, slot: u32, sequence: u32) -> bool {
        let ahead = |slot: &Slot| slot.sequence().wrapping_sub(sequence) as i32 > 0;
        self.state.lock().slots.get(slot as usize).is_some_and(ahead)
    }

    /// Sets the program number and the security of call-backs (CREATE_SESSION, BACKCHANNEL_CTL).
    pub fn set_callback(&self, program: u32, security: Vec<u8>) {
        self.state.lock().callback = (program, security);
    }

    /// Returns the program number and the security of call-backs.
    pub fn callback(&self) -> (u32, Vec<u8>) {
        self.state.lock().callback.clone()
    }

    /// Binds a connection to the session. Directions that it has already stay.
    pub fn bind(&self, connection: Connection, directions: Directions) {
        let mut state = self.state.lock();
        self.bind_locked(&mut state, connection, directions);
    }

    /// Adds directions to a connection of the session. Beyond the limit of connections the oldest one is forgotten.
    fn bind_locked(&self, state: &mut State, connection: Connection, new: Directions) {
        let known = state.connections.iter().position(|(known, _)| *known == connection);
        // Nearly each SEQUENCE comes from a connection that is bound.
        if let Some((_, has)) = known.and_then(|at| state.connections.get(at))
            && (has.fore, has.back) == (has.fore | new.fore, has.back | new.back)
        {
            return;
        }
        let had_back = state.has_back();
        match known.and_then(|at| state.connections.get_mut(at)) {
            Some((_, directions)) => {
                directions.fore |= new.fore;
                directions.back |= new.back;
            }
            None => {
                if state.connections.len() >= self.connections_max {
                    state.connections.remove(0);
                }
                state.connections.push((connection, new));
            }
        }
        self.count_back(had_back, state.has_back());
    }

    /// Forgets a connection that is closed.
    pub fn connection_lost(&self, connection: Connection) {
        let mut state = self.state.lock();
        let had_back = state.has_back();
        state.connections.retain(|(known, _)| *known != connection);
        self.count_back(had_back, state.has_back());
    }

    /// Corrects the client's count of sessions with a back channel, after a change of this session's connections.
    fn count_back(&self, had: bool, has: bool) {
        // A destroyed session has given its count back.
        if self.is_destroyed() {
            return;
        }
        match (had, has) {
            (false, true) => _ = self.lease.back_channels.fetch_add(1, Relaxed),
            (true, false) => _ = self.lease.back_channels.fetch_sub(1, Relaxed),
            _ => {}
        }
    }

    /// Returns the connections for call-backs, the newest first.
    pub fn back_connections(&self) -> Vec<Connection> {
        let state = self.state.lock();
        let bound = state.connections.iter().rev().filter(|(_, bound)| bound.back);
        bound.map(|(connection, _)| *connection).collect()
    }

    /// Ends the session: forgets its connections and replies. Replies stay while a request runs, because its waiters
    /// need the slot.
    pub(crate) fn destroy(&self) {
        let mut state = self.state.lock();
        let had_back = state.has_back();
        state.connections.clear();
        self.count_back(had_back, false);
        self.destroyed.store(true, Relaxed);
        // A request that runs still gives its waiters back.
        if !state.slots.iter().any(Slot::is_running) {
            state.drop_slots(0);
        }
    }

    /// Returns true if the session is gone: all its requests get `BadSession`.
    pub fn is_destroyed(&self) -> bool {
        self.destroyed.load(Relaxed)
    }

    /// Returns true if a request runs in a slot other than `own`.
    pub(crate) fn is_busy(&self, own: Option<u32>) -> bool {
        let state = self.state.lock();
        let mut slots = state.slots.iter().enumerate();
        slots.any(|(index, slot)| slot.is_running() && Some(index as u32) != own)
    }

    /// Returns records of the last replies, for a snapshot.
    pub(crate) fn replies(&self, durable: u64) -> Vec<Record> {
        let state = self.state.lock();
        let mut records = Vec::new();
        if state.granted != self.fore.slots {
            records.push(Record::SlotsDropped(self.id, state.granted));
        }
        let slots = state.slots.iter().enumerate().filter(|(_, slot)| !slot.is_untouched());
        records
            .extend(slots.map(|(index, slot)| Record::Reply(slot.describe(self.id, index as u32, durable))));
        let back = state.back.iter().enumerate();
        records.extend(back.map(|(index, slot)| Record::Callback(self.id, index as u32, slot.sequence)));
        records
    }

    /// Takes a reply from the log into its slot. Ignores a reply in a slot that was dropped.
    pub(crate) fn recover_reply(&self, reply: &SlotReply) {
        let mut state = self.state.lock();
        if reply.slot < state.granted {
            state.slot(reply.slot).recover(reply);
            state.count(reply.slot);
        }
    }

    /// Limits the session to its first `from` slots, as [`Record::SlotsDropped`] says. The replies in further slots are
    /// forgotten.
    pub(crate) fn recover_dropped(&self, from: u32) {
        let mut state = self.state.lock();
        state.granted = from.min(self.fore.slots);
        state.drop_slots(from as usize);
    }

    /// Returns true if the invariants hold that concern this session alone.
    pub(crate) fn is_sound(&self) -> bool {
        let state = self.state.lock();
        let counted: u64 = state.slots.iter().map(Slot::counted).sum();
        state.slots.len() <= state.granted as usize
            && state.connections.len() <= self.connections_max
            && counted == state.kept.used()
    }
}

impl State {
    fn has_back(&self) -> bool {
        self.connections.iter().any(|(_, directions)| directions.back)
    }

    /// Forgets the slots from number `from` on, and their replies.
    fn drop_slots(&mut self, from: usize) {
        let dropped: u64 = self.slots.iter().skip(from).map(Slot::counted).sum();
        self.kept.count(dropped, 0);
        self.slots.truncate(from);
        self.slots.shrink_to_fit();
    }

    /// Counts the memory of a slot after a change.
    fn count(&mut self, slot: u32) {
        self.count_at_least(slot, 0);
    }

    /// Counts the memory of a slot as at least `most` bytes, which its request may need.
    fn count_at_least(&mut self, slot: u32, most: u64) {
        let Some(slot) = self.slots.get_mut(slot as usize) else { return };
        let (old, new) = slot.count(most);
        self.kept.count(old, new);
    }

    /// Returns a slot, which begins to exist with its first use. The caller has checked that the client may use it.
    fn slot(&mut self, index: u32) -> &mut Slot {
        let index = index as usize;
        if self.slots.len() <= index {
            let recovered = self.recovered;
            self.slots.resize_with(index + 1, || Slot::new(recovered));
        }
        &mut self.slots[index]
    }
}
