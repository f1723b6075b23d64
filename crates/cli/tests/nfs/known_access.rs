//! Tests of ACCESS for files that are not open, answered from memory. The answers must equal the kernel's at that
//! moment.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{AtFlags, CWD, FileType, Gid, IFlags, Mode, OFlags, Uid, XattrFlags};

use forebay_wire::nfs4::{AccessArgs as Access4, Op, OpResult};

use crate::harness::*;
use crate::known::{few_open, looks, wait_until_cacheable};
use crate::nfs4::{Client4, putfh};

const OBJECTS: u64 = 200;

/// Root, owners, members by either kind of group, and other users.
const CALLERS: [(u32, u32, &[u32]); 9] = [
    (0, 0, &[]),
    (0, 2001, &[2002]),
    (1001, 1001, &[]),
    (1001, 2001, &[]),
    (1002, 2001, &[7]),
    (1002, 1002, &[7, 2002, 2001]),
    (1003, 1003, &[2002]),
    (1003, 1003, &[]),
    (65534, 65534, &[]),
];
const OWNERS: [u32; 4] = [0, 1001, 1002, 65534];
const GROUPS: [u32; 4] = [0, 2001, 2002, 65534];

/// Returns the rights that the kernel grants to a thread with this identity, in the protocol's bits for objects that
/// are not directories.
fn kernel_grants(path: &Path, (uid, gid, groups): (u32, u32, &[u32])) -> u32 {
    use rustix::fs::Access;
    let ask = || {
        let groups: Vec<_> = groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::thread::set_thread_groups(&groups).unwrap();
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        let flags = AtFlags::EACCESS | AtFlags::SYMLINK_NOFOLLOW;
        let all = [
            (Access::READ_OK, access::READ),
            (Access::WRITE_OK, access::MODIFY | access::EXTEND),
            (Access::EXEC_OK, access::EXECUTE),
        ];
        let granted = |asked| rustix::fs::accessat(CWD, path, asked, flags).is_ok();
        all.iter().filter(|(asked, _)| granted(*asked)).map(|(_, bits)| bits).sum()
    };
    // The thread ends with the identity that it assumed.
    std::thread::scope(|scope| scope.spawn(ask).join().unwrap())
}

/// Returns an access control list (`system.posix_acl_access`, linux/posix_acl_xattr.h) that names a user and a group.
fn acl(user: (u32, u16), group: (u32, u16), [owner, own_group, mask, other]: [u16; 4]) -> Vec<u8> {
    const NONE: u32 = u32::MAX;
    let entries = [
        (0x01, owner, NONE),
        (0x02, user.1, user.0),
        (0x04, own_group, NONE),
        (0x08, group.1, group.0),
        (0x10, mask, NONE),
        (0x20, other, NONE),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, bits, id) in entries {
        let tag: u16 = tag;
        bytes.extend(tag.to_le_bytes());
        bytes.extend(bits.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

const ACL: &str = "system.posix_acl_access";

fn kind_of(n: u64) -> FileType {
    match n % 10 {
        0 => FileType::Symlink,
        1 => FileType::Fifo,
        2 => FileType::Socket,
        3 => FileType::CharacterDevice,
        _ => FileType::RegularFile,
    }
}

/// A generator of numbers that are equal in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    fn bits(&mut self) -> u16 {
        self.below(8) as u16
    }

    fn mode(&mut self) -> u32 {
        self.below(0o1000) as u32
    }
}

struct World {
    server: Server,
    /// A client of NFSv4, which gives half of the answers.
    nfs4: Client4,
    data: PathBuf,
    files: Vec<FileHandle>,
    draw: Draw,
    /// Bits that the export grants to no user.
    withheld: u32,
}

/// Makes all objects in a directory.
fn make(data: &Path) {
    let mut draw = Draw(5);
    for n in 0..OBJECTS {
        let path = data.join(n.to_string());
        match kind_of(n) {
            FileType::Symlink => std::os::unix::fs::symlink("nowhere", &path).unwrap(),
            kind => {
                let device = rustix::fs::makedev(1, 3);
                rustix::fs::mknodat(CWD, &path, kind, Mode::empty(), device).unwrap();
                std::fs::set_permissions(&path, PermissionsExt::from_mode(draw.mode())).unwrap();
            }
        }
        let (owner, group) = (draw.of(&OWNERS), draw.of(&GROUPS));
        std::os::unix::fs::lchown(&path, Some(owner), Some(group)).unwrap();
    }
}

impl World {
    fn new(server: Server, data: PathBuf) -> Self {
        let mut c = server.connect();
        let root = c.root();
        let files = (0..OBJECTS).map(|n| c.find(&root, n.to_string().as_bytes())).collect();
        let nfs4 = Client4::connect(&server, b"asks");
        World { server, nfs4, data, files, draw: Draw(7), withheld: 0 }
    }

    fn path(&self, n: u64) -> PathBuf {
        self.data.join(n.to_string())
    }

    /// Returns the rights that a caller has to an object, with its attributes, from a client of NFSv3 or NFSv4.
    fn answer(&mut self, c: &mut Client, file: &FileHandle, caller: (u32, u32, &[u32])) -> (u32, Fattr3) {
        let (uid, gid, groups) = caller;
        let nfs4 = self.draw.below(2) == 0;
        if nfs4 {
            self.nfs4.connection.user = user(uid, gid, groups);
            let operations = [putfh(file.as_bytes()), Op::Access(Access4 { access: 0x3f })];
            let access = self.nfs4.run(&operations, |_, results| match results[1] {
                OpResult::Access(Ok(got)) => got.access,
                ref other => panic!("ACCESS: {other:?}"),
            });
            return (access, c.attr(file));
        }
        c.user = user(uid, gid, groups);
        let answer = c.access(file, 0x3f).unwrap();
        c.user = user(0, 0, &[]);
        (answer.access, answer.obj_attributes.unwrap())
    }

    /// Asks as a random caller. The answer must be the kernel's.
    fn ask(&mut self, c: &mut Client, n: u64, what: &str) {
        let (uid, gid, groups) = self.draw.of(&CALLERS);
        let file = self.files[n as usize];
        let (access, attr) = self.answer(c, &file, (uid, gid, groups));
        let expected = kernel_grants(&self.path(n), (uid, gid, groups)) & !self.withheld;
        assert_eq!(
            access, expected,
            "{n} ({:?}, {:o}, {}:{}) for {uid}:{gid} {groups:?}, {what}",
            attr.ftype, attr.mode, attr.uid, attr.gid
        );
    }

    /// Changes the rights to an object, through the server or externally.
    fn change(&mut self, c: &mut Client, n: u64) -> &'static str {
        let (path, file) = (self.path(n), self.files[n as usize]);
        let draw = &mut self.draw;
        let mode_bits = draw.mode();
        let (owner, group) = (draw.of(&OWNERS), draw.of(&GROUPS));
        let symlink = kind_of(n) == FileType::Symlink;
        match draw.below(7) {
            0 if !symlink => {
                std::fs::set_permissions(path, PermissionsExt::from_mode(mode_bits)).unwrap();
                "a chmod by others"
            }
            1 => {
                std::os::unix::fs::lchown(path, Some(owner), Some(group)).unwrap();
                "a chown by others"
            }
            2 if !symlink => {
                let list = acl(
                    (draw.of(&[1001, 1003]), draw.bits()),
                    (draw.of(&GROUPS), draw.bits()),
                    [draw.bits(), draw.bits(), draw.bits(), draw.bits()],
                );
                rustix::fs::lsetxattr(path, ACL, &list, XattrFlags::empty()).unwrap();
                "an ACL set by others"
            }
            3 if !symlink => {
                // The object may have no ACL, so an error is ignored.
                let _ = rustix::fs::lremovexattr(path, ACL);
                "an ACL removed by others"
            }
            4 if !symlink => {
                c.setattr(&file, mode(mode_bits)).unwrap();
                "a client's chmod"
            }
            5 => {
                c.setattr(&file, Sattr3 { uid: Some(owner), gid: Some(group), ..Sattr3::default() }).unwrap();
                "a client's chown"
            }
            _ => "no change",
        }
    }

    /// Lets all callers ask about all objects, so that most access verdicts are cached.
    fn ask_all(&mut self, c: &mut Client) {
        for n in (0..OBJECTS).chain(0..OBJECTS) {
            self.ask(c, n, "nobody changes anything");
        }
    }

    fn play(&mut self, rounds: u64) {
        let mut c = self.server.connect();
        let (before, _) = looks(&self.server);
        for round in 0..rounds {
            wait_until_cacheable();
            self.ask_all(&mut c);
            for _ in 0..40 {
                let n = self.draw.below(OBJECTS);
                let what = self.change(&mut c, n);
                for _ in 0..3 {
                    self.ask(&mut c, n, what);
                }
            }
            assert!(round > 0 || looks(&self.server).0 > before, "nothing comes from memory");
        }
        let (hits, misses) = looks(&self.server);
        let asked = rounds * (OBJECTS * 2 + 120);
        assert!((hits - before) * 3 > asked, "{} of {asked} from memory, {misses} not", hits - before);
    }
}

#[test]
fn access_from_memory_is_what_the_kernel_says() {
    needs_root!();
    for serve in [few_open().plain(), few_open().cached()] {
        let server = serve.start_on(make);
        let data = server.data.clone();
        World::new(server, data).play(12);
    }
}

/// Cases in which the kernel denies a right to every caller.
#[test]
fn access_from_memory_knows_of_mounts_and_flags() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    std::fs::set_permissions(home.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "ext4", 64 << 20) else { return };
    make(&disk.at);
    for n in (0..OBJECTS).filter(|n| n % 10 == 5) {
        let file = rustix::fs::open(disk.at.join(n.to_string()), OFlags::RDONLY, Mode::empty()).unwrap();
        rustix::fs::ioctl_setflags(&file, IFlags::IMMUTABLE).unwrap();
    }
    for options in ["rw", "noexec", "ro"] {
        let mounted =
            Command::new("mount").args(["-o", &format!("remount,{options}")]).arg(&disk.at).status();
        assert!(mounted.unwrap().success());
        // A read-only file system can be served only as a read-only export.
        let access = if options == "ro" { "access='ro'\n" } else { "" };
        let toml = format!(
            "[[export]]\npath='{}'\nname='/'\n[[export.client]]\nnetworks=['127.0.0.1']\nsquash='none'\n{access}",
            disk.at.display()
        );
        let serve = Serve::new().exports(&toml).data_at(&disk.at);
        let server = serve.flags(&["--open-files", "16"]).plain().start();
        let mut world = World::new(server, disk.at.clone());
        world.withheld = if options == "ro" { access::MODIFY | access::EXTEND } else { 0 };
        let mut c = world.server.connect();
        wait_until_cacheable();
        let (before, _) = looks(&world.server);
        for _ in 0..6 {
            world.ask_all(&mut c);
        }
        let (hits, misses) = looks(&world.server);
        assert!(hits > before + OBJECTS * 4, "{options}: {hits} from memory, {misses} not");
    }
}

#[test]
fn access_from_memory_grants_no_change_through_an_export_that_is_read_only() {
    needs_root!();
    let toml = "[[export]]\npath='@/data'\nname='/'\n[[export.client]]\nnetworks=['127.0.0.1']\nsquash='none'\n\
                access='ro'\n";
    let server = Serve::new().flags(&["--open-files", "16"]).exports(toml).plain().start_on(make);
    let data = server.data.clone();
    let mut world = World { withheld: access::MODIFY | access::EXTEND, ..World::new(server, data) };
    let mut c = world.server.connect();
    wait_until_cacheable();
    for _ in 0..6 {
        world.ask_all(&mut c);
    }
    assert!(looks(&world.server).0 > OBJECTS * 4);
}
