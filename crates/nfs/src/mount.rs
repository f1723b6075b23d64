//! MOUNT v3 (RFC 1813 appendix I).

use std::collections::VecDeque;
use std::net::IpAddr;

use forebay_common::lock::Mutex;
use forebay_config::Flavor;
use forebay_rpc::Peer;
use forebay_vfs::{Cred, Errno, Error, FileType, Identity, Target, Wait};
use forebay_wire::mount3::{
    DirPath, ExportEntry, ExportList, MAX_NAME, MAX_PATH, MountEntry, MountList, MountOk, MountRes,
    Mountstat3, Procedure,
};
use forebay_wire::rpc::{AUTH_NONE, AUTH_SYS, ReplyHeader, ReplyStatus};
use forebay_wire::xdr::{Encode, List};
use smallvec::SmallVec;

use crate::caller::{client_address, groups, rule_for};
use crate::convert::handle;
use crate::request::{Call, Request};
use crate::result::{Stop, garbage, success};
use crate::shared::Shared;

/// Returns the entries of DUMP. `names` are the addresses of `known` as text, which the entries borrow.
fn entries<'a>(names: &'a [String], known: &'a VecDeque<(IpAddr, Vec<u8>)>) -> Vec<MountEntry<'a>> {
    let pairs = names.iter().zip(known);
    pairs.map(|(name, (_, path))| MountEntry { hostname: name.as_bytes(), directory: path }).collect()
}

/// The list behind DUMP: a courtesy, lost at a restart and bounded, as RFC 1813 allows.
#[derive(Default)]
pub(crate) struct Mounts {
    known: Mutex<VecDeque<(IpAddr, Vec<u8>)>>,
}

const MAX_MOUNTS: usize = 4096;

impl Mounts {
    /// Adds a mounted directory of a client to the list, unless the list has that entry. A full list loses its oldest
    /// entry.
    fn add(&self, client: IpAddr, path: &[u8]) {
        let mut known = self.known.lock();
        if known.iter().any(|(address, mounted)| *address == client && mounted == path) {
            return;
        }
        if known.len() == MAX_MOUNTS {
            known.pop_front();
        }
        known.push_back((client, path.into()));
    }

    /// Removes one mounted directory of a client from the list. Without a path, removes all directories of the
    /// client.
    fn remove(&self, client: IpAddr, path: Option<&[u8]>) {
        self.known
            .lock()
            .retain(|(address, mounted)| *address != client || path.is_some_and(|path| mounted != path));
    }
}

impl Shared {
    /// Answers on a worker.
    pub(crate) fn carry_out_mount3(&self, procedure: Procedure, request: Request) {
        let mut reply = request.ticket.reply();
        if self.mount(procedure, &request.call(), reply.head()).is_err() {
            garbage(&mut reply, request.head.xid);
        }
        self.send(request.ticket, reply);
    }

    /// Answers that the server fails: MOUNT has no status for "later".
    pub(crate) fn turn_away_mount3(&self, request: Request) {
        let mut reply = request.ticket.reply();
        ReplyHeader { xid: request.head.xid, status: ReplyStatus::SystemErr }.encode(reply.head());
        self.send(request.ticket, reply);
    }

    /// Runs a MOUNT procedure on a worker and appends its whole reply.
    fn mount(&self, procedure: Procedure, call: &Call<'_>, out: &mut Vec<u8>) -> Result<(), Stop> {
        let client = client_address(call.peer);
        match procedure {
            Procedure::Null => success(out, call.xid()),
            Procedure::Mnt => {
                let path: DirPath<'_> = call.args()?;
                let mounted = self.mnt(call, path);
                if mounted.is_ok() {
                    self.mounts.add(client, path);
                }
                success(out, call.xid());
                mounted.encode(out);
            }
            Procedure::Dump => {
                success(out, call.xid());
                let mut known = self.mounts.known.lock().clone();
                // A client does not see which directories other clients have mounted.
                known.retain(|(address, _)| *address == client);
                let names: Vec<_> = known.iter().map(|(address, _)| address.to_string()).collect();
                let list: MountList<'_> = List(entries(&names, &known));
                list.encode(out);
            }
            Procedure::Umnt => {
                let path: DirPath<'_> = call.args()?;
                self.mounts.remove(client, Some(path));
                success(out, call.xid());
            }
            Procedure::Umntall => {
                self.mounts.remove(client, None);
                success(out, call.xid());
            }
            Procedure::Export => {
                success(out, call.xid());
                self.export_list(call.peer, out);
            }
        }
        Ok(())
    }

    /// Appends the exports that a client may use, with the networks by which it may.
    fn export_list(&self, client: &Peer, out: &mut Vec<u8>) {
        let exports = self.rules.now();
        let open = |export| Some((export, groups(export, client)?));
        let open: Vec<_> = exports.iter().filter_map(open).collect();
        let mut entries = Vec::new();
        for (export, groups) in &open {
            for name in export.names() {
                let names =
                    groups.iter().map(|group| &group.as_bytes()[..group.len().min(MAX_NAME)]).collect();
                entries.push(ExportEntry { directory: name.as_bytes(), groups: List(names) });
            }
        }
        let list: ExportList<'_> = List(entries);
        list.encode(out);
    }

    /// Returns the handle of an exported directory or a directory below it.
    fn mnt(&self, call: &Call<'_>, path: &[u8]) -> MountRes {
        if path.len() > MAX_PATH {
            return Err(Mountstat3::Nametoolong);
        }
        let exports = self.rules.now();
        let (export, below) = find_export(&exports, path).ok_or(Mountstat3::Noent)?;
        if let Err(why) = rule_for(export, call.peer) {
            self.refusals.add(call.peer.addr.ip(), why);
            return Err(Mountstat3::Acces);
        }
        let served = self.vfs.exports().find(export.id);
        let mut target = served.ok_or(Mountstat3::Noent)?.root();
        // The server's identity is used: the export decides which directories may be mounted, not the caller's
        // permissions.
        let server = self.vfs.creds.intern(&Identity { uid: 0, gid: 0, groups: SmallVec::new() });
        for name in below.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            target = self.step(&target, name, &server)?;
        }
        let fhandle = handle(&self.vfs.handle(&target));
        let rule = rule_for(export, call.peer);
        let sec = rule.iter().flat_map(|rule| &rule.sec);
        let auth_flavors = sec.flat_map(|flavor| numbers(*flavor)).copied().collect();
        Ok(MountOk { fhandle, auth_flavors })
    }

    /// Returns the directory with this name in `dir`. Waits for the disk. Fails with MNT3ERR_NOTDIR for an inode of
    /// another type.
    fn step(&self, dir: &Target, name: &[u8], server: &Cred) -> Result<Target, Mountstat3> {
        let found = self.vfs.lookup(dir, name, server, Wait::Yes).0.map_err(mount_status)?;
        let target = self.vfs.target(found.handle.as_slice(), Wait::Yes).map_err(mount_status)?;
        if target.object.kind() == FileType::Directory { Ok(target) } else { Err(Mountstat3::Notdir) }
    }
}

/// Returns the numbers of a flavour for MOUNT (RFC 2623, section 2.2.1).
fn numbers(flavor: Flavor) -> &'static [u32] {
    match flavor {
        Flavor::Sys => &[AUTH_SYS, AUTH_NONE],
        Flavor::Krb5 => &[390_003],
        Flavor::Krb5i => &[390_004],
        Flavor::Krb5p => &[390_005],
    }
}

/// Returns the export with the longest name that is `path` or above it, and the part of `path` below that.
fn find_export<'a, 'e>(
    exports: &'e [forebay_config::Export],
    path: &'a [u8],
) -> Option<(&'e forebay_config::Export, &'a [u8])> {
    let mut best: Option<(&forebay_config::Export, &[u8], usize)> = None;
    for export in exports {
        for name in export.names() {
            let name = name.trim_end_matches('/').as_bytes();
            let Some(below) = path.strip_prefix(name) else { continue };
            let whole = below.is_empty() || below[0] == b'/';
            if whole && best.is_none_or(|(_, _, len)| name.len() > len) {
                best = Some((export, below, name.len()));
            }
        }
    }
    best.map(|(export, below, _)| (export, below))
}

/// Returns the status of MOUNT for an error of the file system. An error without a status of its own becomes
/// MNT3ERR_IO.
fn mount_status(error: Error) -> Mountstat3 {
    match error {
        Error::Os(Errno::NOENT) | Error::Stale => Mountstat3::Noent,
        Error::Os(Errno::NOTDIR) => Mountstat3::Notdir,
        Error::Os(Errno::ACCESS) => Mountstat3::Acces,
        Error::Os(Errno::PERM) => Mountstat3::Perm,
        Error::Os(Errno::INVAL) => Mountstat3::Inval,
        Error::Os(Errno::NAMETOOLONG) => Mountstat3::Nametoolong,
        _ => Mountstat3::Io,
    }
}
