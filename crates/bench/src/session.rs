//! A session that makes one call after the other: for mounting, preparing and removing, where speed does not matter.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use forebay_wire::mount3::{self, MountRes};
use forebay_wire::nfs3::*;
use forebay_wire::portmap::{self, IPPROTO_TCP, Mapping};
use forebay_wire::rpc::{Auth, AuthSys, Gids, ReplyHeader, ReplyStatus};
use forebay_wire::{Decode, Encode, Reader};

use crate::connection::Connection;
use crate::url::Target;

/// Longest time without an answer, after which a server counts as dead.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Time after which a request is sent again that the server answered with NFS3ERR_JUKEBOX.
pub(crate) const LATER: Duration = Duration::from_millis(10);

/// The identity of a client.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) machine_name: String,
}

impl Identity {
    pub(crate) fn auth(&self) -> Auth<'_> {
        let machine_name = self.machine_name.as_bytes();
        Auth::Sys(AuthSys { stamp: 0, machine_name, uid: self.uid, gid: self.uid, gids: Gids::default() })
    }
}

/// A mounted export, and the server's description of it.
pub(crate) struct Session {
    connection: Connection,
    xid: u32,
    pub(crate) address: SocketAddr,
    pub(crate) root: FileHandle,
    pub(crate) fsinfo: FsinfoOk,
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
    /// Mounts the export: finds the ports, asks MOUNT for the root, and asks NFS for the limits of the server.
    pub(crate) fn open(target: &Target, identity: &Identity) -> Result<Self> {
        let port = match target.port {
            Some(port) => port,
            None => port_of(target, PROGRAM)?.unwrap_or(PORT),
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
        let address = target.socket_address(port)?;
        let connection = Connection::open(address, PROGRAM, VERSION, identity.auth())
            .with_context(|| format!("cannot connect to NFS at {address}; check that the server runs"))?;
        let fsinfo = FsinfoOk {
            obj_attributes: None,
            rtmax: 0,
            rtpref: 0,
            rtmult: 0,
            wtmax: 0,
            wtpref: 0,
            wtmult: 0,
            dtpref: 0,
            maxfilesize: 0,
            time_delta: Nfstime3::default(),
            properties: 0,
        };
        let mut session = Self { connection, xid: rand::random(), address, root, fsinfo };
        session.fsinfo =
            session.call::<_, PostOpAttr>(Procedure::Fsinfo, &FsinfoArgs { object: root }, || {
                "the root".into()
            })?;
        Ok(session)
    }

    /// Calls an NFS procedure. In errors `what` names the object of the call.
    pub(crate) fn call<T, F>(
        &mut self,
        procedure: Procedure,
        arguments: &dyn Encode,
        what: impl Fn() -> String,
    ) -> Result<T>
    where
        for<'a> Result<T, Failed<F>>: Decode<'a>,
    {
        self.try_call(procedure, arguments, &what)?.map_err(|failed: Failed<F>| {
            anyhow!("{} of {} failed: {}", procedure.name(), what(), failed.status)
        })
    }

    /// Calls an NFS procedure as [`Self::call`] does, but returns the failure status to the caller.
    pub(crate) fn try_call<T, F>(
        &mut self,
        procedure: Procedure,
        arguments: &dyn Encode,
        what: &dyn Fn() -> String,
    ) -> Result<Result<T, Failed<F>>>
    where
        for<'a> Result<T, Failed<F>>: Decode<'a>,
    {
        let start = Instant::now();
        loop {
            self.xid = self.xid.wrapping_add(1);
            let result = call(&mut self.connection, self.xid, procedure as u32, arguments)
                .and_then(|reply| reply.map_err(|status| anyhow!("the server says {status:?}")))
                .with_context(|| format!("{} of {} at {} failed", procedure.name(), what(), self.address))?;
            match result {
                Err(Failed { status: Nfsstat3::Jukebox, .. }) if start.elapsed() < TIMEOUT => {
                    std::thread::sleep(LATER);
                }
                result => return Ok(result),
            }
        }
    }

    /// Returns the handle and attributes of a name; `None` if the name does not exist.
    pub(crate) fn lookup(&mut self, dir: &FileHandle, name: &[u8]) -> Result<Option<LookupOk>> {
        let arguments = DirOpArgs { dir: *dir, name };
        let what = || String::from_utf8_lossy(name).into_owned();
        let found: LookupRes = self.try_call(Procedure::Lookup, &arguments, &what)?;
        match found {
            Ok(found) => Ok(Some(found)),
            Err(Failed { status: Nfsstat3::Noent, .. }) => Ok(None),
            Err(failed) => bail!("LOOKUP of {} failed: {}", what(), failed.status),
        }
    }

    /// Makes a directory, or returns the existing one.
    pub(crate) fn directory(&mut self, dir: &FileHandle, name: &str) -> Result<FileHandle> {
        if let Some(found) = self.lookup(dir, name.as_bytes())? {
            return Ok(found.object);
        }
        let attributes = Sattr3 { mode: Some(0o777), ..Sattr3::default() };
        let arguments = MkdirArgs { target: DirOpArgs { dir: *dir, name: name.as_bytes() }, attributes };
        let made: MkdirRes = self.try_call(Procedure::Mkdir, &arguments, &|| name.to_owned())?;
        match made {
            // NFS3ERR_EXIST means that another host made the directory first.
            Ok(_) | Err(Failed { status: Nfsstat3::Exist, .. }) => {}
            Err(failed) => bail!("MKDIR of {name} failed: {}", failed.status),
        }
        let made = self
            .lookup(dir, name.as_bytes())?
            .with_context(|| format!("the new directory {name} cannot be found"))?;
        // The server's umask reduces the mode of MKDIR, but clients with other uids must be able to write in the
        // directory.
        let arguments = SetattrArgs { object: made.object, new_attributes: attributes, guard: None };
        self.call::<WccData, WccData>(Procedure::Setattr, &arguments, || name.to_owned())?;
        Ok(made.object)
    }

    /// Makes a file that every user may write, or returns the existing one.
    pub(crate) fn file(&mut self, dir: &FileHandle, name: &str) -> Result<FileHandle> {
        let attributes = Sattr3 { mode: Some(0o666), ..Sattr3::default() };
        let target = DirOpArgs { dir: *dir, name: name.as_bytes() };
        let arguments = CreateArgs { target, how: CreateHow::Unchecked(attributes) };
        self.call::<CreateOk, WccData>(Procedure::Create, &arguments, || name.to_owned())?;
        Ok(self
            .lookup(dir, name.as_bytes())?
            .with_context(|| format!("the new file {name} cannot be found"))?
            .object)
    }

    /// Returns the size of a file in bytes.
    pub(crate) fn size(&mut self, file: &FileHandle, name: &str) -> Result<u64> {
        let arguments = GetattrArgs { object: *file };
        Ok(self.call::<Fattr3, ()>(Procedure::Getattr, &arguments, || name.to_owned())?.size)
    }

    /// Truncates a file to 0 bytes.
    pub(crate) fn truncate(&mut self, file: &FileHandle, name: &str) -> Result<()> {
        let new_attributes = Sattr3 { size: Some(0), ..Sattr3::default() };
        let arguments = SetattrArgs { object: *file, new_attributes, guard: None };
        self.call::<WccData, WccData>(Procedure::Setattr, &arguments, || name.to_owned())?;
        Ok(())
    }

    /// Removes an empty directory; succeeds if it does not exist.
    pub(crate) fn rmdir(&mut self, dir: &FileHandle, name: &[u8]) -> Result<()> {
        let what = || String::from_utf8_lossy(name).into_owned();
        let removed: RmdirRes = self.try_call(Procedure::Rmdir, &DirOpArgs { dir: *dir, name }, &what)?;
        match removed.map_err(|failed| failed.status) {
            Ok(_) | Err(Nfsstat3::Noent) => Ok(()),
            Err(status) => bail!("RMDIR of {} failed: {status}", what()),
        }
    }

    /// Returns true if an entry of `dir` is a directory.
    pub(crate) fn is_directory(&mut self, dir: &FileHandle, entry: &ListedEntry) -> Result<bool> {
        let ftype = match entry.ftype {
            Some(ftype) => Some(ftype),
            // The server may omit attributes in listings and LOOKUP, but not in GETATTR.
            None => match self.lookup(dir, &entry.name)? {
                Some(found) => {
                    let arguments = GetattrArgs { object: found.object };
                    let what = || String::from_utf8_lossy(&entry.name).into_owned();
                    Some(self.call::<Fattr3, ()>(Procedure::Getattr, &arguments, what)?.ftype)
                }
                None => None,
            },
        };
        Ok(ftype == Some(Ftype3::Dir))
    }

    /// Returns the entries of a directory, without `.` and `..`.
    pub(crate) fn entries(&mut self, dir: &FileHandle) -> Result<Vec<ListedEntry>> {
        let mut entries = Vec::new();
        let (mut cookie, mut cookieverf) = (0, [0; 8]);
        loop {
            let (dircount, maxcount) = (64 << 10, 64 << 10);
            let arguments = ReaddirplusArgs { dir: *dir, cookie, cookieverf, dircount, maxcount };
            self.xid = self.xid.wrapping_add(1);
            arguments.encode(self.connection.begin_call(self.xid, Procedure::Readdirplus as u32));
            self.connection.end_call();
            let mut reader = Reader::new(self.connection.exchange(TIMEOUT)?);
            let header = ReplyHeader::decode(&mut reader)?;
            if header.status != ReplyStatus::Success {
                bail!("READDIRPLUS failed: the server says {:?}", header.status);
            }
            let listing = match ReaddirplusRes::decode(&mut reader)? {
                Ok(listing) => listing,
                Err(Failed { status: Nfsstat3::Jukebox, .. }) => {
                    std::thread::sleep(LATER);
                    continue;
                }
                Err(failed) => bail!("READDIRPLUS of a directory to be removed failed: {}", failed.status),
            };
            for entry in listing.entries {
                cookie = entry.cookie;
                if entry.name != b"." && entry.name != b".." {
                    let ftype = entry.name_attributes.map(|attributes| attributes.ftype);
                    entries.push(ListedEntry { name: entry.name.to_vec(), ftype });
                }
            }
            cookieverf = listing.cookieverf;
            if listing.eof {
                return Ok(entries);
            }
        }
    }
}

/// An entry of a directory.
pub(crate) struct ListedEntry {
    pub(crate) name: Vec<u8>,
    pub(crate) ftype: Option<Ftype3>,
}

/// Asks the port mapper for a port. Returns `None` without a port mapper, or if it does not know the program.
fn port_of(target: &Target, program: u32) -> Result<Option<u16>> {
    let address = target.socket_address(portmap::PORT)?;
    let Ok(mut connection) = Connection::open(address, portmap::PROGRAM, portmap::VERSION, Auth::None) else {
        return Ok(None);
    };
    let arguments = Mapping { prog: program, vers: 3, prot: IPPROTO_TCP, port: 0 };
    let port: Result<u32, _> = call(&mut connection, 1, portmap::Procedure::Getport as u32, &arguments)
        .with_context(|| format!("the port mapper at {address} does not answer"))?;
    Ok(port.ok().and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0))
}

/// Asks MOUNT for the root of the export.
fn mount(target: &Target, port: u16, identity: &Identity) -> Result<FileHandle> {
    let address = target.socket_address(port)?;
    let mut connection = Connection::open(address, mount3::PROGRAM, mount3::VERSION, identity.auth())
        .with_context(|| format!("cannot connect to MOUNT at {address}; check that the server runs"))?;
    let path = target.export.as_bytes();
    let reply: Result<MountRes, _> = call(&mut connection, 1, mount3::Procedure::Mnt as u32, &path)
        .with_context(|| format!("mounting {} at {address} failed", target.export))?;
    match reply {
        Ok(Ok(mounted)) => Ok(mounted.fhandle),
        Ok(Err(status)) => bail!("mounting {} at {address} failed: {status:?}", target.export),
        Err(status) => bail!("mounting {} at {address} failed: the server says {status:?}", target.export),
    }
}
