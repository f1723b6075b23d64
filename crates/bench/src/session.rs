//! A session that makes one call after the other: for mounting, preparing and removing, where speed does not matter.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use forebay_wire::mount3::{self, MountRes};
use forebay_wire::nfs3;
use forebay_wire::portmap::{self, IPPROTO_TCP, Mapping};
use forebay_wire::rpc::{Auth, AuthSys, Gids, ReplyHeader, ReplyStatus};
use forebay_wire::{Decode, Encode, Reader};

use crate::connection::Connection;
use crate::protocol::{Answer, Attributes, Fault, Handle, Link, MIN_SLOTS, Made, Request, Status, Version};
use crate::tls::Peer;
use crate::url::Target;

/// Longest time without an answer, after which a server counts as dead.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Time after which a request is sent again that the server answered with NFS3ERR_JUKEBOX or NFS4ERR_DELAY.
pub(crate) const LATER: Duration = Duration::from_millis(10);

/// The identity of a client.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) machine_name: String,
}

impl Identity {
    /// Returns the credentials of AUTH_SYS for the calls of this client. The group has the number of the user.
    pub(crate) fn auth(&self) -> Auth<'_> {
        let machine_name = self.machine_name.as_bytes();
        Auth::Sys(AuthSys { stamp: 0, machine_name, uid: self.uid, gid: self.uid, gids: Gids::default() })
    }
}

/// A mounted export, and the server's description of it.
pub(crate) struct Session {
    link: Link,
    identity: Identity,
    xid: u32,
    pub(crate) peer: Peer,
    pub(crate) root: Handle,
    pub(crate) limits: Limits,
}

/// The sizes that a server takes, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    /// The largest WRITE.
    pub(crate) write: u32,
    /// The preferred size of a listing.
    pub(crate) listing: u32,
}

impl Limits {
    /// The sizes in NFSv4, for which the session has room.
    const NFS4: Self = Self { write: 1 << 20, listing: 1 << 20 };
}

/// Calls one procedure and decodes its result.
fn call<T: for<'a> Decode<'a>>(
    connection: &mut Connection,
    xid: u32,
    procedure: u32,
    arguments: &dyn Encode,
) -> Result<Result<T, ReplyStatus>> {
    arguments.encode(connection.begin_call(xid, procedure));
    connection.end_call();
    let record = connection.exchange(TIMEOUT)?;
    let mut reader = Reader::new(record);
    let header = ReplyHeader::decode(&mut reader).context("the reply is not an RPC reply")?;
    if header.xid != xid {
        bail!("the server answered call {:#x} instead of call {xid:#x}", header.xid);
    }
    if header.status != ReplyStatus::Success {
        return Ok(Err(header.status));
    }
    Ok(Ok(T::decode(&mut reader).context("the reply cannot be decoded")?))
}

impl Session {
    /// Mounts the export. In NFSv3 finds the ports, asks MOUNT for the root, and asks NFS for the limits of the server.
    /// In NFSv4.1 makes a session and looks up the export.
    pub(crate) fn open(target: &Target, version: Version, identity: &Identity) -> Result<Self> {
        match version {
            Version::V3 => Self::open_nfs3(target, identity),
            Version::V41 => {
                let peer = target.peer(target.port.unwrap_or(nfs3::PORT))?;
                let link = Link::open(version, &peer, identity, MIN_SLOTS)
                    .with_context(|| format!("no session of NFSv4.1 at {peer}"))?;
                let (identity, root) = (identity.clone(), Handle::EMPTY);
                let mut session =
                    Self { link, identity, xid: rand::random(), peer, root, limits: Limits::NFS4 };
                let root = Request::Root { path: &target.export };
                let found = session.call(&root, || target.export.clone(), |answer| answer.found())?;
                session.root = found.handle.context("the export has no handle")?;
                Ok(session)
            }
        }
    }

    /// Mounts the export and asks for its limits. If the target does not name the port of NFS, the port mapper does.
    /// MOUNT is tried at the port of NFS first, and then at the port that the port mapper names.
    fn open_nfs3(target: &Target, identity: &Identity) -> Result<Self> {
        let port = match target.port {
            Some(port) => port,
            None => port_of(target, nfs3::PROGRAM)?.unwrap_or(nfs3::PORT),
        };
        let root = match target.mount_port {
            Some(mount_port) => mount(target, mount_port, identity)?,
            None => match mount(target, port, identity) {
                Ok(root) => root,
                Err(error) => match port_of(target, mount3::PROGRAM) {
                    Ok(Some(mount_port)) => mount(target, mount_port, identity)?,
                    _ => return Err(error),
                },
            },
        };
        let peer = target.peer(port)?;
        let mut link = Link::open(Version::V3, &peer, identity, 1)
            .with_context(|| format!("cannot connect to NFS at {peer}; check that the server runs"))?;
        let arguments = nfs3::FsinfoArgs { object: root };
        let xid = rand::random();
        let fsinfo: Result<nfs3::FsinfoRes, _> =
            call(&mut link.connection, xid, nfs3::Procedure::Fsinfo as u32, &arguments)
                .with_context(|| format!("FSINFO of the root at {peer} failed"))?;
        let fsinfo = match fsinfo {
            Ok(Ok(fsinfo)) => fsinfo,
            Ok(Err(failed)) => bail!("FSINFO of the root failed: {}", failed.status),
            Err(status) => bail!("FSINFO of the root failed: the server says {status:?}"),
        };
        let limits = Limits { write: fsinfo.wtmax, listing: fsinfo.dtpref };
        Ok(Self { link, identity: identity.clone(), xid, peer, root: root.into(), limits })
    }

    /// Sends a request and decodes its result with `take`. In errors `what` names the object of the request.
    pub(crate) fn call<T>(
        &mut self,
        request: &Request<'_>,
        what: impl Fn() -> String,
        take: impl Fn(&Answer<'_>) -> Result<T, Fault>,
    ) -> Result<T> {
        let operation = request.operation(self.link.version());
        self.try_call(request, &what, take)?.map_err(|status| Fault::Status(status).of(operation, &what()))
    }

    /// Sends a request as [`Self::call`] does, but returns the failure status to the caller.
    fn try_call<T>(
        &mut self,
        request: &Request<'_>,
        what: &dyn Fn() -> String,
        take: impl Fn(&Answer<'_>) -> Result<T, Fault>,
    ) -> Result<Result<T, Status>> {
        let operation = request.operation(self.link.version());
        let failed = || format!("{} of {} at {} failed", operation.name(), what(), self.peer);
        let start = Instant::now();
        loop {
            self.xid = self.xid.wrapping_add(1);
            let answer = self.link.exchange(self.xid, request).with_context(failed)?;
            match take(&answer) {
                Ok(taken) => return Ok(Ok(taken)),
                Err(Fault::Status(status)) if status.is_later() && start.elapsed() < TIMEOUT => {
                    std::thread::sleep(LATER);
                }
                // A phase has lasted longer than the lease.
                Err(Fault::Status(status)) if status.is_session_lost() && start.elapsed() < TIMEOUT => {
                    let version = self.link.version();
                    self.link = Link::open(version, &self.peer, &self.identity, MIN_SLOTS)?;
                }
                Err(Fault::Status(status)) => return Ok(Err(status)),
                Err(fault) => return Err(fault.of(operation, &what())),
            }
        }
    }

    /// Returns the handle of a name; `None` if the name does not exist.
    pub(crate) fn lookup(&mut self, dir: &Handle, name: &[u8]) -> Result<Option<Handle>> {
        let what = || String::from_utf8_lossy(name).into_owned();
        match self.try_call(&Request::Lookup { dir: *dir, name }, &what, |answer| answer.found())? {
            Ok(Made { handle, .. }) => Ok(handle),
            Err(status) if status.is_missing() => Ok(None),
            Err(status) => bail!("LOOKUP of {} failed: {status}", what()),
        }
    }

    /// Makes a directory, or returns the existing one.
    pub(crate) fn directory(&mut self, dir: &Handle, name: &str) -> Result<Handle> {
        if let Some(found) = self.lookup(dir, name.as_bytes())? {
            return Ok(found);
        }
        let mode = 0o777;
        let request = Request::Mkdir { dir: *dir, name: name.as_bytes(), mode };
        match self.try_call(&request, &|| name.to_owned(), |answer| answer.made())? {
            Ok(_) => {}
            // Another host has made the directory first.
            Err(status) if status.is_existing() => {}
            Err(status) => bail!("making the directory {name} failed: {status}"),
        }
        let object = self
            .lookup(dir, name.as_bytes())?
            .with_context(|| format!("the new directory {name} cannot be found"))?;
        // The server's umask reduces the mode of a new directory, but clients with other uids must be able to write in
        // it.
        self.call(&Request::SetMode { object, mode }, || name.to_owned(), |answer| answer.done())?;
        Ok(object)
    }

    /// Makes a file that every user may write, or returns the existing one.
    pub(crate) fn file(&mut self, dir: &Handle, name: &str) -> Result<Handle> {
        let what = || name.to_owned();
        let request = Request::Create { dir: *dir, name: name.as_bytes(), mode: 0o666, exclusive: false };
        let made = self.call(&request, what, |answer| answer.made())?;
        if let Made { handle: Some(file), open: Some(open) } = made {
            self.call(&Request::Close { file, open }, what, |answer| answer.done())?;
        }
        self.lookup(dir, name.as_bytes())?.with_context(|| format!("the new file {name} cannot be found"))
    }

    fn attributes(&mut self, object: &Handle, what: impl Fn() -> String) -> Result<Attributes> {
        self.call(&Request::Getattr { object: *object }, what, |answer| answer.attributes())
    }

    /// Returns the size of a file in bytes.
    pub(crate) fn size(&mut self, file: &Handle, name: &str) -> Result<u64> {
        Ok(self.attributes(file, || name.to_owned())?.size)
    }

    /// Truncates a file to 0 bytes.
    pub(crate) fn truncate(&mut self, file: &Handle, name: &str) -> Result<()> {
        self.call(&Request::Truncate { object: *file }, || name.to_owned(), |answer| answer.done())
    }

    /// Removes an empty directory; succeeds if it does not exist.
    pub(crate) fn rmdir(&mut self, dir: &Handle, name: &[u8]) -> Result<()> {
        let what = || String::from_utf8_lossy(name).into_owned();
        match self.try_call(&Request::Rmdir { dir: *dir, name }, &what, |answer| answer.done())? {
            Ok(()) => Ok(()),
            Err(status) if status.is_missing() => Ok(()),
            Err(status) => bail!("removing the directory {} failed: {status}", what()),
        }
    }

    /// Returns true if an entry of `dir` is a directory.
    pub(crate) fn is_directory(&mut self, dir: &Handle, entry: &ListedEntry) -> Result<bool> {
        // The server may omit attributes in listings and LOOKUP, but not in GETATTR.
        match entry.attributes {
            Some(attributes) => Ok(attributes.is_dir),
            None => match self.lookup(dir, &entry.name)? {
                Some(found) => {
                    let what = || String::from_utf8_lossy(&entry.name).into_owned();
                    Ok(self.attributes(&found, what)?.is_dir)
                }
                None => Ok(false),
            },
        }
    }

    /// Returns the entries of a directory, without `.` and `..`.
    pub(crate) fn entries(&mut self, dir: &Handle) -> Result<Vec<ListedEntry>> {
        let mut entries = Vec::new();
        let (mut cookie, mut verifier) = (0, [0; 8]);
        loop {
            let request = Request::List { dir: *dir, cookie, verifier, count: 64 << 10 };
            let what = || "a directory to be removed".to_owned();
            let (listed, next, eof) = self.call(&request, what, |answer| {
                let mut listed = Vec::new();
                let (verifier, eof) = answer.listing(|cookie, name, attributes| {
                    listed.push((cookie, ListedEntry { name: name.to_vec(), attributes }));
                })?;
                Ok((listed, verifier, eof))
            })?;
            verifier = next;
            cookie = listed.last().map_or(cookie, |(cookie, _)| *cookie);
            let named = listed.into_iter().map(|(_, entry)| entry);
            entries.extend(named.filter(|entry| entry.name != b"." && entry.name != b".."));
            if eof {
                return Ok(entries);
            }
        }
    }

    /// Ends the session.
    pub(crate) fn close(self) {
        self.link.close();
    }
}

/// An entry of a directory.
pub(crate) struct ListedEntry {
    pub(crate) name: Vec<u8>,
    /// A server may leave them out.
    pub(crate) attributes: Option<Attributes>,
}

/// Asks the port mapper for a port. Returns `None` without a port mapper, or if it does not know the program.
fn port_of(target: &Target, program: u32) -> Result<Option<u16>> {
    let address = target.socket_address(portmap::PORT)?;
    let Ok(mut connection) =
        Connection::open(&address.into(), portmap::PROGRAM, portmap::VERSION, Auth::None)
    else {
        return Ok(None);
    };
    let arguments = Mapping { prog: program, vers: 3, prot: IPPROTO_TCP, port: 0 };
    let port: Result<u32, _> = call(&mut connection, 1, portmap::Procedure::Getport as u32, &arguments)
        .with_context(|| format!("the port mapper at {address} does not answer"))?;
    Ok(port.ok().and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0))
}

/// Asks MOUNT for the root of the export.
fn mount(target: &Target, port: u16, identity: &Identity) -> Result<nfs3::FileHandle> {
    let peer = target.peer(port)?;
    let mut connection = Connection::open(&peer, mount3::PROGRAM, mount3::VERSION, identity.auth())
        .with_context(|| format!("cannot connect to MOUNT at {peer}; check that the server runs"))?;
    let path = target.export.as_bytes();
    let reply: Result<MountRes, _> = call(&mut connection, 1, mount3::Procedure::Mnt as u32, &path)
        .with_context(|| format!("mounting {} at {peer} failed", target.export))?;
    match reply {
        Ok(Ok(mounted)) => Ok(mounted.fhandle),
        Ok(Err(status)) => bail!("mounting {} at {peer} failed: {status:?}", target.export),
        Err(status) => bail!("mounting {} at {peer} failed: the server says {status:?}", target.export),
    }
}
