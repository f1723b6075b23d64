//! Tests of access control lists over NFSACL and NFSv4: both protocols and the host show one list, and every way to a
//! file grants as much as the host does.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_acl::nfs4::{flag, kind, mask as op};
use forebay_acl::{nfsacl, tag};
use forebay_wire::Array;
use forebay_wire::nfs4::{
    self, AccessArgs, Ace, Attributes, Bitmap, CreateArgs, CreateHow, CreateType, Fattr, GetattrArgs,
    NameArgs, Nfsstat4, ObjectAttributes, Op, OpResult, OpenHow, ReadArgs, SetattrArgs, Stateid, attr,
};
use forebay_wire::nfsacl3::{self, Entry, GetaclArgs, GetaclRes, Secattr, SetaclArgs, SetaclRes, mask};
use forebay_wire::rpc::ReplyStatus;
use forebay_wire::xdr::{Decode, Reader};

use crate::harness::*;
use crate::nfs4::{Client4, putfh};

/// An entry of NFSACL: tag, number, permissions.
type Listed = (u32, u32, u32);

fn getacl(c: &mut Client, fh: &FileHandle, mask: u32) -> Result<(Vec<Listed>, Vec<Listed>), Nfsstat3> {
    let number = (nfsacl3::PROGRAM, nfsacl3::VERSION, nfsacl3::Procedure::Getacl as u32);
    let bytes = c.result_bytes(number, &GetaclArgs { fh: *fh, mask });
    let result: GetaclRes<'_> = decoded(&bytes);
    let listed =
        |list: Array<'_, Entry, 1024>| list.iter().map(|e| (e.tag, e.id, e.perm)).collect::<Vec<_>>();
    match result {
        Ok(got) => {
            let both = (listed(got.acl.acl), listed(got.acl.default));
            assert_eq!(got.acl.mask, mask);
            assert!(both.0.is_empty() || both.0.len() == got.acl.acl_count as usize);
            Ok(both)
        }
        Err(failed) => Err(failed.status),
    }
}

fn setacl(
    c: &mut Client,
    fh: &FileHandle,
    access: Option<&[Listed]>,
    default: Option<&[Listed]>,
) -> Result<(), Nfsstat3> {
    let number = (nfsacl3::PROGRAM, nfsacl3::VERSION, nfsacl3::Procedure::Setacl as u32);
    let entries = |list: Option<&[Listed]>| -> Vec<Entry> {
        list.unwrap_or_default()
            .iter()
            .map(|(tag, id, perm)| Entry { tag: *tag, id: *id, perm: *perm })
            .collect()
    };
    let (mut one, mut two) = (Vec::new(), Vec::new());
    let acl = Secattr {
        mask: access.map_or(0, |_| mask::ACL) | default.map_or(0, |_| mask::DFACL),
        acl_count: access.map_or(0, <[_]>::len) as u32,
        acl: Array::encoded(&mut one, &entries(access)).unwrap(),
        default_count: default.map_or(0, <[_]>::len) as u32,
        default: Array::encoded(&mut two, &entries(default)).unwrap(),
    };
    let bytes = c.result_bytes(number, &SetaclArgs { fh: *fh, acl });
    let result: SetaclRes = decoded(&bytes);
    result.map(|attributes| assert!(attributes.is_some())).map_err(|failed| failed.status)
}

fn decoded<'a, T: Decode<'a>>(bytes: &'a [u8]) -> T {
    T::decode(&mut Reader::new(bytes)).unwrap()
}

/// Returns a list in which `user` has `bits`, the owner 6, and all others nothing.
fn list_for(user: u32, bits: u32) -> Vec<Listed> {
    vec![
        (tag::USER_OBJ, 0, 6),
        (tag::USER, user, bits),
        (tag::GROUP_OBJ, 0, 0),
        (tag::MASK, 0, 7),
        (tag::OTHER, 0, 0),
    ]
}

/// Runs a program that must succeed and returns its output.
#[track_caller]
fn run(program: &str, args: &[&str], path: &Path) -> String {
    let output = Command::new(program).args(args).arg(path).output().unwrap();
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn on_host(path: &Path) -> String {
    run("getfacl", &["--numeric", "--omit-header", "--absolute-names"], path)
}

fn served() -> Server {
    Serve::unsquashed().start()
}

/// Returns a client of its own that acts as a user.
fn client4(server: &Server, uid: u32) -> Client4 {
    static MADE: AtomicUsize = AtomicUsize::new(0);
    let name = format!("client{}", MADE.fetch_add(1, Ordering::Relaxed));
    Client4::connect_as(server.connect().acting_as(user(uid, uid, &[])), 1, name.as_bytes())
}

fn get_list(c: &mut Client4, file: &[u8]) -> Vec<(u32, u32, u32, String)> {
    let ask = Op::Getattr(GetattrArgs { request: Bitmap::of(&[attr::ACL]) });
    c.run(&[putfh(file), ask], |status, results| {
        let Some(OpResult::Getattr(Ok(got))) = results.get(1) else { panic!("{status:?}: {results:?}") };
        let list = got.attributes.attributes().unwrap().acl.unwrap();
        let entry = |ace: Ace<'_>| {
            (ace.kind, ace.flag, ace.access_mask, String::from_utf8(ace.principal.to_vec()).unwrap())
        };
        list.iter().map(entry).collect()
    })
}

/// Encodes attributes with a list.
fn with_list<'a>(buffer: &'a mut Vec<u8>, aces: &[Ace<'_>], mode: Option<u32>) -> Fattr<'a> {
    let mut list = Vec::new();
    let acl = Some(Array::encoded(&mut list, aces).unwrap());
    Fattr::encoded(buffer, &Attributes { acl, mode, ..Attributes::default() })
}

fn set_list(c: &mut Client4, file: &[u8], aces: &[Ace<'_>]) -> Nfsstat4 {
    let mut buffer = Vec::new();
    let attributes = with_list(&mut buffer, aces, None);
    let set = SetattrArgs { stateid: Stateid::ANONYMOUS, attributes };
    c.status(&[putfh(file), Op::Setattr(set)])
}

fn allow(principal: &str, access_mask: u32, flag: u32) -> Ace<'_> {
    Ace { kind: kind::ALLOW, flag, access_mask, principal: principal.as_bytes() }
}

const READ: u32 = op::READ_DATA;
const WRITE: u32 = op::WRITE_DATA | op::APPEND_DATA;
const SEARCH: u32 = op::EXECUTE;

#[test]
fn both_protocols_and_the_host_show_one_list() {
    needs_root!();
    let server = served();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"file", 0o640);
    let path = server.data.join("file");
    let ask = |c: &mut Client| getacl(c, &file, mask::ALL).unwrap();
    let minimal = [(tag::USER_OBJ, 0, 6), (tag::GROUP_OBJ, 0, 4), (tag::MASK, 0, 4), (tag::OTHER, 0, 0)];
    assert_eq!(ask(&mut c), (minimal.to_vec(), vec![]));
    setacl(&mut c, &file, Some(&list_for(4002, 5)), None).unwrap();
    assert_eq!(ask(&mut c).0, list_for(4002, 5));
    assert_eq!(on_host(&path), "user::rw-\nuser:4002:r-x\ngroup::---\nmask::rwx\nother::---\n\n");
    assert_eq!(c.attr(&file).mode & 0o777, 0o670);
    run("setfacl", &["-m", "u:4003:rw"], &path);
    assert_eq!(ask(&mut c).0[2], (tag::USER, 4003, 6));
    let mut four = client4(&server, 0);
    let seen = get_list(&mut four, file.as_bytes());
    assert!(seen.iter().any(|ace| (ace.0, &*ace.3) == (kind::ALLOW, "4003") && ace.2 & WRITE == WRITE));
    let aces =
        [allow("OWNER@", READ | WRITE, 0), allow("4004", READ, 0), allow("77", READ, flag::IDENTIFIER_GROUP)];
    assert_eq!(set_list(&mut four, file.as_bytes(), &aces), Nfsstat4::Ok);
    let text = "user::rw-\nuser:4004:r--\ngroup::---\ngroup:77:r--\nmask::r--\nother::---\n\n";
    assert_eq!(on_host(&path), text);
    // The list that a client reads can be set again, and is then the list that it was.
    let seen = get_list(&mut four, file.as_bytes());
    let again: Vec<_> = seen
        .iter()
        .map(|(kind, flag, access_mask, who)| Ace {
            kind: *kind,
            flag: *flag,
            access_mask: *access_mask,
            principal: who.as_bytes(),
        })
        .collect();
    let mut buffer = Vec::new();
    let attributes = with_list(&mut buffer, &again, None);
    let verify = [putfh(file.as_bytes()), Op::Verify(ObjectAttributes { attributes })];
    assert_eq!(four.status(&verify), Nfsstat4::Ok);
    assert_eq!(set_list(&mut four, file.as_bytes(), &again), Nfsstat4::Ok);
    assert_eq!(on_host(&path), text);
    assert_eq!(set_list(&mut four, file.as_bytes(), &again[1..]), Nfsstat4::Ok);
    assert_eq!(four.status(&verify), Nfsstat4::NotSame);
    setacl(&mut c, &file, Some(&[]), None).unwrap();
    assert!(!on_host(&path).contains("mask"));
}

#[test]
fn only_the_owner_and_root_set_a_list() {
    needs_root!();
    let server = served();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"file", 0o666);
    std::os::unix::fs::chown(server.data.join("file"), Some(4001), Some(4001)).unwrap();
    let all = [allow("EVERYONE@", READ, 0)];
    for (uid, v3, v4) in [(4001, Ok(()), Nfsstat4::Ok), (4002, Err(Nfsstat3::Perm), Nfsstat4::Perm)] {
        let mut c = server.connect().acting_as(user(uid, uid, &[]));
        assert_eq!(setacl(&mut c, &file, Some(&list_for(4002, 7)), None), v3);
        assert!(getacl(&mut c, &file, mask::ACL).is_ok(), "every caller may read a list");
        assert_eq!(set_list(&mut client4(&server, uid), file.as_bytes(), &all), v4);
    }
}

#[test]
fn lists_that_are_invalid_are_refused() {
    needs_root!();
    let server = served();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"file", 0o640);
    let before = on_host(&server.data.join("file"));
    assert_eq!(setacl(&mut c, &file, Some(&list_for(4002, 8)), None), Err(Nfsstat3::Inval));
    assert_eq!(setacl(&mut c, &file, Some(&list_for(4002, 7)[1..]), None), Err(Nfsstat3::Inval));
    assert_eq!(getacl(&mut c, &file, 16), Err(Nfsstat3::Inval));
    let mut four = client4(&server, 0);
    let audit = [Ace { kind: kind::AUDIT, ..allow("OWNER@", READ, 0) }];
    assert_eq!(set_list(&mut four, file.as_bytes(), &audit), Nfsstat4::Attrnotsupp);
    let inherited = [allow("OWNER@", READ, flag::FILE_INHERIT)];
    assert_eq!(set_list(&mut four, file.as_bytes(), &inherited), Nfsstat4::Attrnotsupp);
    let named = [allow("someone@example.org", READ, 0)];
    assert_eq!(set_list(&mut four, file.as_bytes(), &named), Nfsstat4::Badowner);
    assert_eq!(on_host(&server.data.join("file")), before);
    let (status, _) = c.call((nfsacl3::PROGRAM, nfsacl3::VERSION, 0), &[]);
    assert_eq!(status, ReplyStatus::Success, "NULL");
    c.symlink(&root, b"link", b"file").unwrap();
    let link = c.find(&root, b"link");
    assert_eq!(setacl(&mut c, &link, Some(&list_for(4002, 7)), None), Err(Nfsstat3::Notsupp));
    assert_eq!(set_list(&mut four, link.as_bytes(), &named), Nfsstat4::Attrnotsupp);
}

fn ctime(path: &Path) -> std::time::SystemTime {
    let found = path.metadata().unwrap();
    std::time::UNIX_EPOCH + std::time::Duration::new(found.ctime() as u64, found.ctime_nsec() as u32)
}

/// Returns the rights of a user on a file: ACCESS, and READ itself.
fn rights(server: &Server, uid: u32, file: &FileHandle) -> (u32, bool, u32) {
    let mut c = server.connect().acting_as(user(uid, uid, &[]));
    let bits = access::READ | access::MODIFY | access::EXECUTE;
    let three = c.access(file, bits).unwrap().access;
    let reads = c.read(file, 0, 10).is_ok();
    let mut four = client4(server, uid);
    let read = Op::Read(ReadArgs { stateid: Stateid::ANONYMOUS, offset: 0, count: 10 });
    assert_eq!(four.status(&[putfh(file.as_bytes()), read]) == Nfsstat4::Ok, reads, "READ of NFSv4");
    let asked = Op::Access(AccessArgs { access: bits });
    let four = four.run(&[putfh(file.as_bytes()), asked], |_, results| match results[1] {
        OpResult::Access(Ok(got)) => got.access,
        ref other => panic!("ACCESS: {other:?}"),
    });
    (three, reads, four)
}

#[test]
fn the_entry_of_a_user_grants_and_denies_at_once() {
    needs_root!();
    let server = served();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"file", 0o600);
    let path = server.data.join("file");
    let all = [(0, 0), (4, access::READ), (7, access::READ | access::MODIFY | access::EXECUTE)];
    let check = |bits: u32, by: &str| {
        let granted = all.iter().find(|(is, _)| *is == bits).unwrap().1;
        // Verdicts are kept under an older change time only. The second look may find a kept verdict.
        wait_for(|| std::time::SystemTime::now() > ctime(&path) + std::time::Duration::from_millis(30));
        assert_eq!(rights(&server, 4002, &file), (granted, bits & 4 != 0, granted), "{bits} by {by}");
        assert_eq!(rights(&server, 4003, &file), (0, false, 0), "{bits} by {by}: of another user");
    };
    let mut four = client4(&server, 0);
    // The mode is the same for all lists, so that only the list tells.
    for bits in [7, 0, 4, 7, 4, 0] {
        setacl(&mut c, &file, Some(&list_for(4002, bits)), None).unwrap();
        check(bits, "SETACL");
        // The host sets another list between those of clients.
        let (other, text) = if bits == 7 { (0, "---") } else { (7, "rwx") };
        run("setfacl", &["-m", &format!("u:4002:{text},m::rwx")], &path);
        check(other, "the host");
        let granted = [(0, 0), (4, READ), (7, READ | WRITE | op::EXECUTE)]
            .iter()
            .find(|(is, _)| *is == bits)
            .unwrap()
            .1;
        let aces = [allow("OWNER@", READ | WRITE, 0), allow("4002", granted, 0)];
        assert_eq!(set_list(&mut four, file.as_bytes(), &aces), Nfsstat4::Ok);
        check(bits, "SETATTR");
    }
}

#[test]
fn a_list_grants_and_denies_names_below_a_directory() {
    needs_root!();
    let server = served();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"dir", 0o700);
    c.new_file(&dir, b"file", 0o644);
    let mut four = client4(&server, 4002);
    for bits in [1, 0, 5, 4] {
        setacl(&mut c, &dir, Some(&list_for(4002, bits)), None).unwrap();
        let mut user = server.connect().acting_as(user(4002, 4002, &[]));
        let expected = if bits & 1 != 0 { None } else { Some(Nfsstat3::Acces) };
        assert_eq!(user.lookup(&dir, b"file").err().map(|failed| failed.status), expected, "{bits}");
        let expected = if bits & 1 != 0 { Nfsstat4::Ok } else { Nfsstat4::Access };
        let lookup = Op::Lookup(NameArgs { name: b"file" });
        assert_eq!(four.status(&[putfh(dir.as_bytes()), lookup]), expected, "{bits}");
        let listed = user.readdir(&dir, START, 4096).is_ok();
        assert_eq!(listed, bits & 4 != 0, "{bits}");
    }
}

/// The kernel gives a new inode the default list of its directory, which counts in place of a umask.
#[test]
fn a_new_inode_gets_the_list_of_its_directory() {
    needs_root!();
    let server = served();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"dir", 0o777);
    let access = [(tag::USER_OBJ, 0, 7), (tag::GROUP_OBJ, 0, 7), (tag::MASK, 0, 7), (tag::OTHER, 0, 7)];
    let default: Vec<Listed> = [
        (tag::USER_OBJ, 0, 7),
        (tag::USER, 4002, 7),
        (tag::GROUP_OBJ, 0, 5),
        (tag::MASK, 0, 7),
        (tag::OTHER, 0, 0),
    ]
    .map(|(tag, id, bits)| (tag | nfsacl::DEFAULT, id, bits))
    .to_vec();
    setacl(&mut c, &dir, Some(&access), Some(&default)).unwrap();
    assert_eq!(getacl(&mut c, &dir, mask::ALL).unwrap(), (access.to_vec(), default));
    let path = server.data.join("dir");
    // The host shows what is right.
    std::fs::File::options().write(true).create_new(true).mode(0o664).open(path.join("host")).unwrap();
    let right = on_host(&path.join("host"));
    assert!(right.contains("user:4002:rwx"), "{right}");
    c.create(&dir, b"unchecked", crate::harness::CreateHow::Unchecked(mode(0o664))).unwrap();
    c.create(&dir, b"exclusive", crate::harness::CreateHow::Exclusive([5; 8])).unwrap();
    let exclusive = c.find(&dir, b"exclusive");
    c.setattr(&exclusive, mode(0o664)).unwrap();
    let mut four = client4(&server, 0);
    let mut buffer = Vec::new();
    let attributes = Fattr::encoded(&mut buffer, &Attributes { mode: Some(0o664), ..Attributes::default() });
    let open = nfs4::OpenArgs {
        seqid: 0,
        share_access: nfs4::share::BOTH | nfs4::share::WANT_NO_DELEG,
        share_deny: 0,
        owner: nfs4::StateOwner { clientid: four.id, owner: forebay_wire::Opaque(b"owner") },
        how: OpenHow::Create(CreateHow::Guarded(attributes)),
        claim: nfs4::OpenClaim::Null(b"open"),
    };
    assert_eq!(four.status(&[putfh(dir.as_bytes()), Op::Open(open)]), Nfsstat4::Ok);
    for name in ["unchecked", "open"] {
        assert_eq!(on_host(&path.join(name)), right, "{name}");
    }
    // The client of an exclusive create sets the mode afterwards.
    std::fs::set_permissions(path.join("host"), PermissionsExt::from_mode(0o664)).unwrap();
    assert_eq!(on_host(&path.join("exclusive")), on_host(&path.join("host")));
    std::fs::DirBuilder::new().mode(0o775).create(path.join("host-dir")).unwrap();
    c.new_dir(&dir, b"mkdir", 0o775);
    let mut buffer = Vec::new();
    let attributes = Fattr::encoded(&mut buffer, &Attributes { mode: Some(0o775), ..Attributes::default() });
    let create = Op::Create(CreateArgs { objtype: CreateType::Dir, name: b"create", attributes });
    assert_eq!(four.status(&[putfh(dir.as_bytes()), create]), Nfsstat4::Ok);
    for name in ["mkdir", "create"] {
        assert_eq!(on_host(&path.join(name)), on_host(&path.join("host-dir")), "{name}");
    }
    // Without the default list, new inodes have none.
    setacl(&mut c, &dir, None, Some(&[])).unwrap();
    c.new_file(&dir, b"plain", 0o640);
    assert_eq!(on_host(&path.join("plain")), "user::rw-\ngroup::r--\nother::---\n\n");
}

#[test]
fn a_new_inode_gets_the_list_that_its_maker_asks_for() {
    needs_root!();
    let server = served();
    let mut four = client4(&server, 4001);
    let mut buffer = Vec::new();
    let aces = [allow("OWNER@", READ | WRITE | SEARCH, 0), allow("4002", READ, 0)];
    let how = OpenHow::Create(CreateHow::Guarded(with_list(&mut buffer, &aces, Some(0o777))));
    four.open(b"file", how, 0).unwrap();
    let text = "user::rwx\nuser:4002:r--\ngroup::---\nmask::r--\nother::---\n\n";
    assert_eq!(on_host(&server.data.join("file")), text);
    let mut buffer = Vec::new();
    let inherit = flag::FILE_INHERIT | flag::DIRECTORY_INHERIT;
    let all = READ | WRITE | SEARCH | op::DELETE_CHILD;
    let aces = [allow("OWNER@", all, 0), allow("4002", all, inherit)];
    let attributes = with_list(&mut buffer, &aces, Some(0o1777));
    let create = Op::Create(CreateArgs { objtype: CreateType::Dir, name: b"dir", attributes });
    assert_eq!(four.status(&[Op::Putrootfh(()), create]), Nfsstat4::Ok);
    let list = on_host(&server.data.join("dir"));
    assert!(list.contains("user:4002:rwx") && list.contains("default:user:4002:rwx"), "{list}");
    assert!(list.contains("other::---"), "{list}");
    assert_eq!(server.data.join("dir").metadata().unwrap().mode() & 0o7000, 0o1000);
}

/// Changes of the mode are records of the cache's log. Lists are in the file system before the reply. After a power
/// cut, neither undoes the other.
#[test]
fn lists_and_modes_survive_a_power_cut_in_their_order() {
    needs_root!();
    for fs in ["xfs", "ext4"] {
        let home = tempfile::tempdir().unwrap();
        let Some(disk) = LoopDisk::new(home.path(), fs, 320 << 20) else { return };
        let mut server = disk.serve().cached().start();
        let mut c = server.connect();
        let root = c.root();
        let names = ["before", "after", "both", "new", "four"];
        let [before, after, both] = [0, 1, 2].map(|n| c.new_file(&root, names[n].as_bytes(), 0o600));
        server.flush();
        c.setattr(&before, mode(0o670)).unwrap();
        setacl(&mut c, &before, Some(&list_for(4002, 5)), None).unwrap();
        setacl(&mut c, &after, Some(&list_for(4002, 7)), None).unwrap();
        c.setattr(&after, mode(0o640)).unwrap();
        c.setattr(&both, mode(0o666)).unwrap();
        setacl(&mut c, &both, Some(&list_for(4002, 4)), None).unwrap();
        c.setattr(&both, mode(0o660)).unwrap();
        let new = c.new_file(&root, b"new", 0o600);
        c.write(&new, 0, b"text", StableHow::FileSync).unwrap();
        setacl(&mut c, &new, Some(&list_for(4002, 6)), None).unwrap();
        let four = c.new_file(&root, b"four", 0o600);
        let aces = [allow("OWNER@", READ, 0), allow("4002", READ, 0)];
        assert_eq!(set_list(&mut client4(&server, 0), four.as_bytes(), &aces), Nfsstat4::Ok);
        let lists = names.map(|name| on_host(&disk.at.join(name)));
        // The file system as it is on its device, without what is only in memory.
        server.kill();
        let image = disk.after_power_cut(home.path()).image.clone();
        disk.unmount();
        disk.mount_here(&image);
        server.start();
        for (name, list) in names.iter().zip(lists) {
            assert_eq!(on_host(&disk.at.join(name)), list, "{fs}: {name}");
        }
        let found = server.connect().find(&root, b"new");
        assert_eq!(
            (found, server.connect().read(&found, 0, 9).unwrap().data),
            (new, b"text".to_vec()),
            "{fs}"
        );
    }
}

/// Sets lists and modes in turn until the server is killed. After the start the file is as the last acknowledged
/// request left it, or as the request that was not answered.
#[test]
fn a_killed_server_has_undone_no_acknowledged_list() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "xfs", 320 << 20) else { return };
    let mut server = disk.serve().cached().start();
    let root = server.connect().root();
    let file = server.connect().new_file(&root, b"file", 0o600);
    let path = disk.at.join("file");
    for round in 0..4u32 {
        let mut c = Client4::connect_as(server.connect(), 2, format!("round{round}").as_bytes());
        let (done, asker) = (AtomicUsize::new(0), server.pid());
        let acknowledged = std::thread::scope(|scope| {
            scope.spawn(|| {
                wait_for(|| done.load(Ordering::Relaxed) >= 20);
                let pid = rustix::process::Pid::from_raw(asker as i32).unwrap();
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            });
            for n in 0.. {
                let mut buffer = Vec::new();
                let set = |attributes| Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attributes });
                let user = n.to_string();
                let aces = [allow("OWNER@", READ, 0), allow(&user, READ, 0)];
                let bits = Attributes { mode: Some(0o600 | (n as u32 & 0o77)), ..Attributes::default() };
                let operation = match n % 2 {
                    0 => set(with_list(&mut buffer, &aces, None)),
                    _ => set(Fattr::encoded(&mut buffer, &bits)),
                };
                match c.try_run(&[putfh(file.as_bytes()), operation], |status, _| status) {
                    Some(status) => assert_eq!(status, Nfsstat4::Ok),
                    None => return n,
                }
                done.fetch_add(1, Ordering::Relaxed);
            }
            unreachable!()
        });
        server.wait();
        server.start();
        // The request that was not answered may be carried out or not.
        let of = |n: usize| (n / 2 * 2, n);
        let (is, list) = (path.metadata().unwrap().mode() & 0o777, on_host(&path));
        let fits = [acknowledged - 1, acknowledged].iter().any(|last| {
            let (user, last) = of(*last);
            let mode = if last % 2 == 0 { 0o440 } else { 0o600 | (last as u32 & 0o77) };
            is == mode && list.contains(&format!("user:{user}:r--"))
        });
        assert!(fits, "after {acknowledged} requests: {is:o}\n{list}");
    }
}
