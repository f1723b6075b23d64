//! NLM v4 (XNFS chapter 10) as a program of the service: the locks and shares of NFSv3 clients.
//!
//! The locks are in the state of clients that NFSv4 uses as well, so the locks and shares of both conflict. Workers
//! carry out all procedures except NULL.
//!
//! | file | contents |
//! |---|---|
//! | `procedures.rs` | the procedures that the server carries out |
//! | `convert.rs` | owners, ranges and statuses, from the protocol to the state and back |
//! | `hosts.rs` | hosts that restart, and the hosts that this server has to tell of its own restart |
//! | `monitored.rs` | the hosts with locks, in a file |
//! | `grants.rs` | the judgement of answers to GRANTED |
//! | `calls.rs`, `dial.rs` | the server's own calls: the queue with its threads, and one call |

mod calls;
mod convert;
mod dial;
mod grants;
mod hosts;
mod monitored;
mod procedures;

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use forebay_clientstate::{Effects, Now, State};
use forebay_wire::nfs3::Nfsstat3;
use forebay_wire::nlm4::{self, Procedure};
use forebay_wire::xdr::Encode;

use self::calls::{Calls, Job, Purpose};
use self::monitored::Monitored;
use crate::caller::client_address;
use crate::nfs4::Server;
use crate::request::Request;
use crate::result::{Stop, garbage, success};
use crate::shared::Shared;

/// The parameters of the lock manager.
#[derive(Clone, Debug)]
pub struct LockConfig {
    /// The state directory. It holds the file with the hosts that have locks.
    pub state_dir: PathBuf,
    /// The addresses that the server listens on: its own calls come from the address that clients know.
    pub sources: Vec<IpAddr>,
}

/// The lock manager besides the state of clients.
pub(crate) struct Locks {
    monitored: Monitored,
    calls: Arc<Calls>,
    /// The name of this host, for its calls to clients.
    own_name: Vec<u8>,
}

impl Locks {
    /// Reads the list of hosts with locks from the state directory, and advances the state number in it durably.
    /// Starts no thread.
    pub(crate) fn open(config: &LockConfig) -> io::Result<Self> {
        let own_name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
        let own_name = own_name.trim_ascii();
        let path = config.state_dir.join("nlm-hosts");
        let told = |error: io::Error| {
            let message = format!("cannot keep the hosts with locks in {}: {error}", path.display());
            io::Error::new(error.kind(), message)
        };
        Ok(Locks {
            monitored: Monitored::open(path.clone()).map_err(told)?,
            calls: Arc::new(Calls::new(config.sources.clone())),
            own_name: if own_name.is_empty() { b"localhost".to_vec() } else { own_name.to_vec() },
        })
    }

    /// Starts the thread of the server's own calls. Blocked locks that the state grants lead to calls from now on.
    pub(crate) fn start(&self, server: &Server, shared: &Arc<Shared>) -> io::Result<()> {
        let (calls, own_name) = (self.calls.clone(), self.own_name.clone());
        server.call_when_granted(Box::new(move |granted| {
            if let Some(job) = grants::job(&granted, &own_name) {
                calls.add(job);
            }
        }));
        let shared: Weak<Shared> = Arc::downgrade(shared);
        self.calls.start(Arc::new(shared))
    }

    /// Returns true if hosts had locks when the last server ended. They may reclaim these locks.
    pub(crate) fn has_hosts_of_before(&self) -> bool {
        !self.monitored.to_notify().is_empty()
    }

    pub(crate) fn stop(&self) {
        self.calls.stop();
    }
}

impl Shared {
    /// Answers on a worker.
    pub(crate) fn carry_out_nlm(&self, procedure: Procedure, request: Request) {
        self.answer_nlm(procedure, request, false);
    }

    /// Answers that the client shall ask again. NLM has no status for a busy server: the status of a grace period
    /// makes clients wait and repeat the request, also UNLOCK, which must not get lost.
    pub(crate) fn turn_away_nlm(&self, procedure: Procedure, request: Request) {
        self.answer_nlm(procedure, request, true);
    }

    /// Carries out a procedure and answers. The result of an asynchronous procedure goes to the client in a call of
    /// its own, and the reply is empty.
    fn answer_nlm(&self, procedure: Procedure, request: Request, is_turned_away: bool) {
        let mut reply = request.ticket.reply();
        let call = request.call();
        self.clients.count_request(call.peer);
        match self.nlm_result(procedure, &call, is_turned_away) {
            Ok(result) => {
                success(reply.head(), call.xid());
                match (procedure.answer(), &self.locks) {
                    (Some(answer), Some(locks)) => locks.calls.add(Job {
                        to: client_address(call.peer),
                        program: nlm4::PROGRAM,
                        version: nlm4::VERSION,
                        procedure: answer as u32,
                        args: result,
                        purpose: Purpose::Answer,
                    }),
                    _ => reply.head().extend_from_slice(&result),
                }
            }
            Err(_) => garbage(&mut reply, call.xid()),
        }
        self.send(request.ticket, reply);
    }

    /// Carries out a change of the clients' state with its consequences. Returns the result of `change`.
    fn change_state<T>(&self, change: impl FnOnce(&mut State, Now, &mut Effects) -> T) -> Result<T, Stop> {
        let server = self.nfs4.as_ref().ok_or(Stop::Fail(Nfsstat3::Serverfault))?;
        let mut effects = Effects::default();
        let result = change(&mut server.state(), server.now(), &mut effects);
        server.log_and_wait(&self.vfs, &mut effects);
        server.act(&mut effects);
        server.tick(&self.vfs, server.now());
        Ok(result)
    }
}

/// Returns a result as bytes. Does not fail; the type suits the callers' chains.
fn encoded(result: &impl Encode) -> Result<Vec<u8>, Stop> {
    let mut out = Vec::new();
    result.encode(&mut out);
    Ok(out)
}
