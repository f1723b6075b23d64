//! Call-backs: CB_RECALL, CB_GETATTR, CB_NOTIFY_LOCK and CB_OFFLOAD, each behind a CB_SEQUENCE (RFC 8881 sections
//! 2.10.6 and 20, RFC 7862 section 16.1).
//!
//! A call-back waits in the queue of its client until a session has a connection and a free slot. Nothing blocks: the
//! end of a call-back runs on the event loop that receives its reply.
//!
//! | the call-back ends with | then |
//! |---|---|
//! | a reply in which CB_SEQUENCE succeeded | the slot has moved |
//! | a failure of CB_SEQUENCE, or an RPC error | the slot has not moved, and the call-back is tried again later |
//! | the end of its connection | it is sent again, with its slot and number, over another connection |

mod body;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Sender;

use forebay_clientstate::{
    CallbackEnd, ClientId, CopyEnd, CopyProgress, Effects, FileKey, OwnerName, RequestId, Session, StateId,
};
use forebay_common::lock::Mutex;
use forebay_rpc::Peer;
use forebay_wire::nfs4::{CallbackSec, CbResult, CompoundRes, Nfsstat4, Opcode, Outcome};
use forebay_wire::rpc::{Auth, ReplyHeader, ReplyStatus};
use forebay_wire::xdr::{Decode, Encode, Reader};

use self::body::body;
use super::compound::{Compound, Context, Stop};
use super::holder::{Told, told};

/// Call-backs that wait for one client. Further ones are dropped: a delegation is revoked then, and a client that waits
/// for a lock asks again. A client has far fewer copies.
const WAITING: usize = 4096;
/// The number of times that a call-back is sent to a client that answers with errors.
const ATTEMPTS: u8 = 8;

/// A call-back.
#[derive(Clone)]
pub(super) enum Message {
    /// CB_RECALL.
    /// It refers to the request that got the delegation if the client may not have the reply yet: the client then
    /// waits for the reply first (RFC 8881 section 2.10.6.3).
    Recall { stateid: StateId, file: FileKey, granted_in: Option<RequestId> },
    /// CB_GETATTR. The sender gets the answer, or is dropped without one. It refers to a request as a recall does.
    Getattr { file: FileKey, granted_in: Option<RequestId>, answered: Sender<Option<Told>> },
    /// CB_NOTIFY_LOCK.
    NotifyLock { client: u64, owner: OwnerName, file: FileKey },
    /// CB_OFFLOAD. It refers to its COPY as a recall does.
    Offload {
        stateid: StateId,
        file: FileKey,
        end: CopyEnd,
        progress: Arc<CopyProgress>,
        asked_in: Option<RequestId>,
    },
}

/// A call-back in a queue.
#[derive(Clone)]
struct Job {
    message: Message,
    attempts: u8,
}

/// A call-back with its slot.
#[derive(Clone)]
struct Sent {
    job: Job,
    session: Arc<Session>,
    slot: u32,
    sequence: u32,
    /// True if a connection has taken the call-back: the client may have seen it.
    is_begun: bool,
}

#[derive(Default)]
struct Client {
    sessions: Vec<Arc<Session>>,
    queue: VecDeque<Job>,
    /// Call-backs whose connection has ended before the reply.
    broken: Vec<Sent>,
    /// Call-backs that are tried again at the next tick.
    later: Vec<Job>,
}

/// A connection that is bound to back channels.
struct Bound {
    peer: Arc<Peer>,
    sessions: Vec<Arc<Session>>,
}

#[derive(Default)]
struct Tables {
    connections: HashMap<u64, Bound>,
    clients: HashMap<ClientId, Client>,
}

/// The call-backs of all clients.
#[derive(Default)]
pub(crate) struct Callbacks {
    tables: Mutex<Tables>,
    /// Call-backs that got a reply in which all succeeded.
    pub(super) answered: AtomicU64,
    /// Call-backs that were given up: the client refused them, or too many waited for it.
    pub(super) given_up: AtomicU64,
}

/// A connection, and a session to whose back channel it is bound.
pub(super) struct BackPath {
    peer: Arc<Peer>,
    session: Arc<Session>,
}

impl Callbacks {
    /// Uses a connection for the call-backs of a session, and sends those that wait. The client knows the session: it
    /// refuses call-backs of another one.
    pub(super) fn open(self: &Arc<Self>, path: &BackPath) {
        self.bind(&path.peer, &path.session);
        self.pump(path.session.client());
    }

    /// Uses a connection for the call-backs of a session that it is bound to, from [`Callbacks::pump`] on.
    fn bind(self: &Arc<Self>, peer: &Arc<Peer>, session: &Arc<Session>) {
        {
            let mut tables = self.tables.lock();
            let bound = tables
                .connections
                .entry(peer.id)
                .or_insert_with(|| Bound { peer: peer.clone(), sessions: Vec::new() });
            add(&mut bound.sessions, session);
            add(&mut tables.clients.entry(session.client()).or_default().sessions, session);
        }
        if peer.line.is_lost() {
            self.disconnected(peer);
        }
    }

    /// Forgets a connection that has ended. Call-backs without a reply are sent again over other connections.
    pub(crate) fn disconnected(&self, peer: &Peer) {
        let bound = self.tables.lock().connections.remove(&peer.id);
        for session in bound.iter().flat_map(|bound| &bound.sessions) {
            session.connection_lost(peer.id);
        }
        peer.line.lost();
    }

    /// Forgets a client that has no state any more.
    pub(super) fn forget(&self, client: ClientId) {
        self.tables.lock().clients.remove(&client);
    }

    /// Sends a call-back as soon as the client has a connection and a slot for it.
    pub(super) fn send(self: &Arc<Self>, client: ClientId, message: Message) {
        {
            let mut tables = self.tables.lock();
            let queue = &mut tables.clients.entry(client).or_default().queue;
            if queue.len() >= WAITING {
                self.given_up.fetch_add(1, Relaxed);
                return;
            }
            queue.push_back(Job { message, attempts: 0 });
        }
        self.pump(client);
    }

    /// Tries call-backs again that clients could not take.
    pub(super) fn tick(self: &Arc<Self>) {
        let due: Vec<ClientId> = {
            let mut tables = self.tables.lock();
            let with_later = tables.clients.iter_mut().filter(|(_, client)| !client.later.is_empty());
            with_later
                .map(|(id, client)| {
                    client.queue.extend(client.later.drain(..));
                    *id
                })
                .collect()
        };
        due.into_iter().for_each(|client| self.pump(client));
    }

    /// Returns the number of call-backs that wait for a connection or a slot.
    pub(super) fn waiting(&self) -> usize {
        let tables = self.tables.lock();
        let of = |client: &Client| client.queue.len() + client.broken.len() + client.later.len();
        tables.clients.values().map(of).sum()
    }

    /// Sends what a client's connections and slots allow.
    pub(super) fn pump(self: &Arc<Self>, client: ClientId) {
        loop {
            let next = self.tables.lock().next(client);
            let Some((sent, peers)) = next else { return };
            if !self.transmit(&sent, &peers) {
                return self.tables.lock().take_back(client, sent);
            }
        }
    }

    /// Returns true if a connection has taken a call-back.
    fn transmit(self: &Arc<Self>, sent: &Sent, peers: &[Arc<Peer>]) -> bool {
        let Some(body) = body(sent) else { return false };
        peers.iter().any(|peer| {
            let (callbacks, sent) = (self.clone(), Sent { is_begun: true, ..sent.clone() });
            let answered = Box::new(move |reply: Option<&[u8]>| callbacks.finish(sent, reply));
            let record = |xid: u32| [&xid.to_be_bytes()[..], &body].concat();
            peer.line.call(record, answered).is_ok()
        })
    }

    /// Ends a call-back whose reply has come, or whose connection has ended.
    fn finish(self: &Arc<Self>, mut sent: Sent, reply: Option<&[u8]>) {
        let client = sent.session.client();
        let Some(reply) = reply else {
            sent.session.end_callback(sent.slot, CallbackEnd::Unknown);
            if let Some(client) = self.tables.lock().clients.get_mut(&client) {
                client.broken.push(sent);
            }
            return self.pump(client);
        };
        let (end, mut is_done) = judge(reply);
        sent.session.end_callback(sent.slot, end);
        if let (Message::Getattr { answered, .. }, CallbackEnd::Moved) = (&sent.job.message, end) {
            // The request may have given up waiting.
            let _ = answered.send(told(reply).filter(|_| is_done));
            is_done = true;
        }
        sent.job.attempts += 1;
        if let Message::Offload { progress, .. } = &sent.job.message
            && (is_done || sent.job.attempts >= ATTEMPTS)
        {
            progress.told();
        }
        if is_done {
            self.answered.fetch_add(1, Relaxed);
        } else if sent.job.attempts >= ATTEMPTS {
            self.given_up.fetch_add(1, Relaxed);
        } else if let Some(client) = self.tables.lock().clients.get_mut(&client) {
            client.later.push(sent.job);
        }
        self.pump(client);
    }
}

impl Tables {
    /// Returns the next call-back of a client with the connections for it.
    fn next(&mut self, id: ClientId) -> Option<(Sent, Vec<Arc<Peer>>)> {
        let client = self.clients.get_mut(&id)?;
        client.broken.retain(|sent| !sent.session.is_destroyed());
        client.sessions.retain(|session| !session.is_destroyed());
        let peers = |session: &Session| -> Vec<Arc<Peer>> {
            let ids = session.back_connections();
            ids.iter().filter_map(|id| Some(self.connections.get(id)?.peer.clone())).collect()
        };
        let found = client.broken.iter().position(|sent| !peers(&sent.session).is_empty());
        if let Some(index) = found {
            let sent = client.broken.swap_remove(index);
            let peers = peers(&sent.session);
            return Some((sent, peers));
        }
        client.queue.front()?;
        let mut sessions = client.sessions.iter();
        let (session, peers, (slot, sequence)) = sessions.find_map(|session| {
            let peers = peers(session);
            if peers.is_empty() {
                return None;
            }
            // A recovered session gets no call-backs: its client makes a new one. So the numbers need no record.
            let slot = session.begin_callback(&mut Effects::default())?;
            Some((session.clone(), peers, slot))
        })?;
        let job = client.queue.pop_front()?;
        Some((Sent { job, session, slot, sequence, is_begun: false }, peers))
    }

    /// Keeps a call-back that no connection has taken.
    fn take_back(&mut self, client: ClientId, sent: Sent) {
        if !sent.is_begun {
            sent.session.end_callback(sent.slot, CallbackEnd::NotMoved);
        }
        let Some(client) = self.clients.get_mut(&client) else { return };
        if sent.is_begun { client.broken.push(sent) } else { client.queue.push_front(sent.job) }
    }
}

/// Adds a session to the list unless the list has it, and drops sessions that clients have ended.
fn add(sessions: &mut Vec<Arc<Session>>, session: &Arc<Session>) {
    sessions.retain(|known| !known.is_destroyed());
    if !sessions.iter().any(|known| Arc::ptr_eq(known, session)) {
        sessions.push(session.clone());
    }
}

/// Returns the end of a slot by the reply, and whether the call-back is done.
fn judge(reply: &[u8]) -> (CallbackEnd, bool) {
    let mut input = Reader::new(reply);
    let is_success =
        matches!(ReplyHeader::decode(&mut input), Ok(ReplyHeader { status: ReplyStatus::Success, .. }));
    let results = CompoundRes::<CbResult<'_>>::decode(&mut input).ok().filter(|_| is_success);
    let Some(CompoundRes { mut results, status, .. }) = results else {
        return (CallbackEnd::NotMoved, false);
    };
    match results.next() {
        Some(Ok(CbResult::Sequence(sequence))) => match Outcome::status(&sequence) {
            // The second result is the last. A client that does not know the delegation yet learns of it soon.
            Nfsstat4::Ok => (CallbackEnd::Moved, status == Nfsstat4::Ok),
            // The client has carried out the call-back before, and has kept no reply.
            Nfsstat4::RetryUncachedRep => (CallbackEnd::Moved, true),
            Nfsstat4::SeqMisordered => (CallbackEnd::Misordered, false),
            _ => (CallbackEnd::NotMoved, false),
        },
        _ => (CallbackEnd::NotMoved, false),
    }
}

/// Returns the minor version and the credential of call-backs in the form that a session keeps. The first flavour of
/// the client that the server has is taken; `None` if there is none.
pub(super) fn security<'a>(minor: u32, offered: impl Iterator<Item = CallbackSec<'a>>) -> Option<Vec<u8>> {
    let mut offered = offered.peekable();
    let is_empty = offered.peek().is_none();
    let usable = offered.find_map(|offer| match offer {
        CallbackSec::None => Some(Auth::None),
        CallbackSec::Sys(sys) => Some(Auth::Sys(sys)),
        CallbackSec::Gss(_) => None,
    });
    let credential = usable.or(is_empty.then_some(Auth::None))?;
    let mut out = Vec::new();
    minor.encode(&mut out);
    credential.encode(&mut out);
    Some(out)
}

impl Compound {
    /// Returns the connection of the request with its session, if it is bound to the back channel of the session.
    pub(super) fn back_path(&self, cx: &Context<'_>, id: forebay_clientstate::SessionId) -> Option<BackPath> {
        let session = cx.server.session(id)?;
        let is_bound = session.back_connections().contains(&cx.call.peer.id);
        is_bound.then(|| BackPath { peer: cx.call.peer.clone(), session })
    }

    /// BACKCHANNEL_CTL.
    pub(super) fn backchannel_ctl(
        &mut self,
        cx: &Context<'_>,
        args: &forebay_wire::nfs4::BackchannelCtlArgs<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), Stop> {
        let id = self.slot.as_ref().map(|slot| slot.session.id());
        let id = id.ok_or(Stop::Fail(Nfsstat4::OpNotInSession))?;
        let minor = self.minor();
        let security = security(minor, args.sec_parms.iter()).ok_or(Stop::Fail(Nfsstat4::Inval))?;
        cx.server.state().backchannel_ctl(id, args.cb_program, security)?;
        self.reply.start(out, Opcode::BackchannelCtl);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u32, words: &[u32]) -> Vec<u8> {
        let mut out = Vec::new();
        ReplyHeader { xid: 1, status: ReplyStatus::Success }.encode(&mut out);
        [status, 0].iter().chain(words).for_each(|word| word.encode(&mut out));
        out
    }

    #[test]
    fn a_failed_sequence_leaves_its_slot() {
        assert_eq!(judge(&reply(10008, &[1, 11, 10008])), (CallbackEnd::NotMoved, false));
        assert_eq!(judge(&reply(10063, &[1, 11, 10063])), (CallbackEnd::Misordered, false));
        assert_eq!(judge(&reply(10068, &[1, 11, 10068])), (CallbackEnd::Moved, true));
    }

    #[test]
    fn a_successful_sequence_moves_its_slot() {
        let sequence = [11, 0, 0, 0, 0, 0, 1, 0, 7, 7];
        let with = |status| reply(status, &[&[2][..], &sequence, &[4, status]].concat());
        assert_eq!(judge(&with(0)), (CallbackEnd::Moved, true));
        // NFS4ERR_BADHANDLE: the client does not know the file yet.
        assert_eq!(judge(&with(10001)), (CallbackEnd::Moved, false));
    }

    #[test]
    fn a_reply_that_is_no_compound_leaves_the_slot() {
        assert_eq!(judge(b""), (CallbackEnd::NotMoved, false));
    }

    #[test]
    fn the_first_known_flavour_is_taken() {
        use forebay_wire::nfs4::GssCallbackHandles;
        let gss = CallbackSec::Gss(GssCallbackHandles { service: 1, from_server: b"", from_client: b"" });
        assert_eq!(security(1, [gss].into_iter()), None);
        assert_eq!(security(1, [gss, CallbackSec::None].into_iter()), security(1, [].into_iter()));
    }
}
