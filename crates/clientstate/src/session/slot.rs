//! Slots: a request is carried out once, and its reply is kept for retransmissions (RFC 8881 section 2.10.6).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use smallvec::SmallVec;

use super::{Directions, Session, State, status};
use crate::record::{Kept, Record, SlotReply};
use crate::{Connection, Durability, Effects, Error, Now, SMALL_REPLY, SessionId, planted_bugs};

/// Retransmissions of one running request that wait for its reply. A further one replaces the oldest, whose connection
/// is probably lost.
const WAITERS: usize = 4;

/// A number by which the caller finds a retransmission that waits.
pub type Waiter = u64;

/// The arguments of SEQUENCE, and properties of its request.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The slot.
    pub slot: u32,
    /// The sequence number.
    pub sequence: u32,
    /// The highest slot that the client uses.
    pub highest: u32,
    /// True if the client asks for the reply to be kept.
    pub cache_this: bool,
    /// A digest of the operations behind SEQUENCE, by a function that a restarted server has as well. A retransmission
    /// may have another `highest`.
    pub digest: u64,
    /// The number of operations.
    pub operations: u32,
    /// The length in bytes.
    pub length: u32,
    /// The connection of the request.
    pub connection: Connection,
    /// The number that [`Session::complete`] returns if this request has to wait. Without one nobody waits.
    pub waiter: Option<Waiter>,
}

/// The result of SEQUENCE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Flags of [`status`].
    pub status: u32,
    /// The highest slot that the client may use.
    pub highest: u32,
    /// The highest slot that the server wants the client to use.
    pub target: u32,
}

/// A decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sequenced {
    /// Carry the request out, then call [`Session::complete`]. A record goes to the log without a wait.
    New(Answer, Option<Record>),
    /// Send the kept reply.
    Replay(Arc<[u8]>),
    /// Answer SEQUENCE, and the operation behind it with `RetryUncachedRep`.
    NotKept(Answer),
    /// The request runs: send nothing. The waiter gets the reply when it is complete. A slot has few waiters: the one
    /// given here made place, and never gets a reply.
    InProgress(Option<Waiter>),
}

#[derive(Debug)]
enum Reply {
    /// The last request may be carried out again.
    Repeatable,
    Running {
        /// The longest reply that is kept, in bytes.
        longest: u32,
        waiters: SmallVec<[Waiter; 1]>,
        /// The reply, once it is on its way to the log.
        logging: Option<Logging>,
    },
    NotKept,
    /// The reply is in [`Slot::kept`].
    Kept,
}

/// A reply on its way to the log, in the record of a change of names or attributes.
#[derive(Debug)]
struct Logging {
    /// True if the reply is in [`Slot::kept`].
    is_kept: bool,
    /// The number of the change.
    change: u64,
}

#[derive(Debug)]
pub(super) struct Slot {
    sequence: u32,
    reply: Reply,
    /// The reply that was kept last. The next one takes its place, so a request allocates no memory for its reply.
    kept: Vec<u8>,
    /// The bytes that are counted for the kept reply.
    counted: u32,
    digest: u64,
    /// True if the next request may have any later number: requests that change nothing are not in the log.
    may_jump: bool,
    used: bool,
    /// True if the reply is in the log.
    logged: bool,
}

/// The relation of a request to its slot.
enum Relation {
    Next,
    Last,
    Other,
}

impl Slot {
    pub(super) fn sequence(&self) -> u32 {
        self.sequence
    }

    /// Returns an unused slot. With `may_jump` its first request may have any number.
    pub(super) fn new(may_jump: bool) -> Self {
        Slot {
            sequence: 0,
            reply: Reply::Repeatable,
            kept: Vec::new(),
            counted: 0,
            digest: 0,
            may_jump,
            used: false,
            logged: false,
        }
    }

    pub(super) fn is_running(&self) -> bool {
        matches!(self.reply, Reply::Running { .. })
    }

    pub(super) fn is_untouched(&self) -> bool {
        !self.used
    }

    /// Returns the record of the slot's last request. A reply that was never in the log counts as repeatable, since
    /// its request has changed nothing. A reply on its way to the log counts if its change has a number up to
    /// `durable`: then the change has happened, and the log may release the record that has both.
    pub(super) fn describe(&self, session: SessionId, slot: u32, durable: u64) -> SlotReply {
        let is_durable = |change: u64| {
            change <= durable || planted_bugs::active("a snapshot tells of a change that is not durable")
        };
        let reply =
            match &self.reply {
                Reply::Kept if self.logged => Kept::Bytes(self.kept.clone()),
                Reply::NotKept if self.logged => Kept::Not,
                Reply::Running { logging: Some(logging), .. }
                    if is_durable(logging.change)
                        && !planted_bugs::active("a snapshot forgets a reply on its way") =>
                {
                    if logging.is_kept { Kept::Bytes(self.kept.clone()) } else { Kept::Not }
                }
                _ => Kept::Repeatable,
            };
        let digest = if reply == Kept::Repeatable { 0 } else { self.digest };
        SlotReply { session, slot, sequence: self.sequence, digest, reply }
    }

    /// Takes a record that is not older than the slot.
    pub(super) fn recover(&mut self, record: &SlotReply) {
        if planted_bugs::active("replies are not recovered") {
            return;
        }
        let ahead = record.sequence.wrapping_sub(self.sequence) as i32;
        let is_newer = !self.used || ahead > 0 || ahead == 0 && record.reply != Kept::Repeatable;
        if !is_newer {
            return;
        }
        (self.sequence, self.digest, self.used, self.logged) = (record.sequence, record.digest, true, true);
        self.may_jump = true;
        self.reply = match &record.reply {
            Kept::Repeatable => Reply::Repeatable,
            Kept::Not => Reply::NotKept,
            Kept::Bytes(bytes) => {
                self.keep(bytes);
                Reply::Kept
            }
        };
    }

    /// Keeps a reply. A much larger place of an earlier reply is freed.
    fn keep(&mut self, reply: &[u8]) {
        if self.kept.capacity() > SMALL_REPLY.max(2 * reply.len()) {
            self.kept = Vec::new();
        }
        self.kept.clear();
        self.kept.reserve_exact(reply.len());
        self.kept.extend_from_slice(reply);
    }

    /// Returns the bytes that are counted for the slot.
    pub(super) fn counted(&self) -> u64 {
        self.counted.into()
    }

    /// Counts the place of the kept reply, and at least `most` bytes. Returns the earlier count and the new one.
    pub(super) fn count(&mut self, most: u64) -> (u64, u64) {
        let old = self.counted();
        let new = (self.kept.capacity() as u64).max(most);
        self.counted = new as u32;
        (old, new)
    }

    /// Returns how a sequence number relates to the slot: the next request, the last one again, or neither. A last
    /// request without effects may run again.
    fn relation(&self, sequence: u32) -> Relation {
        let ahead = sequence.wrapping_sub(self.sequence);
        let repeatable = matches!(self.reply, Reply::Repeatable) && self.used;
        match ahead {
            0 if repeatable => Relation::Next,
            0 if self.used => Relation::Last,
            1 => Relation::Next,
            0 => Relation::Other,
            _ if self.may_jump && planted_bugs::active("a slot jumps back after a recovery") => {
                Relation::Next
            }
            _ if self.may_jump && planted_bugs::active("no slot jumps after a recovery") => Relation::Other,
            _ if self.may_jump && (!self.used || (ahead as i32) > 0) => Relation::Next,
            _ => Relation::Other,
        }
    }
}

impl Session {
    /// Judges a request by its SEQUENCE.
    ///
    /// | the sequence number | the slot | result |
    /// |---|---|---|
    /// | the last one plus one | idle | `New` |
    /// | the last one plus one | running | `SeqMisordered` |
    /// | the last one | running, equal digest | `InProgress` |
    /// | the last one | reply kept, equal digest | `Replay` |
    /// | the last one | reply not kept, equal digest | `NotKept` |
    /// | the last one | another digest | `SeqFalseRetry` |
    /// | the last one | recovered, and the request changes nothing | `New` |
    /// | any later one | recovered, and not used since | `New`, once |
    /// | any other | | `SeqMisordered` |
    ///
    /// After a recovery a slot accepts one forward jump: requests that change nothing are not in the log. A client has
    /// one request in a slot, so its number is that of the last logged one or a later one.
    ///
    /// An error leaves the slot as it was.
    pub fn sequence(&self, request: &Request, now: Now) -> Result<Sequenced, Error> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if self.is_destroyed() || self.lease.has_ended() {
            return Err(Error::BadSession);
        }
        if request.slot >= state.granted {
            return Err(Error::BadSlot);
        }
        if request.highest >= state.granted {
            return Err(Error::BadHighSlot);
        }
        if let Err(error) = self.fits(request) {
            if planted_bugs::active("a refused SEQUENCE moves the slot") {
                let slot = state.slot(request.slot);
                (slot.sequence, slot.used) = (slot.sequence.wrapping_add(1), true);
            }
            return Err(error);
        }
        let slot = state.slot(request.slot);
        let mut relation = slot.relation(request.sequence);
        if matches!(relation, Relation::Last)
            && planted_bugs::active("a retransmission is carried out")
            && !slot.is_running()
        {
            relation = Relation::Next;
        }
        match relation {
            Relation::Other => return Err(Error::SeqMisordered),
            Relation::Next if slot.is_running() => return Err(Error::SeqMisordered),
            Relation::Last
                if slot.digest != request.digest
                    && !planted_bugs::active("a false retransmission gets the reply") =>
            {
                return Err(Error::SeqFalseRetry);
            }
            _ => {}
        }
        let longest = match relation {
            Relation::Next => self.admit_reply(state, request)?,
            _ => 0,
        };
        self.lease.renew(now);
        self.bind_locked(state, request.connection, Directions { fore: true, back: false });
        if matches!(relation, Relation::Last) {
            return Ok(self.again(state, request));
        }
        let slot = state.slot(request.slot);
        slot.sequence = request.sequence;
        slot.digest = request.digest;
        (slot.used, slot.may_jump, slot.logged) = (true, false, false);
        slot.reply = Reply::Running { longest, waiters: SmallVec::new(), logging: None };
        state.count_at_least(request.slot, longest.into());
        let wanted = self.wanted_slots(state);
        let record = self.resize(state, request, wanted);
        Ok(Sequenced::New(self.answer(state, wanted), record))
    }

    /// Returns the longest reply that may be kept for a new request.
    ///
    /// # Errors
    /// `Delay` if the client asks for the reply to be kept, and has no room for it in the memory of all sessions. It
    /// may repeat the request, or go on in slots that have a place for their reply. The first slot always works, so
    /// each client goes on.
    fn admit_reply(&self, state: &mut State, request: &Request) -> Result<u32, Error> {
        let max = self.fore.max_cached;
        let longest = if request.cache_this { max } else { max.min(SMALL_REPLY as u32) };
        let has = state.slot(request.slot).counted;
        let fits = request.slot == 0
            || state.kept.has_room(longest.saturating_sub(has).into())
            || planted_bugs::active("the memory of kept replies has no bound");
        match fits {
            true => Ok(longest),
            false if request.cache_this => Err(Error::Delay),
            false => Ok(longest.min(has)),
        }
    }

    /// Fails if a request is longer, or has more operations, than the session allows.
    fn fits(&self, request: &Request) -> Result<(), Error> {
        if request.length > self.fore.max_request {
            return Err(Error::ReqTooBig);
        }
        if request.operations > self.fore.operations {
            return Err(Error::TooManyOps);
        }
        Ok(())
    }

    /// Answers a repetition of the slot's last request: with the kept reply, or after the running request. Beyond
    /// `WAITERS` the oldest waiter loses its place.
    fn again(&self, state: &mut State, request: &Request) -> Sequenced {
        let slot = state.slot(request.slot);
        match &mut slot.reply {
            Reply::Running { waiters, .. } => {
                let Some(waiter) = request.waiter else { return Sequenced::InProgress(None) };
                let displaced = (waiters.len() >= WAITERS).then(|| waiters.remove(0));
                waiters.push(waiter);
                Sequenced::InProgress(displaced)
            }
            Reply::Kept => Sequenced::Replay(slot.kept.as_slice().into()),
            Reply::NotKept | Reply::Repeatable => {
                Sequenced::NotKept(self.answer(state, self.wanted_slots(state)))
            }
        }
    }

    /// Returns the number of slots that the client is to use.
    fn wanted_slots(&self, state: &State) -> u32 {
        match self.kept_memory.is_short_for(&self.lease, state.granted < self.fore.slots) {
            true => self.few_slots.clamp(1, self.fore.slots),
            false => self.fore.slots,
        }
    }

    /// Follows the number of slots that the server wants. Slots are dropped only when the client has said that it uses
    /// none of them.
    #[inline]
    fn resize(&self, state: &mut State, request: &Request, wanted: u32) -> Option<Record> {
        if wanted < state.granted {
            let dropped = state.slots.get(wanted as usize..).unwrap_or_default();
            if request.highest >= wanted || dropped.iter().any(Slot::is_running) {
                return None;
            }
            state.drop_slots(wanted as usize);
        }
        (wanted != state.granted).then(|| {
            state.granted = wanted;
            Record::SlotsDropped(self.id, wanted)
        })
    }

    /// Returns the session's part of SEQUENCE: the slots, and flags for a missing back channel and revoked state.
    fn answer(&self, state: &State, wanted: u32) -> Answer {
        let mut flags = 0;
        let mut set = |condition: bool, flag: u32| flags |= if condition { flag } else { 0 };
        // A client that never asked for call-backs does not miss them.
        let wants_back = self.flags & super::CONN_BACK_CHAN != 0;
        set(wants_back && !self.lease.has_back_channel(), status::CB_PATH_DOWN);
        set(wants_back && !state.has_back(), status::CB_PATH_DOWN_SESSION);
        // The log has neither program nor credential of call-backs: the client makes a new session.
        let is_unknown = state.recovered && state.callback.1.is_empty();
        set(wants_back && is_unknown, status::BACKCHANNEL_FAULT);
        set(self.lease.revoked_delegations.load(Relaxed) > 0, status::RECALLABLE_STATE_REVOKED);
        set(self.lease.admin_revoked.load(Relaxed) > 0, status::ADMIN_STATE_REVOKED);
        Answer { status: flags, highest: state.granted - 1, target: wanted - 1 }
    }

    /// Returns the record of the reply that [`Session::complete`] is about to keep for a running request: it goes to
    /// the log with the change, and the request ends when the change is durable.
    pub fn reply_record(&self, slot_number: u32, reply: &[u8]) -> Option<Record> {
        let state = self.state.lock();
        let slot = state.slots.get(slot_number as usize)?;
        let Reply::Running { longest, .. } = slot.reply else { return None };
        let kept = if reply.len() <= longest as usize { Kept::Bytes(reply.to_vec()) } else { Kept::Not };
        let (sequence, digest) = (slot.sequence, slot.digest);
        let reply = SlotReply { session: self.id, slot: slot_number, sequence, digest, reply: kept };
        Some(Record::Reply(reply)).filter(|_| !planted_bugs::active("a reply is not in the log"))
    }

    /// Notes that the reply to a running request is about to go to the log, in the record of the change with this
    /// number. From now on a snapshot has the reply, if the change is durable without its record.
    ///
    /// This is not for replies that tell of the end of a state, such as a lock: a snapshot does not end the states in
    /// older records, which only the record with the reply does.
    pub fn log_reply(&self, slot_number: u32, reply: &[u8], change: u64) {
        let mut state = self.state.lock();
        let Some(slot) = state.slots.get_mut(slot_number as usize) else { return };
        let Reply::Running { longest, logging, .. } = &mut slot.reply else { return };
        let is_kept = reply.len() <= *longest as usize;
        *logging = Some(Logging { is_kept, change });
        if is_kept {
            slot.keep(reply);
        }
    }

    /// Ends a request, and returns the retransmissions that wait for its reply.
    ///
    /// `logged` is `None` for a request that changes nothing. Otherwise the reply joins the records of the request,
    /// with the given promise at least. A reply that is too long to be kept is not.
    pub fn complete(
        &self,
        slot_number: u32,
        reply: &[u8],
        logged: Option<Durability>,
        now: Now,
        fx: &mut Effects,
    ) -> SmallVec<[Waiter; 1]> {
        let mut state = self.state.lock();
        let Some(slot) = state.slots.get_mut(slot_number as usize) else { return SmallVec::new() };
        let Reply::Running { longest, waiters, .. } = &mut slot.reply else { return SmallVec::new() };
        self.lease.renew(now);
        let keep = reply.len() <= *longest as usize;
        let waiters = std::mem::take(waiters);
        slot.reply = if keep { Reply::Kept } else { Reply::NotKept };
        if keep {
            slot.keep(reply);
        }
        // A small place stays counted, so that requests with small replies change no counter.
        let (old, new) = slot.count(slot.counted().min(SMALL_REPLY as u64));
        if let Some(durability) = logged {
            slot.logged = true;
            if !planted_bugs::active("a reply is not in the log") {
                fx.log(durability, Record::Reply(slot.describe(self.id, slot_number, u64::MAX)));
            }
        }
        state.kept.count(old, new);
        waiters
    }
}
