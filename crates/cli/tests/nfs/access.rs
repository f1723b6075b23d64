//! Tests of permissions: squashing, groups, ACLs, and ACCESS compared with the kernel's answer.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

use crate::harness::*;

/// Makes a file as `user` and returns its owner and group.
fn made_by(c: &mut Client, user: User, child: &[u8]) -> (u32, u32) {
    c.user = user;
    let root = c.root();
    let file = c.new_file(&root, child, 0o600);
    let attr = c.attr(&file);
    (attr.uid, attr.gid)
}

#[test]
fn root_squash_makes_root_nobody_and_group_root_nogroup() {
    needs_root!();
    let server = Serve::new().start();
    let mut c = server.connect();
    assert_eq!(made_by(&mut c, user(0, 0, &[0]), b"root"), (65534, 65534));
    assert_eq!(made_by(&mut c, user(1000, 0, &[]), b"gid0"), (1000, 65534));
    assert_eq!(made_by(&mut c, user(1000, 100, &[0]), b"user"), (1000, 100));
    assert_eq!(made_by(&mut c, User::None, b"none"), (65534, 65534));
}

#[test]
fn no_root_squash_leaves_root_alone_but_not_auth_none() {
    needs_root!();
    let server = Serve::unsquashed().start();
    let mut c = server.connect();
    assert_eq!(made_by(&mut c, user(0, 0, &[]), b"root"), (0, 0));
    assert_eq!(made_by(&mut c, user(0, 7, &[8]), b"gid"), (0, 7));
    assert_eq!(made_by(&mut c, User::None, b"none"), (65534, 65534));
}

#[test]
fn all_squash_makes_everybody_the_anonymous_ids() {
    needs_root!();
    let server = Serve::new().flags(&["--squash", "all", "--anonuid", "321", "--anongid", "654"]).start();
    let mut c = server.connect();
    for (child, caller) in [(b"a", user(0, 0, &[])), (b"b", user(1000, 100, &[4])), (b"c", User::None)] {
        assert_eq!(made_by(&mut c, caller, child), (321, 654));
    }
}

/// The largest id means "no change" to setresuid(2). A request with it must not run with the server's own identity.
#[test]
fn the_invalid_ids_are_nobody_whatever_the_squashing() {
    needs_root!();
    for squash in ["root", "none", "all"] {
        let server = Serve::new().flags(&["--squash", squash]).start_on(|data| {
            std::fs::write(data.join("secret"), "secret").unwrap();
            std::fs::set_permissions(data.join("secret"), PermissionsExt::from_mode(0o600)).unwrap();
        });
        let mut c = server.connect().acting_as(user(u32::MAX, u32::MAX, &[]));
        let root = c.root();
        let secret = c.find(&root, b"secret");
        assert_eq!(c.read(&secret, 0, 10).status(), Nfsstat3::Acces, "squash {squash}");
        let invalid = user(u32::MAX, u32::MAX, &[u32::MAX]);
        assert_eq!(made_by(&mut c, invalid, b"a"), (65534, 65534), "squash {squash}");
        let (uid, gid) = made_by(&mut c, user(5, u32::MAX, &[]), b"b");
        assert_eq!((uid == 5, gid), (squash != "all", 65534), "squash {squash}");
    }
}

#[test]
fn invalid_ids_cannot_be_set() {
    needs_root!();
    let server = Serve::unsquashed().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let before = c.attr(&file);
    for set in [
        Sattr3 { uid: Some(u32::MAX), ..Sattr3::default() },
        Sattr3 { gid: Some(u32::MAX), ..Sattr3::default() },
    ] {
        assert_eq!(c.setattr(&file, set).status(), Nfsstat3::Inval);
    }
    assert_eq!(c.attr(&file), before);
}

#[test]
fn all_sixteen_groups_count() {
    needs_root!();
    let server = Serve::new().start_on(|data| {
        for gid in 100..117 {
            let path = data.join(gid.to_string());
            std::fs::write(&path, "x").unwrap();
            chown(&path, Some(0), Some(gid)).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        }
    });
    let groups: Vec<u32> = (101..117).collect();
    let mut c = server.connect().acting_as(user(1000, 1000, &groups));
    let root = c.root();
    for gid in 100..117u32 {
        let file = c.find(&root, gid.to_string().as_bytes());
        let expected = if gid == 100 { Nfsstat3::Acces } else { Nfsstat3::Ok };
        assert_eq!(c.read(&file, 0, 1).status(), expected, "group {gid}");
    }
    // The groups of one request must not apply to the next request on the connection.
    c.user = user(1000, 1000, &[]);
    for gid in 100..117u32 {
        let file = c.find(&root, gid.to_string().as_bytes());
        assert_eq!(c.read(&file, 0, 1).status(), Nfsstat3::Acces, "group {gid}");
    }
}

/// Returns the kernel's answer for a process of this user, from test(1).
fn kernel_grants(path: &Path, uid: u32, gid: u32, groups: &[u32]) -> String {
    let groups = match groups {
        [] => "--clear-groups".to_owned(),
        groups => format!("--groups={}", groups.iter().map(u32::to_string).collect::<Vec<_>>().join(",")),
    };
    let script = "for p in r w x; do test -$p \"$0\" && printf $p; done; true";
    let output = Command::new("setpriv")
        .args([format!("--reuid={uid}"), format!("--regid={gid}"), groups])
        .args(["--inh-caps=-all", "sh", "-c", script])
        .arg(path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Converts the kernel's answer to the protocol's bits (RFC 1813 section 3.3.4).
fn expected_access(dir: bool, granted: &str) -> u32 {
    let has = |bit: char, value: u32| if granted.contains(bit) { value } else { 0 };
    if dir {
        let change = if granted.contains('w') { access::MODIFY | access::EXTEND | access::DELETE } else { 0 };
        // Without search permission no name can be reached, so no entry can be changed.
        let change = if granted.contains('x') { change } else { 0 };
        has('r', access::READ) | has('x', access::LOOKUP) | change
    } else {
        has('r', access::READ) | has('w', access::MODIFY | access::EXTEND) | has('x', access::EXECUTE)
    }
}

const USERS: [(u32, u32, &[u32]); 5] =
    [(0, 0, &[]), (1001, 1001, &[]), (1002, 1001, &[]), (1002, 1002, &[7, 1001]), (1003, 1003, &[])];

fn compare_with_kernel(server: &Server, paths: &[(String, bool)]) {
    let mut c = server.connect();
    let root = c.root();
    for (path, dir) in paths {
        let handle = c.find(&root, path.as_bytes());
        for (uid, gid, groups) in USERS {
            c.user = user(uid, gid, groups);
            let granted = kernel_grants(&server.data.join(path), uid, gid, groups);
            let expected = expected_access(*dir, &granted);
            let answer = c.access(&handle, 0x3f).unwrap();
            assert_eq!(answer.access, expected, "{path} for {uid}:{gid} {groups:?}: {granted}");
            // Each bit is asked separately and repeatedly: a cached access verdict must agree.
            for bit in (0..6).map(|bit| 1 << bit) {
                assert_eq!(
                    c.access(&handle, bit).unwrap().access,
                    expected & bit,
                    "{path} for {uid}, bit {bit}"
                );
            }
            if !dir {
                // Owners may always read. A file that may be executed may be read for execution (RFC 1813 section
                // 4.4).
                let may_read = expected & (access::READ | access::EXECUTE) != 0 || uid == 1001;
                let status = c.read(&handle, 0, 1).status();
                assert_eq!(status == Nfsstat3::Ok, may_read, "read {path} for {uid}: {status:?}");
                let may_write = expected & access::MODIFY != 0 || uid == 1001;
                let status = c.write(&handle, 0, b"x", StableHow::Unstable).status();
                assert_eq!(status == Nfsstat3::Ok, may_write, "write {path} for {uid}: {status:?}");
            } else {
                let may_list = expected & access::READ != 0;
                let status = c.readdir(&handle, (0, [0; 8]), 4096).status();
                assert_eq!(status == Nfsstat3::Ok, may_list, "list {path} for {uid}: {status:?}");
                let status = c.create(&handle, b"new", CreateHow::Guarded(mode(0o600))).status();
                let may_create = expected & access::EXTEND != 0;
                assert_eq!(status == Nfsstat3::Ok, may_create, "create in {path} for {uid}: {status:?}");
                if may_create {
                    assert_eq!(c.remove(&handle, b"new").status(), Nfsstat3::Ok);
                }
            }
        }
        c.user = user(0, 0, &[]);
    }
}

#[test]
fn access_agrees_with_the_kernel_for_every_mode() {
    needs_root!();
    let mut paths = Vec::new();
    for (dir, modes) in [(false, 0..8u32), (true, 0..8)] {
        for bits in modes {
            // Only one class of users gets these bits.
            for shift in [6, 3, 0] {
                paths.push((format!("{}-{:03o}", if dir { "d" } else { "f" }, bits << shift), dir));
            }
        }
    }
    paths.sort();
    paths.dedup();
    let server = Serve::unsquashed().start_on(|data| {
        for (name, dir) in &paths {
            let path = data.join(name);
            if *dir {
                std::fs::create_dir(&path).unwrap();
            } else {
                std::fs::write(&path, "x").unwrap();
            }
            chown(&path, Some(1001), Some(1001)).unwrap();
            let bits = u32::from_str_radix(&name[2..], 8).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(bits)).unwrap();
        }
    });
    compare_with_kernel(&server, &paths);
}

fn setfacl(path: &Path, acl: &str) -> bool {
    let output = Command::new("setfacl").args(["-m", acl]).arg(path).output();
    output.is_ok_and(|output| output.status.success())
}

#[test]
fn access_control_lists_of_the_backing_file_system_count() {
    needs_root!();
    let acls = ["u:1003:rw", "u:1002:---", "g:1001:r", "g:7:rwx", "u:1003:rwx,m::r", "g:1001:---,o::rwx"];
    let mut supported = true;
    let mut paths = Vec::new();
    let server = Serve::unsquashed().start_on(|data| {
        for (n, acl) in acls.iter().enumerate() {
            for dir in [false, true] {
                let name = format!("{}{n}", if dir { "d" } else { "f" });
                let path = data.join(&name);
                if dir {
                    std::fs::create_dir(&path).unwrap();
                } else {
                    std::fs::write(&path, "x").unwrap();
                }
                chown(&path, Some(1001), Some(1001)).unwrap();
                std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
                supported &= setfacl(&path, acl);
                paths.push((name, dir));
            }
        }
    });
    if !supported {
        eprintln!("not run: needs setfacl (package acl) and a file system with ACLs");
        return;
    }
    compare_with_kernel(&server, &paths);
}

#[test]
fn a_default_access_control_list_is_inherited() {
    needs_root!();
    let mut supported = true;
    let server = Serve::unsquashed().start_on(|data| {
        std::fs::create_dir(data.join("d")).unwrap();
        supported = setfacl(&data.join("d"), "d:u:1003:rwx,d:m::rwx");
    });
    if !supported {
        eprintln!("not run: needs setfacl (package acl) and a file system with ACLs");
        return;
    }
    let mut c = server.connect();
    let root = c.root();
    let dir = c.find(&root, b"d");
    let file = c.new_file(&dir, b"f", 0o660);
    c.user = user(1003, 1003, &[]);
    assert_eq!(c.write(&file, 0, b"x", StableHow::FileSync).status(), Nfsstat3::Ok);
    c.user = user(1004, 1004, &[]);
    assert_eq!(c.write(&file, 0, b"x", StableHow::FileSync).status(), Nfsstat3::Acces);
}

#[test]
fn a_verdict_ends_with_the_mode_it_was_given_under() {
    needs_root!();
    let server = Serve::unsquashed().start_on(|data| {
        std::fs::write(data.join("f"), "x").unwrap();
        std::fs::set_permissions(data.join("f"), PermissionsExt::from_mode(0o644)).unwrap();
    });
    let mut c = server.connect();
    let root = c.root();
    let file = c.find(&root, b"f");
    for round in 0..50 {
        let bits = if round % 2 == 0 { 0o644 } else { 0o600 };
        if round % 4 < 2 {
            c.user = user(0, 0, &[]);
            c.setattr(&file, mode(bits)).unwrap();
        } else {
            // The mode is changed directly in the directory, without the server.
            std::fs::set_permissions(server.data.join("f"), PermissionsExt::from_mode(bits)).unwrap();
        }
        c.user = user(1000, 1000, &[]);
        let expected = if bits == 0o644 { access::READ } else { 0 };
        for _ in 0..3 {
            assert_eq!(c.access(&file, access::READ).unwrap().access, expected, "round {round}");
        }
    }
}

#[test]
fn sticky_directories_protect_the_files_of_others() {
    needs_root!();
    let server = Serve::unsquashed().start_on(|data| {
        std::fs::create_dir(data.join("tmp")).unwrap();
        std::fs::set_permissions(data.join("tmp"), PermissionsExt::from_mode(0o1777)).unwrap();
    });
    let mut c = server.connect();
    let root = c.root();
    let tmp = c.find(&root, b"tmp");
    c.user = user(1000, 1000, &[]);
    c.new_file(&tmp, b"mine", 0o666);
    c.new_dir(&tmp, b"dir", 0o777);
    c.user = user(1001, 1001, &[]);
    c.new_file(&tmp, b"theirs", 0o666);
    assert_eq!(c.remove(&tmp, b"mine").status(), Nfsstat3::Perm);
    assert_eq!(c.rmdir(&tmp, b"dir").status(), Nfsstat3::Perm);
    assert_eq!(c.rename((&tmp, b"mine"), (&tmp, b"x")).status(), Nfsstat3::Perm);
    assert_eq!(c.rename((&tmp, b"theirs"), (&tmp, b"mine")).status(), Nfsstat3::Perm);
    c.user = user(1000, 1000, &[]);
    assert_eq!(c.remove(&tmp, b"mine").status(), Nfsstat3::Ok);
    assert_eq!(std::fs::metadata(server.data.join("tmp/theirs")).unwrap().uid(), 1001);
}
