//! The server's side of RPCSEC_GSS (RFC 2203, section 5).

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;
use forebay_common::named_file;
use forebay_wire::rpc::{Auth, AuthStat, CallHeader, OpaqueAuth, ReplyHeader, ReplyStatus};
use forebay_wire::rpcsec_gss::{
    COMPLETE, CONTINUE_NEEDED, FLAVOR, GssCredential, GssInitRes, GssIntegrity, GssProcedure, GssService,
    MAX_SEQUENCE, MAX_TOKEN, after_sequence, private_body, put_reply_header,
};
use forebay_wire::xdr::{Decode, Encode, Reader};

use crate::api::{ACCEPT, Credential, Error, Load, default_realm};
use crate::context::{Context, Peer};
use crate::principal::{Local, local_name};
use crate::table::{Limits, Table};
use crate::window::{WINDOW, Window};

/// A function that asks the host's user database for the ids of a user by name. An unknown user has none.
pub type Lookup = Box<dyn Fn(&str) -> io::Result<Option<(u32, u32)>> + Send + Sync>;

/// The settings of the server's side.
#[derive(Debug, Clone)]
pub struct Settings {
    /// File with the server's keys.
    pub keytab: PathBuf,
    /// Realms whose users are users of this host, besides the host's default realm.
    pub realms: Vec<String>,
    /// Bounds of the contexts.
    pub limits: Limits,
}

/// The server's side of RPCSEC_GSS: its keys and the contexts of clients.
pub struct Server {
    credential: Arc<Credential>,
    realms: Vec<String>,
    lookup: Lookup,
    table: Table<Established, Context>,
    /// The seconds between the start and the last message about a refused client.
    warned: AtomicU64,
    started: Instant,
}

/// A context that both sides have agreed on.
struct Established {
    context: Context,
    window: Mutex<Window>,
    principal: Arc<[u8]>,
    user: Option<(u32, u32)>,
}

/// The caller that a context stands for.
#[derive(Debug, Clone)]
pub struct Caller {
    /// Name in the realm, such as `jo@EXAMPLE.ORG`.
    pub principal: Arc<[u8]>,
    /// Uid and gid on this host; none for a name without a user.
    pub user: Option<(u32, u32)>,
    /// Protection of the call.
    pub service: GssService,
}

/// The arguments of a call without their protection.
#[derive(Debug, PartialEq, Eq)]
pub enum Arguments {
    /// They are in the record, behind the verifier.
    InRecord,
    /// They were taken out of the record.
    Apart(Vec<u8>),
    /// The checksum is wrong, or the body cannot be decrypted or decoded.
    Garbage,
}

/// The outcome of [`Server::receive`].
pub enum Received {
    /// The whole reply.
    Reply(Vec<u8>),
    /// No reply: the sequence number was received before, or lies below the window (RFC 2203, section 5.3.3.1).
    Silent,
    /// A call of a procedure.
    Call(Caller, Arguments, Seal),
}

/// The protection of one reply.
pub struct Seal {
    context: Arc<Established>,
    sequence: u32,
    service: GssService,
}

/// The least number of seconds between two messages about refused clients.
const WARN_EVERY: u64 = 10;
/// Longest name of a principal in bytes. A client with a longer one gets no context.
const MAX_PRINCIPAL: usize = 500;
/// `GSS_S_FAILURE`: the server failed for a reason of its own.
const FAILURE: u32 = 13 << 16;

impl Server {
    /// Loads the library and the keys. `lookup` finds the users of principals.
    ///
    /// # Errors
    /// The library is not installed, or the keytab is missing, unreadable or empty.
    pub fn open(settings: &Settings, lookup: Lookup) -> Result<Self, Load> {
        // A replayed token gives an attacker a context without its key: no call passes. So no file keeps tokens.
        let stores = [("keytab", settings.keytab.as_path()), ("rcache", Path::new("none:"))];
        // The library would wait for a writer of a pipe.
        named_file::open(&settings.keytab).map_err(|error| Load::Keytab {
            keytab: settings.keytab.display().to_string(),
            source: Error { major: 0, minor: 0, text: error.to_string() },
        })?;
        let credential = Credential::acquire(ACCEPT, &stores)?;
        let mut realms = settings.realms.clone();
        realms.extend(default_realm(credential.functions));
        let mut start = [0; 8];
        // A number that repeats does no harm: without the key of its context a handle opens nothing.
        let _ = rustix::rand::getrandom(&mut start, rustix::rand::GetRandomFlags::NONBLOCK);
        let table = Table::new(settings.limits, start);
        let (credential, warned, started) = (Arc::new(credential), AtomicU64::new(0), Instant::now());
        Ok(Server { credential, realms, lookup, table, warned, started })
    }

    /// Returns the realms whose users are users of this host.
    pub fn realms(&self) -> &[String] {
        &self.realms
    }

    /// Returns the number of established contexts.
    pub fn contexts(&self) -> usize {
        self.table.len()
    }

    /// Takes a record with the flavour RPCSEC_GSS from a client at `from`. `header` and `arguments` are its decoded
    /// header and the offset behind the verifier. May take milliseconds, and ask the user database.
    pub fn receive(
        &self,
        record: &[u8],
        header: &CallHeader<'_>,
        arguments: usize,
        from: IpAddr,
        now: Instant,
    ) -> Received {
        let denied = |stat| {
            let mut reply = Vec::new();
            ReplyHeader { xid: header.xid, status: ReplyStatus::AuthError(stat) }.encode(&mut reply);
            Received::Reply(reply)
        };
        let Auth::Other(OpaqueAuth { flavor: FLAVOR, body }) = header.cred else {
            return denied(AuthStat::TooWeak);
        };
        let Ok(credential) = GssCredential::decode(&mut Reader::new(body)) else {
            return denied(AuthStat::BadCred);
        };
        let rest = record.get(arguments..).unwrap_or_default();
        if credential.procedure != GssProcedure::Data && header.proc != 0 {
            return denied(AuthStat::BadCred);
        }
        match credential.procedure {
            GssProcedure::Init => self.establish(header.xid, None, rest, from, now),
            GssProcedure::ContinueInit => match self.table.go_on(credential.handle, now) {
                Some(begun) => self.establish(header.xid, Some(begun), rest, from, now),
                None => denied(AuthStat::GssCredProblem),
            },
            GssProcedure::Data | GssProcedure::Destroy => {
                let Some(context) = self.table.get(credential.handle, now) else {
                    return denied(AuthStat::GssCredProblem);
                };
                if credential.sequence >= MAX_SEQUENCE {
                    return denied(AuthStat::GssCtxProblem);
                }
                // The checksum covers everything up to the end of the credential (RFC 2203, section 5.3.1).
                let end = 32 + body.len().next_multiple_of(4);
                let signed = record.get(..end).unwrap_or_default();
                let is_valid =
                    header.verf.flavor == FLAVOR && context.context.verify(signed, header.verf.body).is_ok();
                if !is_valid {
                    return denied(AuthStat::GssCredProblem);
                }
                // Only a number with a valid checksum moves the window.
                if !context.window.lock().enter(credential.sequence) {
                    return Received::Silent;
                }
                self.called(context, &credential, header.xid, rest)
            }
        }
    }

    /// Goes on with a call or the end of a context whose header is valid.
    fn called(
        &self,
        context: Arc<Established>,
        credential: &GssCredential<'_>,
        xid: u32,
        rest: &[u8],
    ) -> Received {
        let GssCredential { sequence, service, .. } = *credential;
        if credential.procedure == GssProcedure::Destroy {
            self.table.remove(credential.handle);
            let mut reply = Vec::new();
            ReplyHeader { xid, status: ReplyStatus::Success }.encode(&mut reply);
            Seal { context, sequence, service: GssService::None }.reply(&mut reply);
            return Received::Reply(reply);
        }
        let arguments = context.arguments(rest, sequence, service);
        let caller = Caller { principal: context.principal.clone(), user: context.user, service };
        Received::Call(caller, arguments, Seal { context, sequence, service })
    }

    /// Takes a token and answers with the next one.
    fn establish(
        &self,
        xid: u32,
        begun: Option<Context>,
        rest: &[u8],
        from: IpAddr,
        now: Instant,
    ) -> Received {
        let mut reply = Vec::new();
        let Ok(token) = Reader::new(rest).opaque_var(MAX_TOKEN) else {
            ReplyHeader { xid, status: ReplyStatus::GarbageArgs }.encode(&mut reply);
            return Received::Reply(reply);
        };
        let (step, peer) = match Context::accept(&self.credential, begun, token) {
            Ok(mut step) => {
                let peer = step.peer.take();
                (step, peer)
            }
            Err((error, token)) => {
                self.warn(from, &error);
                return unfinished(xid, &[], error.major, error.minor, &token);
            }
        };
        let Some(Peer { name, seconds }) = peer else {
            let handle = self.table.begin(step.context, now);
            return unfinished(xid, &handle, CONTINUE_NEEDED, 0, &step.token);
        };
        if name.len() > MAX_PRINCIPAL {
            return unfinished(xid, &[], FAILURE, 0, &[]);
        }
        let user = match self.user_of(&name) {
            Ok(user) => user,
            Err(error) => {
                self.warn(from, &error);
                return unfinished(xid, &[], FAILURE, 0, &[]);
            }
        };
        let Ok(verifier) = step.context.checksum(&WINDOW.to_be_bytes()) else {
            return unfinished(xid, &[], FAILURE, 0, &[]);
        };
        let life = seconds.map_or(Duration::MAX, |seconds| Duration::from_secs(seconds.into()));
        let (window, principal) = (Mutex::default(), name.into());
        let established = Established { context: step.context, window, principal, user };
        let handle = self.table.insert(Arc::new(established), from.to_canonical(), life, now);
        put_reply_header(&mut reply, xid, &verifier, 0);
        let (major, minor, window, token) = (COMPLETE, 0, WINDOW, &step.token[..]);
        GssInitRes { handle: &handle, major, minor, window, token }.encode(&mut reply);
        Received::Reply(reply)
    }

    /// Returns the ids of a principal on this host. The principals of hosts and of NFS services act as root.
    fn user_of(&self, principal: &[u8]) -> io::Result<Option<(u32, u32)>> {
        match local_name(principal, &self.realms) {
            Some(Local::Machine) => Ok(Some((0, 0))),
            Some(Local::User(name)) => (self.lookup)(name),
            None => Ok(None),
        }
    }

    /// Logs the reason why a client got no context. Clients decide how often that happens, so few of them are logged.
    fn warn(&self, from: IpAddr, error: &dyn std::fmt::Display) {
        let now = self.started.elapsed().as_secs() + WARN_EVERY;
        let last = self.warned.load(Ordering::Relaxed);
        let is_due = now >= last + WARN_EVERY;
        if is_due && self.warned.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            tracing::warn!(client = %from, %error, "a client got no context of Kerberos");
        }
    }
}

/// Returns the answer to a token that has established no context, with the verifier AUTH_NONE (RFC 2203, section
/// 5.2.3.1).
fn unfinished(xid: u32, handle: &[u8], major: u32, minor: u32, token: &[u8]) -> Received {
    let mut reply = Vec::new();
    ReplyHeader { xid, status: ReplyStatus::Success }.encode(&mut reply);
    let window = if handle.is_empty() { 0 } else { WINDOW };
    GssInitRes { handle, major, minor, window, token }.encode(&mut reply);
    Received::Reply(reply)
}

impl Established {
    /// Removes the protection of a call's arguments.
    fn arguments(&self, rest: &[u8], sequence: u32, service: GssService) -> Arguments {
        let taken = match service {
            GssService::None => return Arguments::InRecord,
            GssService::Integrity => GssIntegrity::decode(&mut Reader::new(rest)).ok().and_then(|sent| {
                self.context.verify(sent.body, sent.checksum).ok()?;
                Some(after_sequence(sent.body, sequence).ok()?.to_vec())
            }),
            GssService::Privacy => private_body(&mut Reader::new(rest)).ok().and_then(|sent| {
                let mut plain = self.context.unwrap(sent).ok()?;
                after_sequence(&plain, sequence).ok()?;
                Some(plain.split_off(4))
            }),
        };
        taken.map_or(Arguments::Garbage, Arguments::Apart)
    }

    /// Appends the results of a call with their protection.
    fn put_results(
        &self,
        out: &mut Vec<u8>,
        results: &[u8],
        sequence: u32,
        service: GssService,
    ) -> Result<(), crate::Error> {
        if service == GssService::None {
            out.extend_from_slice(results);
            return Ok(());
        }
        let mut body = Vec::with_capacity(4 + results.len());
        sequence.encode(&mut body);
        body.extend_from_slice(results);
        if service == GssService::Integrity {
            let checksum = self.context.checksum(&body)?;
            out.reserve(body.len() + checksum.len() + 16);
            GssIntegrity { body: &body, checksum: &checksum }.encode(out);
        } else {
            self.context.wrap(&body)?.as_slice().encode(out);
        }
        Ok(())
    }
}

impl Seal {
    /// Protects a whole reply, which has an empty verifier. If the library refuses, the reply becomes
    /// RPCSEC_GSS_CTXPROBLEM: the client makes another context and asks again.
    pub fn reply(self, reply: &mut Vec<u8>) {
        let word =
            |at: usize| reply.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_be_bytes);
        let (Some(xid), Some(0), Some(status)) = (word(0), word(8), word(20)) else {
            // A denied call has no verifier.
            return;
        };
        let plain = &reply[ReplyHeader::SUCCESS_SIZE..];
        let sealed = || {
            let verifier = self.context.context.checksum(&self.sequence.to_be_bytes())?;
            let mut out = Vec::with_capacity(64 + verifier.len());
            put_reply_header(&mut out, xid, &verifier, status);
            // An unsuccessful reply has no results.
            let service = if status == 0 { self.service } else { GssService::None };
            self.context.put_results(&mut out, plain, self.sequence, service)?;
            Ok::<_, crate::Error>(out)
        };
        *reply = sealed().unwrap_or_else(|_| {
            let mut out = Vec::new();
            let status = ReplyStatus::AuthError(AuthStat::GssCtxProblem);
            ReplyHeader { xid, status }.encode(&mut out);
            out
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_keytab_is_named() {
        let settings =
            Settings { keytab: "/nowhere/keytab".into(), realms: Vec::new(), limits: Limits::default() };
        let error = Server::open(&settings, Box::new(|_| Ok(None))).err().unwrap();
        // A host without the library says so.
        assert!(
            error.to_string().contains("/nowhere/keytab") || matches!(error, Load::Library(_)),
            "{error}"
        );
    }
}
