//! The procedures that change files or names, and COMMIT: executed once, answered when durable.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_rpc::{OwnedReply, Ticket};
use forebay_vfs::{
    Attr, Changed, CommitRequest, Create, DataCaller, Error, Export, LoggedReply, Outcome, Special, Target,
    Wait,
};
use forebay_wire::nfs3::{
    CommitArgs, CreateArgs, CreateHow, CreateOk, Failed, FileHandle, LinkArgs, LinkWcc, MkdirArgs, MknodArgs,
    MknodData, Nfsstat3, Procedure, RemoveArgs, RenameArgs, RenameWcc, Sattr3, SetattrArgs, StableHow,
    SymlinkArgs, WccData, WriteArgs, WriteOk,
};
use forebay_wire::xdr::Encode;

use crate::answer::Answer;
use crate::caller::{At, client_address};
use crate::convert::{fattr, guard_time, handle, status, wcc};
use crate::limits::{self, set_attr};
use crate::reply_cache::{Begin, RequestKey, Waiting};
use crate::request::{Call, Request};
use crate::result::{Stop, done, failure, garbage, success};
use crate::shared::Shared;

/// A change to execute.
struct Change<'a> {
    procedure: Procedure,
    call: Call<'a>,
    /// The key under which its reply is kept; none for COMMIT.
    key: Option<RequestKey>,
}

impl Change<'_> {
    /// Returns the answer for the client in case the next server finds the change of names done.
    fn logged_reply(&self) -> Option<LoggedReply> {
        let mut reply = Vec::with_capacity(64);
        done(&mut reply, self.call.xid(), self.procedure);
        let client = client_address(self.call.peer);
        self.key.map(|key| Answer { client, key, reply: &reply }.logged_reply())
    }
}

/// A change that was made (or refused), and the durability that its reply waits for.
struct Executed {
    status: Nfsstat3,
    durable: Option<(Arc<Export>, CommitRequest)>,
    commit: Option<Commit>,
}

/// A COMMIT, which answers with the verifier in force after the sync, and clears the file's mark.
struct Commit {
    target: Target,
    seen: u64,
}

/// The state needed to answer once the change is durable.
struct Answering {
    shared: Arc<Shared>,
    procedure: Procedure,
    xid: u32,
    client: IpAddr,
    key: Option<RequestKey>,
    ticket: Ticket,
    reply: OwnedReply,
    executed: Nfsstat3,
    commit: Option<Commit>,
    arrived: Instant,
}

impl Shared {
    /// Executes a change unless it is a retransmission, and answers when it is durable. With [`Wait::No`] the request
    /// is returned if the change has to wait. Then the change has to be tried again, and the request is `begun`.
    pub(crate) fn change(
        self: &Arc<Self>,
        procedure: Procedure,
        request: Request,
        wait: Wait,
    ) -> Option<Request> {
        let Request { head, record, ticket, arrived, begun } = request;
        let client = client_address(ticket.peer());
        let key = begun.or_else(|| reply_key(procedure, &head.call(&record, ticket.peer())));
        let ticket = match key.filter(|_| begun.is_none()) {
            None => ticket,
            Some(key) => match self.cache.begin(client, key, ticket, arrived) {
                Begin::Execute(ticket) => ticket,
                Begin::Joined => {
                    self.done();
                    return None;
                }
                Begin::Again(ticket, kept) => {
                    let mut reply = ticket.reply();
                    reply.head().extend_from_slice(&kept);
                    self.send(ticket, reply);
                    return None;
                }
            },
        };
        let mut reply = ticket.reply();
        success(reply.head(), head.xid);
        let change = Change { procedure, call: head.call(&record, ticket.peer()), key };
        match self.execute(&change, reply.head(), wait) {
            Err(Stop::Later) if wait == Wait::No => {
                return Some(Request { head, record, ticket, arrived, begun: key });
            }
            Ok(Executed { status, durable, commit }) => {
                self.profile_nfs3(&change.call, procedure, status != Nfsstat3::Ok, arrived);
                let mut answering = Answering {
                    shared: self.clone(),
                    procedure,
                    xid: head.xid,
                    client,
                    key,
                    ticket,
                    reply,
                    executed: status,
                    commit,
                    arrived,
                };
                match durable {
                    None => answering.answer(Ok(())),
                    Some((export, intent)) => {
                        let answer = key.filter(|_| intent.keeps_answer() && status == Nfsstat3::Ok);
                        if let (Some(key), Some(number)) = (answer, intent.number()) {
                            self.cache.log(client, key, answering.reply.head(), number);
                        }
                        let answer = answer.map(|key| Answer { client, key, reply: answering.reply.head() });
                        let answer = answer.map(|answer| answer.encode()).unwrap_or_default();
                        let done = Box::new(move |result| answering.answer(result));
                        self.vfs.commit(&export, intent, &answer, done);
                    }
                }
            }
            Err(stop) => {
                self.profile_nfs3(&change.call, procedure, true, arrived);
                let waiting = key.map(|key| self.cache.abandon(client, key)).unwrap_or_default();
                reply.clear();
                match stop {
                    Stop::Garbage => garbage(&mut reply, head.xid),
                    Stop::Fail(status) => failure(reply.head(), head.xid, procedure, status),
                    Stop::Later => failure(reply.head(), head.xid, procedure, Nfsstat3::Jukebox),
                }
                self.stats.answered(procedure, arrived.elapsed(), true);
                answer_waiting(waiting, &mut reply);
                self.send(ticket, reply);
            }
        }
        None
    }

    /// Carries out a procedure that changes something, and encodes its result into `out`. Clients whose delegations
    /// conflict are called back first. Fails with [`Stop::Later`] where the thread may not wait.
    fn execute(&self, change: &Change<'_>, out: &mut Vec<u8>, wait: Wait) -> Result<Executed, Stop> {
        let _changing = self.begin_change_v3(change.procedure, &change.call, wait)?;
        match change.procedure {
            Procedure::Write => self.write(&change.call, out, wait),
            Procedure::Commit => self.commit(&change.call, out),
            Procedure::Setattr => self.setattr(&change.call, out),
            Procedure::Create => self.create(change, out),
            Procedure::Mkdir | Procedure::Symlink | Procedure::Mknod => self.make(change, out),
            Procedure::Remove | Procedure::Rmdir => self.remove(change, out),
            Procedure::Rename => self.rename(change, out),
            Procedure::Link => self.link(change, out),
            _ => Err(Stop::Fail(Nfsstat3::Serverfault)),
        }
    }

    /// Returns the inode and the caller like [`Shared::at`], for a caller about to change something.
    fn at_to_change(&self, call: &Call<'_>, handle: &FileHandle, wait: Wait) -> Result<At, Stop> {
        let at = self.at(call, handle, wait)?;
        if at.caller.read_only { Err(Stop::Fail(Nfsstat3::Rofs)) } else { Ok(at) }
    }

    /// Carries out WRITE, and encodes the result. Fails with [`Stop::Later`] if the cache does not take the data
    /// without waiting.
    fn write(&self, call: &Call<'_>, out: &mut Vec<u8>, wait: Wait) -> Result<Executed, Stop> {
        let args: WriteArgs<'_> = call.args()?;
        if args.count as usize != args.data.len() {
            return Err(Stop::Garbage);
        }
        let at = self.at_to_change(call, &args.file, wait)?;
        let stable = args.stable != StableHow::Unstable;
        let tried = self.vfs.write(
            &at.target,
            DataCaller::without_open(&at.caller.cred),
            args.offset,
            args.data,
            stable,
            wait,
        );
        let Outcome::Done(changed) = tried else {
            call.keep(at.caller);
            return Err(Stop::Later);
        };
        let file_wcc = wcc(&changed.wcc, at.fsid());
        let result = changed.result.map(|wrote| {
            call.has_moved(args.offset, wrote.len, stable);
            let bytes = wrote.len as u64;
            self.stats.bytes_written.fetch_add(bytes, Ordering::Relaxed);
            at.caller.client.bytes_written.fetch_add(bytes, Ordering::Relaxed);
            let committed = if wrote.stable { StableHow::FileSync } else { StableHow::Unstable };
            WriteOk { file_wcc, count: wrote.len as u32, committed, verf: wrote.verifier }
        });
        Ok(put(out, &at, result, file_wcc, changed.intent))
    }

    /// Carries out COMMIT: collects the data of the range that is not durable yet, and encodes the result without its
    /// verifier. The data is durable, and the verifier is appended, after the commit of the returned intent.
    fn commit(&self, call: &Call<'_>, out: &mut Vec<u8>) -> Result<Executed, Stop> {
        let args: CommitArgs = call.args()?;
        let at = self.at(call, &args.file, Wait::Yes)?;
        let (changed, seen) = self.vfs.commit_range(
            &at.target,
            DataCaller::without_open(&at.caller.cred),
            args.offset,
            args.count.into(),
        );
        let WccData { before, after } = wcc(&changed.wcc, at.fsid());
        let after = after.and_then(|attr| self.shown(args.file.as_bytes(), attr));
        let file_wcc = WccData { before: before.filter(|_| after.is_some()), after };
        // The verifier is appended when the sync is done.
        let mut executed = put(out, &at, changed.result.map(|()| file_wcc), file_wcc, changed.intent);
        executed.commit = (executed.status == Nfsstat3::Ok).then_some(Commit { target: at.target, seen });
        Ok(executed)
    }

    /// Carries out SETATTR, and encodes the result. Fails with NFS3ERR_NOT_SYNC if the client's guard is not the
    /// change time of the inode.
    fn setattr(&self, call: &Call<'_>, out: &mut Vec<u8>) -> Result<Executed, Stop> {
        let args: SetattrArgs = call.args()?;
        let at = self.at_to_change(call, &args.object, Wait::Yes)?;
        let set = set_attr(&args.new_attributes).ok_or(Stop::Fail(Nfsstat3::Inval))?;
        let guard = args.guard.map(guard_time);
        let changed = self.vfs.setattr(&at.target, &at.caller.cred, &set, guard);
        let obj_wcc = wcc(&changed.wcc, at.fsid());
        Ok(put(out, &at, changed.result.map(|()| obj_wcc), obj_wcc, changed.intent))
    }

    /// Carries out CREATE, and encodes the result.
    fn create(&self, change: &Change<'_>, out: &mut Vec<u8>) -> Result<Executed, Stop> {
        let args: CreateArgs<'_> = change.call.args()?;
        let at = self.at_to_change(&change.call, &args.target.dir, Wait::Yes)?;
        let set = |set: &Sattr3| set_attr(set).ok_or(Stop::Fail(Nfsstat3::Inval));
        let how = match &args.how {
            CreateHow::Unchecked(attributes) => Create::Unchecked(set(attributes)?),
            CreateHow::Guarded(attributes) => Create::Guarded(set(attributes)?),
            CreateHow::Exclusive(verifier) => Create::Exclusive(*verifier),
        };
        let asked = change.logged_reply();
        let changed = self.vfs.create(&at.target, args.target.name, how, &at.caller.cred, asked.as_ref());
        if let Ok((made, _)) = &changed.result {
            self.profiled.made(self.vfs.handle(made).as_slice());
        }
        Ok(self.put_made(out, &at, changed))
    }

    /// Carries out MKDIR, SYMLINK or MKNOD, and encodes the result.
    fn make(&self, change: &Change<'_>, out: &mut Vec<u8>) -> Result<Executed, Stop> {
        let (call, none) = (&change.call, Sattr3::default());
        let (place, attributes, special) = match change.procedure {
            Procedure::Mkdir => {
                let args: MkdirArgs<'_> = call.args()?;
                (args.target, args.attributes, Some(Special::Directory))
            }
            Procedure::Symlink => {
                let args: SymlinkArgs<'_> = call.args()?;
                (args.target, args.attributes, Some(Special::Symlink(args.path)))
            }
            _ => {
                let args: MknodArgs<'_> = call.args()?;
                let (attributes, special) = match args.what {
                    MknodData::Chr(set, device) => {
                        (set, Some(Special::Character(device.major, device.minor)))
                    }
                    MknodData::Blk(set, device) => (set, Some(Special::Block(device.major, device.minor))),
                    MknodData::Sock(set) => (set, Some(Special::Socket)),
                    MknodData::Fifo(set) => (set, Some(Special::Fifo)),
                    MknodData::Reg | MknodData::Dir | MknodData::Lnk => (none, None),
                };
                (args.target, attributes, special)
            }
        };
        let at = self.at_to_change(call, &place.dir, Wait::Yes)?;
        let special = special.ok_or(Stop::Fail(Nfsstat3::Badtype))?;
        limits::special(&special)?;
        let set = set_attr(&attributes).ok_or(Stop::Fail(Nfsstat3::Inval))?;
        let asked = change.logged_reply();
        let changed = self.vfs.make(&at.target, place.name, special, &set, &at.caller.cred, asked.as_ref());
        Ok(self.put_made(out, &at, changed))
    }

    /// Encodes the result of a procedure that makes an inode: its handle, its attributes, and the directory's
    /// attributes around the change.
    fn put_made(&self, out: &mut Vec<u8>, at: &At, changed: Changed<(Target, Attr)>) -> Executed {
        let dir_wcc = wcc(&changed.wcc, at.fsid());
        let result = changed.result.map(|(target, attr)| CreateOk {
            object: Some(handle(&self.vfs.handle(&target))),
            obj_attributes: Some(fattr(&attr, at.fsid())),
            dir_wcc,
        });
        put(out, at, result, dir_wcc, changed.intent)
    }

    /// Carries out REMOVE or RMDIR, and encodes the result. With a cache, the change and its reply become one record
    /// of the log, so that a repetition after a crash finds the reply.
    fn remove(&self, change: &Change<'_>, out: &mut Vec<u8>) -> Result<Executed, Stop> {
        let args: RemoveArgs<'_> = change.call.args()?;
        let at = self.at_to_change(&change.call, &args.dir, Wait::Yes)?;
        let (asked, cred) = (change.logged_reply(), &at.caller.cred);
        let changed = match change.procedure {
            Procedure::Rmdir => self.vfs.rmdir(&at.target, args.name, cred, asked.as_ref()),
            _ => self.vfs.remove(&at.target, args.name, cred, asked.as_ref()),
        };
        let dir_wcc = wcc(&changed.wcc, at.fsid());
        Ok(put(out, &at, changed.result.map(|()| dir_wcc), dir_wcc, changed.intent))
    }

    /// Carries out RENAME, and encodes the result. The caller needs the right to change both exports; the kernel
    /// refuses a rename between two file systems.
    fn rename(&self, change: &Change<'_>, out: &mut Vec<u8>) -> Result<Executed, Stop> {
        let args: RenameArgs<'_> = change.call.args()?;
        let from = self.at_to_change(&change.call, &args.from.dir, Wait::Yes)?;
        let to = self.at_to_change(&change.call, &args.to.dir, Wait::Yes)?;
        let (asked, cred) = (change.logged_reply(), &from.caller.cred);
        let (from_name, to_name) = (args.from.name, args.to.name);
        let renamed = self.vfs.rename(&from.target, from_name, &to.target, to_name, cred, asked.as_ref());
        let around = RenameWcc {
            fromdir_wcc: wcc(&renamed.from, from.fsid()),
            todir_wcc: wcc(&renamed.to, to.fsid()),
        };
        Ok(put(out, &from, renamed.result.map(|()| around), around, renamed.intent))
    }

    /// Carries out LINK, and encodes the result with the file's attributes and those around the change of the
    /// directory. A failure reply has the file's attributes as well.
    fn link(&self, change: &Change<'_>, out: &mut Vec<u8>) -> Result<Executed, Stop> {
        let args: LinkArgs<'_> = change.call.args()?;
        let file = self.at_to_change(&change.call, &args.file, Wait::Yes)?;
        let dir = self.at_to_change(&change.call, &args.link.dir, Wait::Yes)?;
        let (asked, cred) = (change.logged_reply(), &file.caller.cred);
        let changed = self.vfs.link(&file.target, &dir.target, args.link.name, cred, asked.as_ref());
        let linkdir_wcc: WccData = wcc(&changed.wcc, dir.fsid());
        let attributes = match &changed.result {
            Ok(after) => *after,
            Err(_) => self.vfs.getattr(&file.target).ok(),
        };
        let file_attributes = attributes.map(|attr| fattr(&attr, file.fsid()));
        let around = LinkWcc { file_attributes, linkdir_wcc };
        Ok(put(out, &file, changed.result.map(|_| around), around, changed.intent))
    }
}

/// Returns the key under which the reply to a change is kept. COMMIT may be repeated at will: its reply is not kept.
fn reply_key(procedure: Procedure, call: &Call<'_>) -> Option<RequestKey> {
    (procedure != Procedure::Commit).then(|| RequestKey::of(call))
}

/// Appends the result of a change, which is valid once `intent` is durable.
fn put<T: Encode, F: Encode>(
    out: &mut Vec<u8>,
    at: &At,
    result: Result<T, Error>,
    attributes: F,
    intent: Option<CommitRequest>,
) -> Executed {
    let result = result.map_err(|error| Failed { status: status(error), attributes });
    result.encode(out);
    Executed {
        status: result.err().map_or(Nfsstat3::Ok, |failed| failed.status),
        durable: intent.map(|intent| (at.target.export.clone(), intent)),
        commit: None,
    }
}

/// Sends the reply to the original to the retransmissions that arrived meanwhile.
pub(crate) fn answer_waiting(waiting: Waiting, reply: &mut OwnedReply) {
    for ticket in waiting {
        let mut again = ticket.reply();
        again.head().extend_from_slice(reply.head());
        ticket.send(again);
    }
}

impl Answering {
    /// Answers with the result of the change if it is durable now, else with the error of the sync.
    fn answer(mut self, durable: Result<(), Error>) {
        let mut result = self.executed;
        match durable {
            Ok(()) => {
                if let Some(Commit { target, seen }) = self.commit {
                    self.shared.vfs.committed(&target, seen);
                    self.shared.vfs.verifier.get().encode(self.reply.head());
                }
            }
            // A change that failed keeps its own status.
            Err(_) if self.executed != Nfsstat3::Ok => {}
            Err(error) => {
                result = status(error);
                self.reply.clear();
                failure(self.reply.head(), self.xid, self.procedure, result);
            }
        }
        self.shared.stats.answered(self.procedure, self.arrived.elapsed(), result != Nfsstat3::Ok);
        if let Some(key) = self.key {
            let waiting = self.shared.cache.end(self.client, key, self.reply.head(), Instant::now());
            answer_waiting(waiting, &mut self.reply);
        }
        self.shared.send(self.ticket, self.reply);
    }
}
