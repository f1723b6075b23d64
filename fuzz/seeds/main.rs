//! Writes a seed corpus of valid messages: `cargo run --package forebay-sim --example fuzz-seeds fuzz/corpus`.

mod engine;
mod nbd;
mod nfs4;
mod small;

use std::path::Path;
use std::{env, fs, io};

use forebay_acl::{Entries, Named, Permissions, PosixAcl, xattr};
use forebay_wire::mount3::{ExportEntry, MountEntry, MountOk, MountRes};
use forebay_wire::nfs3::*;
use forebay_wire::portmap::{self, Mapping};
use forebay_wire::rpc::{Auth, AuthStat, AuthSys, CallHeader, Gids, OpaqueAuth, ReplyHeader, ReplyStatus};
use forebay_wire::{Encode, xdr};

fn main() -> io::Result<()> {
    let corpus = env::args().nth(1).unwrap_or_else(|| "fuzz/corpus".to_owned());
    let corpus = Path::new(&corpus);
    write(&corpus.join("rpc_call"), rpc_messages())?;
    write(&corpus.join("nfs3_args"), nfs3_messages())?;
    write(&corpus.join("mount_portmap"), mount_and_portmap_messages())?;
    write(&corpus.join("nfs4_compound"), nfs4::compounds())?;
    write(&corpus.join("nfs4_reply"), nfs4::replies())?;
    write(&corpus.join("small_programs"), small::messages())?;
    write(&corpus.join("nbd"), nbd::messages())?;
    write(&corpus.join("acl"), acls())?;
    write(&corpus.join("superblock"), engine::superblocks())?;
    write(&corpus.join("segment_header"), engine::segment_headers())?;
    write(&corpus.join("frame"), engine::frames())?;
    write(&corpus.join("footer"), engine::footers())
}

fn write(folder: &Path, messages: Vec<Vec<u8>>) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (number, message) in messages.iter().enumerate() {
        fs::write(folder.join(format!("seed-{number:02}")), message)?;
    }
    Ok(())
}

fn encoded(value: &dyn Encode) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

fn rpc_messages() -> Vec<Vec<u8>> {
    let gids = Gids::new(&[24, 25, 1000]).unwrap_or_default();
    let sys = AuthSys { stamp: 1, machine_name: b"client", uid: 1000, gid: 100, gids };
    let other = OpaqueAuth { flavor: 6, body: &[7; 20] };
    let calls = [Auth::None, Auth::Sys(sys), Auth::Other(other)].map(|cred| {
        let verf = OpaqueAuth::NONE;
        encoded(&CallHeader { xid: 7, prog: PROGRAM, vers: VERSION, proc: 1, cred, verf })
    });
    let replies = [
        ReplyStatus::Success,
        ReplyStatus::ProgMismatch { low: 3, high: 3 },
        ReplyStatus::GarbageArgs,
        ReplyStatus::RpcMismatch { low: 2, high: 2 },
        ReplyStatus::AuthError(AuthStat::BadCred),
    ]
    .map(|status| encoded(&ReplyHeader { xid: 7, status }));
    calls.into_iter().chain(replies).collect()
}

/// Returns two extended attributes, and an NFSv4 ACL as the target reads it.
fn acls() -> Vec<Vec<u8>> {
    let named = |id| vec![Named { id, permissions: Permissions::ALL }];
    let mut entries = PosixAcl::from_mode(0o754).into_entries();
    entries = Entries { users: named(7), groups: named(8), mask: Some(Permissions::READ), ..entries };
    let acls =
        [PosixAcl::new(entries).unwrap_or_else(|error| unreachable!("{error}")), PosixAcl::from_mode(0o640)];
    let mut seeds: Vec<_> = acls.iter().map(xattr::encode).collect();
    let aces = (0..10u8).map(|n| [n % 2, n / 5 * 3, 0x67, 0, 0, 0, n % 5, n, 0, 0, 0, 0, 0]);
    seeds.push(aces.flatten().collect());
    seeds
}

fn attributes() -> Fattr3 {
    let time = Nfstime3 { seconds: 1_700_000_000, nseconds: 1 };
    Fattr3 {
        ftype: Ftype3::Reg,
        mode: 0o644,
        nlink: 1,
        uid: 1000,
        gid: 100,
        size: 4096,
        used: 4096,
        rdev: Specdata3::default(),
        fsid: 1,
        fileid: 2,
        atime: time,
        mtime: time,
        ctime: time,
    }
}

fn nfs3_messages() -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    let mut add = |procedure: Procedure, message: &dyn Encode| {
        let mut out = encoded(&procedure);
        message.encode(&mut out);
        messages.push(out);
    };
    arguments(&mut add);
    results(&mut add);
    messages
}

fn handle() -> FileHandle {
    FileHandle::new(&[5; 32]).unwrap_or_else(|| unreachable!("32 bytes fit"))
}

fn arguments(add: &mut dyn FnMut(Procedure, &dyn Encode)) {
    let file = handle();
    let target = DirOpArgs { dir: file, name: b"name" };
    let time = SetTime::ClientTime(attributes().mtime);
    let attributes = Sattr3 {
        mode: Some(0o600),
        uid: Some(1),
        gid: None,
        size: Some(10),
        atime: SetTime::ServerTime,
        mtime: time,
    };
    let device = Specdata3 { major: 1, minor: 3 };
    add(Procedure::Getattr, &GetattrArgs { object: file });
    add(Procedure::Setattr, &SetattrArgs { object: file, new_attributes: attributes, guard: None });
    add(Procedure::Lookup, &target);
    add(Procedure::Access, &AccessArgs { object: file, access: 0x3f });
    add(Procedure::Read, &ReadArgs { file, offset: 1 << 33, count: 4096 });
    add(
        Procedure::Write,
        &WriteArgs { file, offset: 0, count: 5, stable: StableHow::FileSync, data: b"hello" },
    );
    for how in
        [CreateHow::Unchecked(attributes), CreateHow::Guarded(attributes), CreateHow::Exclusive([3; 8])]
    {
        add(Procedure::Create, &CreateArgs { target, how });
    }
    add(Procedure::Mkdir, &MkdirArgs { target, attributes });
    add(Procedure::Symlink, &SymlinkArgs { target, attributes, path: b"../there" });
    for what in [MknodData::Chr(attributes, device), MknodData::Fifo(attributes), MknodData::Dir] {
        add(Procedure::Mknod, &MknodArgs { target, what });
    }
    add(Procedure::Rename, &RenameArgs { from: target, to: target });
    add(Procedure::Link, &LinkArgs { file, link: target });
    add(Procedure::Readdir, &ReaddirArgs { dir: file, cookie: 0, cookieverf: [0; 8], count: 4096 });
    add(
        Procedure::Readdirplus,
        &ReaddirplusArgs { dir: file, cookie: 9, cookieverf: [1; 8], dircount: 512, maxcount: 4096 },
    );
    add(Procedure::Commit, &CommitArgs { file, offset: 0, count: 0 });
}

fn results(add: &mut dyn FnMut(Procedure, &dyn Encode)) {
    let attributes = Some(attributes());
    let wcc = WccData { before: attributes.as_ref().map(WccAttr::from), after: attributes };
    let object = Some(handle());
    let refused: ReadRes<'_> = Err(Failed { status: Nfsstat3::Stale, attributes });
    let read: ReadRes<'_> = Ok(ReadOk { file_attributes: attributes, count: 5, eof: true, data: b"hello" });
    let write: WriteRes =
        Ok(WriteOk { file_wcc: wcc, count: 5, committed: StableHow::FileSync, verf: [1; 8] });
    let create: CreateRes = Ok(CreateOk { object, obj_attributes: attributes, dir_wcc: wcc });
    add(Procedure::Read, &refused);
    add(Procedure::Read, &read);
    add(Procedure::Write, &write);
    add(Procedure::Create, &create);
    let mut listing = encoded(&Procedure::Readdirplus);
    encode_listing_header(&mut listing, &attributes, [1; 8]);
    for cookie in 1..4 {
        let entry =
            EntryPlus { fileid: 2, name: b"name", cookie, name_attributes: attributes, name_handle: object };
        encode_entryplus(&mut listing, &entry);
    }
    encode_listing_end(&mut listing, true);
    add(Procedure::Readdirplus, &Raw(listing.split_off(4)));
}

/// Bytes that are already encoded.
struct Raw(Vec<u8>);

impl Encode for Raw {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
}

fn mount_and_portmap_messages() -> Vec<Vec<u8>> {
    let mount: MountRes = Ok(MountOk { fhandle: handle(), auth_flavors: vec![1, 0] });
    let mounts = xdr::List(vec![MountEntry { hostname: b"client", directory: b"/" }]);
    let groups = xdr::List(vec![b"10.0.0.0/8".as_slice(), b"::1"]);
    let exports = xdr::List(vec![ExportEntry { directory: b"/data", groups }]);
    let mapping = Mapping { prog: PROGRAM, vers: VERSION, prot: portmap::IPPROTO_TCP, port: 2049 };
    let mappings = xdr::List(vec![mapping; 3]);
    let messages: [&dyn Encode; 6] = [&b"/data".as_slice(), &mount, &mounts, &exports, &mapping, &mappings];
    messages.map(encoded).into()
}
