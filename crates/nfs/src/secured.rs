//! Requests with the flavour RPCSEC_GSS: their headers and bodies are verified on threads of their own, since a body
//! may take milliseconds to decrypt. Then they go the way of all requests. The ticket seals the reply when it is
//! sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_common::user_database::user_called;
use forebay_gss::{Arguments, Load, Received, Seal, Settings};
use forebay_rpc::{Handled, Message, Record, Ticket, Workers};
use forebay_vfs::Outcome;
use forebay_wire::rpc::{ReplyHeader, ReplyStatus};
use forebay_wire::rpcsec_gss::is_gss_data;
use forebay_wire::xdr::Encode;

use crate::request::{Head, Rejected, Request, header};
use crate::service::{Nfs, Pools};
use crate::shared::Shared;

/// Threads that make contexts. Each may wait for the user database, and calls of other users do not wait for that.
const MAKERS: usize = 4;

/// RPCSEC_GSS in service.
pub(crate) struct Secured {
    /// Threads for calls of procedures.
    calls: Workers<Unverified>,
    /// Threads for calls that make or end contexts.
    contexts: Workers<Unverified>,
}

/// A request whose caller is not known yet.
struct Unverified {
    record: Record,
    ticket: Ticket,
    arrived: Instant,
}

/// The parts of the service that a verified request needs.
struct Verifier {
    gss: forebay_gss::Server,
    shared: Arc<Shared>,
    pools: Pools,
}

impl Secured {
    /// Opens the keytab, and starts the threads that verify calls. Their number is that of the CPU cores, from 2 to
    /// 64. Fails if Kerberos is not usable with these settings.
    fn new(settings: &Settings, shared: &Arc<Shared>, pools: &Pools) -> Result<Self, KerberosError> {
        let gss = open(settings)?;
        // Clients take the name of their realm, in lower case, for the domain of their users.
        shared.owners.know(gss.realms().to_vec());
        let verifier = Arc::new(Verifier { gss, shared: shared.clone(), pools: pools.clone() });
        let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 64));
        let start = |threads| {
            let verifier = verifier.clone();
            let verify = move |request| verifier.verify(request);
            Workers::new(threads, pools.limit(), Duration::ZERO, verify)
        };
        Ok(Secured { calls: start(cores)?, contexts: start(MAKERS)? })
    }

    /// Takes a request off the event loop. If too many wait already, the connection is closed: a reply that is not
    /// sealed would be ignored.
    pub(crate) fn take(&self, shared: &Shared, message: Message<'_>, arrived: Instant) -> Handled {
        let workers = if is_gss_data(message.bytes()) { &self.calls } else { &self.contexts };
        let (record, ticket) = message.defer();
        shared.stats.deferred.fetch_add(1, Ordering::Relaxed);
        let (address, bytes) = (ticket.peer().addr.ip(), record.len());
        match workers.submit(address, bytes, Unverified { record, ticket, arrived }) {
            Ok(()) => Handled::Deferred,
            Err(request) => {
                drop(request);
                shared.done();
                shared.stats.rejected.fetch_add(1, Ordering::Relaxed);
                Handled::Close
            }
        }
    }

    /// Ends the threads after they have verified all calls that wait for them.
    pub(crate) fn stop(&self) {
        self.calls.stop();
        self.contexts.stop();
    }
}

impl Verifier {
    /// Answers a request that concerns a context. All other requests are carried out for the user of their context.
    fn verify(&self, request: Unverified) {
        let Unverified { record, ticket, arrived } = request;
        let (header, rest) = match header(&record) {
            Ok(decoded) => decoded,
            Err(Rejected::NotACall) => return self.shared.done(),
            Err(Rejected::With(header)) => return self.answer(ticket, &header),
        };
        let (from, args) = (ticket.peer().addr.ip(), record.len() - rest.remaining());
        let (caller, arguments, seal) = match self.gss.receive(&record, &header, args, from, arrived) {
            Received::Silent => return self.shared.done(),
            Received::Reply(whole) => {
                let mut reply = ticket.reply();
                *reply.head() = whole;
                return self.shared.send(ticket, reply);
            }
            Received::Call(caller, arguments, seal) => (caller, arguments, seal),
        };
        let ticket = sealed(ticket, seal);
        let failed = |status| ReplyHeader { xid: header.xid, status };
        let (args, plain) = match arguments {
            Arguments::Garbage => return self.answer(ticket, &failed(ReplyStatus::GarbageArgs)),
            Arguments::InRecord => (args, None),
            Arguments::Apart(plain) => (0, Some(ticket.record(plain))),
        };
        match Head::of_gss(&header, self.shared.served, caller, args) {
            Err(status) => self.answer(ticket, &failed(status)),
            Ok(head) => self.carry_out(head, plain.unwrap_or(record), ticket, arrived),
        }
    }

    /// Carries out a verified request, here if it does not have to wait.
    fn carry_out(&self, head: Head, record: Record, ticket: Ticket, arrived: Instant) {
        let mut reply = ticket.reply();
        let call = head.call(&record, ticket.peer());
        if let Outcome::Done(()) = head.program.attempt(&self.shared, &call, &mut reply, arrived) {
            return self.shared.send(ticket, reply);
        }
        drop(reply);
        let workers = self.pools.of(head.kind.get());
        self.shared.hand_over(Request { head, record, ticket, arrived, begun: None }, workers);
    }

    /// Sends a reply that has only a header, for a call that cannot be carried out.
    fn answer(&self, ticket: Ticket, header: &ReplyHeader) {
        let mut reply = ticket.reply();
        header.encode(reply.head());
        self.shared.send(ticket, reply);
    }
}

/// Opens the keytab, with the user database of this host.
fn open(settings: &Settings) -> Result<forebay_gss::Server, Load> {
    let ids = |name: &str| Ok(user_called(name)?.map(|user| (user.number, user.group)));
    forebay_gss::Server::open(settings, Box::new(ids))
}

/// Finds out whether Kerberos can be served with these settings.
///
/// # Errors
/// The library is not installed, or the keytab cannot be used.
pub fn check_kerberos(settings: &Settings) -> Result<(), KerberosError> {
    Ok(open(settings).map(drop)?)
}

/// Returns a ticket whose reply is signed or encrypted before it is sent.
fn sealed(mut ticket: Ticket, seal: Seal) -> Ticket {
    ticket.seal(Box::new(move |reply| seal.reply(reply)));
    ticket
}

/// The reason why Kerberos cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum KerberosError {
    /// The library or the keytab cannot be used.
    #[error(transparent)]
    Load(#[from] Load),
    /// The system refuses a thread.
    #[error("the system refuses a thread: {0}")]
    Thread(#[from] std::io::Error),
}

impl Nfs {
    /// Serves RPCSEC_GSS with Kerberos from now on. Does nothing if it is served already.
    ///
    /// # Errors
    /// The library is not installed, the keytab cannot be used, or the system refuses a thread.
    pub fn serve_kerberos(&self, settings: &Settings) -> Result<(), KerberosError> {
        if self.secured.get().is_none() {
            let secured = Secured::new(settings, &self.shared, &self.pools)?;
            let _ = self.secured.set(secured);
        }
        Ok(())
    }
}
