//! The state of clients in the cache's log: each request happens once, and a restarted server has no grace period.
//!
//! | a request has changed | its records | its reply |
//! |---|---|---|
//! | the state of its client | in one piece | at the end of the piece |
//! | names or attributes | | in the record of the change |
//! | both (OPEN that makes a file) | in the record of the change | with them |
//! | both: more than fits, a lock, a CLOSE | in one piece, for which the reply waits | at its end |
//! | nothing | none | not in the log: the client may ask again |
//!
//! A piece gets its numbers under the lock of the state, so the order in the log is the order of the state. A change of
//! names gets its number before the OPEN changes the state. So the records in a change may come before older ones of
//! the file; recovery keeps the newest.
//!
//! A kill may leave a change without its record. Then the request journal knows the key of the request, and the client
//! that asks again gets a success ([`Compound::was_carried_out`]) or continues the creation (`vfs`). The log has the
//! key until the client uses a later number in the slot.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use forebay_clientstate::{
    Counters, Durability, Effects, KeyOf, Record, Recovery, SessionId, State, decode_all, encode_all,
};
use forebay_common::lock::Mutex;
use forebay_rpc::OwnedReply;
use forebay_runtime::tasks;
use forebay_vfs::{LoggedReply, STATE_MAX, Vfs, Wait};

use super::compound::{Compound, Context, InSlot};
use super::server::Server;
use crate::shared::Shared;

/// First byte of a piece of clients' records. Replies of NFSv3 begin with 4 or 6.
const PIECE: u8 = 1;
/// First byte of the key of a request that changes names or attributes.
const CHANGE: u8 = 2;
/// Length of a key in bytes: the first byte, session, slot, sequence number, digest.
const KEY: usize = 1 + 16 + 4 + 4 + 8;
/// The byte after the key: the reply follows.
const WITH_REPLY: u8 = 0;
/// The byte after the key: the change was carried out, and nobody knows the reply.
const WITHOUT_REPLY: u8 = 1;
/// Most bytes of a reply in the record of a change. A longer one leaves no room for the change.
const REPLY_IN_CHANGE: usize = 1600;

/// The bytes that distinguish a request from all others.
pub(super) type Key = [u8; KEY];

/// Bytes from the log.
enum Logged {
    Records(Vec<Record>),
    CarriedOut(Key),
}

impl Logged {
    /// Decodes bytes that a server appended to the log. Returns `None` for other bytes, among them replies of NFSv3.
    /// `key_of` finds the keys of files.
    fn decode(bytes: &[u8], key_of: KeyOf<'_>) -> Option<Self> {
        match *bytes.first()? {
            PIECE => decode_all(&bytes[1..], key_of).map(Logged::Records),
            CHANGE => {
                let (key, rest) = bytes.split_first_chunk()?;
                match rest.split_first()? {
                    (&WITH_REPLY, reply) => decode_all(reply, key_of).map(Logged::Records),
                    (&WITHOUT_REPLY, []) => Some(Logged::CarriedOut(*key)),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// Returns records as pieces that the log takes.
fn pieces(records: &[Record]) -> Vec<Vec<u8>> {
    let mut pieces: Vec<Vec<u8>> = Vec::new();
    for record in records {
        let mut bytes = Vec::new();
        record.encode(&mut bytes);
        match pieces.last_mut() {
            Some(piece) if piece.len() + bytes.len() <= STATE_MAX => piece.extend_from_slice(&bytes),
            _ => pieces.push([&[PIECE][..], &bytes].concat()),
        }
    }
    pieces
}

impl InSlot {
    /// Returns the key under which the log records the change of this request: a repetition after a crash has an
    /// equal key.
    fn key(&self) -> Key {
        let mut key = [CHANGE; KEY];
        key[1..17].copy_from_slice(&self.session.id().0);
        key[17..21].copy_from_slice(&self.slot.to_le_bytes());
        key[21..25].copy_from_slice(&self.sequence.to_le_bytes());
        key[25..].copy_from_slice(&self.digest.to_le_bytes());
        key
    }
}

impl Server {
    /// Continues from the records that the log has, in their order. `key_of` finds the keys of their files. If clients
    /// were served without the log since, they may reclaim their state for the time of a lease. `has_lost_locks`: so
    /// may hosts of NFSv3, which no list names.
    pub(crate) fn recover<'a>(
        &self,
        logged: impl Iterator<Item = &'a [u8]>,
        key_of: KeyOf<'_>,
        is_lost: bool,
        has_lost_locks: bool,
    ) {
        let mut all = Vec::new();
        let owners = self.known.owners();
        let mut carried_out = self.carried_out.lock();
        for logged in logged.filter_map(|bytes| Logged::decode(bytes, key_of)) {
            match logged {
                Logged::Records(records) => all.extend(records),
                Logged::CarriedOut(key) => _ = carried_out.insert(key),
            }
        }
        let mut state = self.state();
        let origin = self.origin(all.iter().map(Record::epoch).max());
        if is_lost {
            let known = (!has_lost_locks).then_some(owners);
            *state = State::without_log(self.limits.clone(), origin, known, self.now());
            state.count_in(self.counters.clone());
            return;
        }
        let mut recovery = Recovery::new(self.limits.clone(), origin);
        all.iter().for_each(|record| recovery.apply(record));
        *state = recovery.finish(self.now());
        if has_lost_locks {
            state.begin_grace(self.now());
        } else if self.known.in_grace() {
            state.resume_grace(owners, self.now());
        }
        state.count_in(self.counters.clone());
    }

    /// Returns pieces that replace all older ones, each with a number. Revocations stay for the next request: older
    /// records of their clients are released only when the snapshot without them is durable. Changes of names and
    /// attributes up to `durable` need no record any more, so the snapshot has the replies that tell of them.
    pub(crate) fn snapshot(&self, number: &dyn Fn() -> u64, durable: u64) -> Vec<(u64, Vec<u8>)> {
        // A clean stop makes a snapshot. The next start shall not resume a grace period that has ended.
        self.forget_known();
        let clients = self.state().client_ids();
        let mut numbered = Vec::new();
        let mut put = |records: Vec<Record>| {
            numbered.extend(pieces(&records).into_iter().map(|piece| (number(), piece)));
        };
        for client in clients {
            let state = self.state();
            put(state.snapshot_of(client, durable));
        }
        let state = self.state();
        put(state.snapshot_hosts());
        drop(state);
        let mut carried_out = self.carried_out.lock();
        carried_out.retain(|key| self.may_come_again(key));
        numbered.extend(carried_out.iter().map(|key| (number(), [&key[..], &[WITHOUT_REPLY]].concat())));
        numbered
    }

    /// Returns true if the client of a request that a killed server carried out may still send it again: it has used no
    /// later number in the slot.
    fn may_come_again(&self, key: &Key) -> bool {
        let (Ok(session), Ok(slot), Ok(sequence)) =
            (key[1..17].try_into(), key[17..21].try_into(), key[21..25].try_into())
        else {
            return false;
        };
        let session = self.state_with_its_grants().session(SessionId(session));
        let (slot, sequence) = (u32::from_le_bytes(slot), u32::from_le_bytes(sequence));
        session.is_some_and(|session| !session.is_past(slot, sequence))
    }

    /// Gives the effects of a change to the log, and waits until their promise holds. The caller is a worker, and
    /// answers NLM.
    pub(crate) fn log_and_wait(&self, vfs: &Vfs, fx: &mut Effects) {
        let Some(logging) =
            Some(vfs).filter(|vfs| vfs.logs_state()).and_then(|vfs| self.number(vfs, fx, None, Wait::Yes))
        else {
            return;
        };
        let (sender, receiver) = mpsc::channel();
        let passage = Arc::new(Passage::default());
        logging.append(vfs, &passage);
        passage.pass(move || _ = sender.send(()));
        let _ = receiver.recv();
    }

    /// Numbers the records of a request for the log, with that of its reply. Returns `None` if it has none, and relies
    /// on no revocation that is not durable. With [`Wait::No`] also returns `None`, without effect, if the reply has to
    /// wait for the log.
    fn number(&self, vfs: &Vfs, fx: &mut Effects, reply: Option<Record>, wait: Wait) -> Option<Logging> {
        let relies = self.has_revocations();
        let waits = relies || fx.durability == Durability::BeforeReply;
        if !relies && fx.records.is_empty() || waits && wait == Wait::No {
            return None;
        }
        let mut state = self.state_with_its_grants();
        let revoked = state.take_revoked();
        let revocations = revoked.len();
        let records = [revoked, std::mem::take(&mut fx.records), reply.into_iter().collect()].concat();
        let mut pieces = pieces(&records);
        if pieces.is_empty() {
            // Another request has the revocations on their way. A piece behind them is durable after them.
            pieces.push(vec![PIECE]);
        }
        let numbered = pieces.into_iter().map(|piece| Some((vfs.number_state()?, piece)));
        let pieces = numbered.collect::<Option<Vec<_>>>()?;
        Some(Logging { pieces, waits, revocations, counters: self.counters.clone() })
    }
}

/// Pieces with their numbers, on their way to the log.
struct Logging {
    pieces: Vec<(u64, Vec<u8>)>,
    /// True if the reply waits for the last piece.
    waits: bool,
    /// The number of revocations among the records.
    revocations: usize,
    counters: Arc<Counters>,
}

/// A passage that opens when the records of a request are durable. Nothing can wait there: completions come from
/// threads that serve the log.
#[derive(Default)]
pub(super) struct Passage(Mutex<Stage>);

#[derive(Default)]
enum Stage {
    #[default]
    Closed,
    Awaited(Box<dyn FnOnce() + Send>),
    Open,
}

impl Passage {
    /// Calls `then` once the passage is open.
    pub(super) fn pass(&self, then: impl FnOnce() + Send + 'static) {
        let mut stage = self.0.lock();
        if let Stage::Open = *stage {
            drop(stage);
            return then();
        }
        *stage = Stage::Awaited(Box::new(then));
    }

    /// Opens the passage, and calls the function that waits at it. Later callers of [`Passage::pass`] do not wait.
    fn open(&self) {
        let before = std::mem::replace(&mut *self.0.lock(), Stage::Open);
        if let Stage::Awaited(then) = before {
            then();
        }
    }
}

impl Logging {
    /// Appends the pieces. The passage opens when the reply may leave.
    fn append(self, vfs: &Vfs, passage: &Arc<Passage>) {
        let Logging { mut pieces, waits, revocations, counters } = self;
        let last = if waits { pieces.pop() } else { None };
        for (number, piece) in pieces {
            vfs.log_state(number, piece, None);
        }
        match last {
            Some((number, piece)) => {
                let passage = passage.clone();
                // If the log does not take the piece, that is recorded, and the running server has the state.
                let durable = move |_| {
                    counters.revocations.fetch_sub(revocations, Ordering::Release);
                    passage.open();
                };
                vfs.log_state(number, piece, Some(Box::new(durable)));
            }
            None => passage.open(),
        }
    }
}

impl Compound {
    /// Returns true if the log has to have records before the reply: of this request, or revocations that it may rely
    /// on.
    pub(super) fn has_records(&self, shared: &Shared) -> bool {
        let relies = || shared.serves_nfs4().is_some_and(Server::has_revocations);
        shared.vfs.logs_state() && (!self.effects.records.is_empty() || relies())
    }

    /// Gives the records of the request to the log, then makes its change durable and answers.
    pub(super) fn log_and_commit(mut self: Box<Self>, shared: Arc<Shared>, mut reply: OwnedReply) {
        let passage = Arc::new(Passage::default());
        let Some(server) = shared.serves_nfs4().filter(|_| shared.vfs.logs_state()) else {
            passage.open();
            return self.commit_change(shared, reply, Vec::new(), passage);
        };
        let answer = self.logged_answer(&shared, reply.head());
        let own = if self.is_logged { None } else { self.reply_record(reply.head()) };
        if own.is_some() && !self.effects.records.is_empty() {
            self.is_logged = true;
            if !answer.is_empty() {
                // The record of the change has neither. So the reply waits for the piece as well.
                self.effects.durability = Durability::BeforeReply;
            }
        }
        match server.number(&shared.vfs, &mut self.effects, own, Wait::Yes) {
            Some(logging) => logging.append(&shared.vfs, &passage),
            None => passage.open(),
        }
        self.commit_change(shared, reply, answer, passage);
    }

    /// Gives the records of the request to the log on an event loop. Returns false if the reply has to wait for the
    /// log, or for a change.
    pub(super) fn log_loosely(&mut self, shared: &Shared, server: &Server, reply: &[u8]) -> bool {
        if self.has_change() || self.effects.durability != Durability::Loose || !tasks::attached() {
            return false;
        }
        let own = self.reply_record(reply);
        let keeps_reply = own.is_some();
        let Some(logging) = server.number(&shared.vfs, &mut self.effects, own, Wait::No) else {
            return false;
        };
        self.is_logged = keeps_reply;
        logging.append(&shared.vfs, &Arc::default());
        true
    }

    /// Returns the bytes for the record of the last change. They keep the reply of the request, and take its records,
    /// if these are short opens and delegations. Returns none if the change keeps no reply.
    fn logged_answer(&mut self, shared: &Shared, reply: &[u8]) -> Vec<u8> {
        let (true, true, Some(slot)) = (self.change_keeps_reply(), shared.vfs.logs_state(), &self.slot)
        else {
            return Vec::new();
        };
        let mut answer = slot.key().to_vec();
        let own = self.reply_record(reply);
        let records: Vec<_> = self.effects.records.iter().cloned().chain(own.iter().cloned()).collect();
        let bytes = encode_all(&records);
        // The change may have an older number than records of other requests. Recovery puts only these kinds in order.
        let in_any_order =
            |record: &Record| matches!(record, Record::Open { .. } | Record::Delegation { .. });
        let fits = self.effects.records.iter().all(in_any_order) && bytes.len() <= REPLY_IN_CHANGE;
        if own.is_some() && fits {
            answer.push(WITH_REPLY);
            answer.extend_from_slice(&bytes);
            self.effects.records.clear();
            self.is_logged = true;
            if let Some(change) = self.change_number() {
                slot.session.log_reply(slot.slot, self.kept_reply(reply), change);
            }
        } else {
            answer.push(WITHOUT_REPLY);
        }
        answer
    }

    /// Returns the record of the reply to this request, or `None` for a request outside of a session.
    fn reply_record(&self, reply: &[u8]) -> Option<Record> {
        let InSlot { session, slot, .. } = self.slot.as_ref()?;
        session.reply_record(*slot, self.kept_reply(reply))
    }

    /// Returns the request for the request journal, if it is the first change of this COMPOUND. A creation goes on if
    /// the client asks again. `is_creation` is false for changes that one call makes.
    pub(super) fn logged_reply(&self, cx: &Context<'_>, is_creation: bool) -> Option<LoggedReply> {
        let slot = self.slot.as_ref().filter(|_| !self.has_changed && cx.shared.vfs.logs_state())?;
        let mut answer = slot.key().to_vec();
        if !is_creation {
            answer.push(WITHOUT_REPLY);
        }
        Some(LoggedReply { answer, key: KEY })
    }

    /// Returns true if a killed server has carried out the first change of this request without answering it.
    pub(super) fn was_carried_out(&self, cx: &Context<'_>) -> bool {
        let Some(slot) = self.slot.as_ref().filter(|_| !self.has_changed) else { return false };
        let carried_out = cx.server.carried_out.lock();
        !carried_out.is_empty() && carried_out.contains(&slot.key())
    }
}

#[cfg(test)]
mod tests {
    use forebay_clientstate::{ClientId, FileKey};

    use super::*;

    #[test]
    fn pieces_have_all_records_in_order_and_fit() {
        let records: Vec<_> = (0..2000).map(|id| Record::ClientRemoved(ClientId(id))).collect();
        let pieces = pieces(&records);
        assert!(pieces.len() > 1 && pieces.iter().all(|piece| piece.len() <= STATE_MAX));
        let read = pieces.iter().flat_map(|piece| match Logged::decode(piece, &FileKey::of_handle) {
            Some(Logged::Records(records)) => records,
            _ => panic!("no piece"),
        });
        assert_eq!(read.collect::<Vec<_>>(), records);
    }

    #[test]
    fn a_key_without_more_is_no_answer() {
        let key = [CHANGE; KEY];
        assert!(Logged::decode(&key, &FileKey::of_handle).is_none());
        assert!(
            matches!(Logged::decode(&[&key[..], &[WITHOUT_REPLY]].concat(), &FileKey::of_handle), Some(Logged::CarriedOut(it)) if it == key)
        );
        assert!(Logged::decode(&[&key[..], &[WITHOUT_REPLY, 0]].concat(), &FileKey::of_handle).is_none());
        assert!(Logged::decode(&[4; 60], &FileKey::of_handle).is_none(), "a reply of NFSv3");
    }
}
