//! Tests of extended attributes (RFC 8276): values, names, permissions, and durability.

use std::ffi::CString;
use std::path::Path;

use forebay_wire::nfs4::{
    Bitmap, CreateHow, Fattr, GetattrArgs, ListxattrsArgs, Nfsstat4, Op, OpResult, OpenHow, SetxattrArgs,
    SetxattrOption, XattrNameArgs, access, attr,
};

use crate::harness::*;
use crate::nfs4::{Client4, putfh};

const NEW: OpenHow<'_> =
    OpenHow::Create(CreateHow::Unchecked(Fattr { mask: Bitmap::EMPTY, unknown: false, values: &[] }));

fn set<'a>(option: SetxattrOption, name: &'a [u8], value: &'a [u8]) -> Op<'a> {
    Op::Setxattr(SetxattrArgs { option, name, value })
}

fn get(c: &mut Client4, file: &[u8], name: &[u8]) -> Result<Vec<u8>, Nfsstat4> {
    let get = Op::Getxattr(XattrNameArgs { name });
    c.run(&[putfh(file), get], |status, results| match results.get(1) {
        Some(OpResult::Getxattr(Ok(got))) => Ok(got.value.to_vec()),
        _ => Err(status),
    })
}

/// Returns a page of names, the next cookie, and whether the page is the last.
fn list(
    c: &mut Client4,
    file: &[u8],
    cookie: u64,
    maxcount: u32,
) -> Result<(Vec<Vec<u8>>, u64, bool), Nfsstat4> {
    let list = Op::Listxattrs(ListxattrsArgs { cookie, maxcount });
    c.run(&[putfh(file), list], |status, results| match &results.get(1) {
        Some(OpResult::Listxattrs(Ok(page))) => {
            Ok((page.names.iter().map(<[u8]>::to_vec).collect(), page.cookie, page.eof))
        }
        _ => Err(status),
    })
}

fn host_value(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 1 << 16];
    let len = rustix::fs::getxattr(path, name, &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

fn set_on_host(path: &Path, name: &str, value: &[u8]) {
    let name = CString::new(name).unwrap();
    rustix::fs::setxattr(path, &name, value, rustix::fs::XattrFlags::empty()).unwrap();
}

fn served() -> Server {
    Serve::unsquashed().start()
}

fn client(server: &Server) -> Client4 {
    Client4::connect_as(server.connect(), 2, b"one")
}

#[test]
fn a_value_is_set_replaced_read_listed_and_removed() {
    let server = served();
    let mut c = client(&server);
    let (_, file) = c.open(b"file", NEW, 0).unwrap();
    let path = server.data.join("file");
    let put = |c: &mut Client4, option, value: &[u8]| c.status(&[putfh(&file), set(option, b"color", value)]);
    assert_eq!(get(&mut c, &file, b"color"), Err(Nfsstat4::Noxattr));
    assert_eq!(put(&mut c, SetxattrOption::Replace, b"red"), Nfsstat4::Noxattr);
    assert_eq!(put(&mut c, SetxattrOption::Create, b"red"), Nfsstat4::Ok);
    assert_eq!(put(&mut c, SetxattrOption::Create, b"blue"), Nfsstat4::Exist);
    assert_eq!(host_value(&path, "user.color").unwrap(), b"red");
    assert_eq!(put(&mut c, SetxattrOption::Replace, b"green"), Nfsstat4::Ok);
    assert_eq!(get(&mut c, &file, b"color").unwrap(), b"green");
    assert_eq!(put(&mut c, SetxattrOption::Either, b""), Nfsstat4::Ok);
    assert_eq!(get(&mut c, &file, b"color").unwrap(), b"");
    set_on_host(&path, "user.host", b"1");
    assert_eq!(get(&mut c, &file, b"host").unwrap(), b"1");
    let (mut names, _, eof) = list(&mut c, &file, 0, 4096).unwrap();
    names.sort();
    assert_eq!((names, eof), (vec![b"color".to_vec(), b"host".to_vec()], true));
    let remove = Op::Removexattr(XattrNameArgs { name: b"color" });
    assert_eq!(c.status(&[putfh(&file), remove]), Nfsstat4::Ok);
    assert_eq!(c.status(&[putfh(&file), remove]), Nfsstat4::Noxattr);
    assert_eq!(host_value(&path, "user.color"), None);
    assert_eq!(get(&mut c, &file, b"color"), Err(Nfsstat4::Noxattr));
}

#[test]
fn a_change_of_a_value_changes_the_change_attribute() {
    let server = served();
    let mut c = client(&server);
    let (_, file) = c.open(b"file", NEW, 0).unwrap();
    let ask = Op::Getattr(GetattrArgs { request: Bitmap::of(&[attr::CHANGE, attr::XATTR_SUPPORT]) });
    let setting = set(SetxattrOption::Either, b"a", b"value");
    c.run(&[putfh(&file), ask, setting, ask], |_, results| {
        let [_, OpResult::Getattr(Ok(one)), OpResult::Setxattr(Ok(set)), OpResult::Getattr(Ok(two))] =
            results
        else {
            panic!("{results:?}")
        };
        let [one, two] = [one, two].map(|got| got.attributes.attributes().unwrap());
        assert_eq!((one.change, two.change), (Some(set.cinfo.before), Some(set.cinfo.after)));
        assert!(set.cinfo.atomic && set.cinfo.before != set.cinfo.after);
        assert_eq!(one.xattr_support, Some(true));
    });
}

#[test]
fn sizes_and_names_are_bounded() {
    let server = served();
    let mut c = client(&server);
    let (_, file) = c.open(b"file", NEW, 0).unwrap();
    let mut status =
        |name: &[u8], value: &[u8]| c.status(&[putfh(&file), set(SetxattrOption::Either, name, value)]);
    assert_eq!(status(b"a", &vec![1; 65_537]), Nfsstat4::Xattr2big);
    assert_eq!(status(&[b'n'; 250], b"1"), Nfsstat4::Ok);
    assert_eq!(status(&[b'n'; 251], b"1"), Nfsstat4::Nametoolong);
    assert_eq!(status(b"", b"1"), Nfsstat4::Inval);
    assert_eq!(status(b"a\0b", b"1"), Nfsstat4::Badchar);
    assert_eq!(status(b"a/b", b"1"), Nfsstat4::Ok);
    assert_eq!(get(&mut c, &file, &[b'n'; 251]), Err(Nfsstat4::Nametoolong));
    assert_eq!(get(&mut c, &file, b"a/b").unwrap(), b"1");
}

#[test]
fn a_list_goes_on_after_changes() {
    let server = served();
    let mut c = client(&server);
    let (_, file) = c.open(b"file", NEW, 0).unwrap();
    let mut all: Vec<_> = (0..30).map(|n| format!("name{n}").into_bytes()).collect();
    let path = server.data.join("file");
    for name in &all {
        set_on_host(&path, &format!("user.{}", String::from_utf8_lossy(name)), b"");
    }
    assert_eq!(list(&mut c, &file, 0, 8), Err(Nfsstat4::Toosmall));
    assert_eq!(list(&mut c, &file, 0, 20), Err(Nfsstat4::Toosmall));
    let (mut cookie, mut found) = (0, Vec::new());
    loop {
        let (names, next, eof) = list(&mut c, &file, cookie, 64).unwrap();
        // A name that was listed already is removed: the list must not leave out another name.
        rustix::fs::removexattr(&path, format!("user.{}", String::from_utf8_lossy(&names[0]))).unwrap();
        found.extend(names);
        cookie = next;
        if eof {
            break;
        }
    }
    found.sort();
    all.sort();
    assert_eq!(found, all);
}

#[test]
fn only_names_of_users_are_seen() {
    needs_root!();
    let server = served();
    let mut c = client(&server);
    let (_, file) = c.open(b"file", NEW, 0).unwrap();
    let path = server.data.join("file");
    for name in ["trusted.secret", "security.mine", "user.forebay.start", "user.seen"] {
        set_on_host(&path, name, b"1");
    }
    assert_eq!(list(&mut c, &file, 0, 4096).unwrap().0, [b"seen".to_vec()]);
    for name in [&b"trusted.secret"[..], b"secret", b"forebay.start"] {
        assert_eq!(get(&mut c, &file, name), Err(Nfsstat4::Noxattr));
        let remove = Op::Removexattr(XattrNameArgs { name });
        assert_eq!(c.status(&[putfh(&file), remove]), Nfsstat4::Noxattr);
    }
    let own = set(SetxattrOption::Either, b"forebay.start", b"2");
    assert_eq!(c.status(&[putfh(&file), own]), Nfsstat4::Access);
    assert_eq!(host_value(&path, "user.forebay.start").unwrap(), b"1");
}

#[test]
fn the_kernel_judges_the_caller() {
    needs_root!();
    let server = served();
    let mut root = client(&server);
    let (_, file) = root.open(b"file", NEW, 0).unwrap();
    let path = server.data.join("file");
    std::os::unix::fs::chown(&path, Some(4001), Some(4001)).unwrap();
    assert_eq!(root.status(&[putfh(&file), set(SetxattrOption::Either, b"a", b"1")]), Nfsstat4::Ok);
    let bits = access::XAREAD | access::XAWRITE | access::XALIST;
    for (mode, reads, writes) in [(0o604, true, false), (0o602, false, true), (0o600, false, false)] {
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        let mut c = Client4::connect_as(
            server.connect().acting_as(user(4002, 4002, &[])),
            2,
            mode.to_string().as_bytes(),
        );
        assert_eq!(get(&mut c, &file, b"a").is_ok(), reads, "{mode:o}");
        assert_eq!(list(&mut c, &file, 0, 4096).is_ok(), reads, "{mode:o}");
        let wrote = c.status(&[putfh(&file), set(SetxattrOption::Either, b"b", b"1")]);
        assert_eq!(wrote, if writes { Nfsstat4::Ok } else { Nfsstat4::Access }, "{mode:o}");
        let asked = Op::Access(forebay_wire::nfs4::AccessArgs { access: bits });
        c.run(&[putfh(&file), asked], |_, results| {
            let OpResult::Access(Ok(got)) = results[1] else { panic!("{results:?}") };
            let read = if reads { access::XAREAD | access::XALIST } else { 0 };
            let write = if writes { access::XAWRITE } else { 0 };
            assert_eq!((got.supported, got.access), (bits, read | write), "{mode:o}");
        });
    }
}

#[test]
fn minor_version_1_has_no_extended_attributes() {
    let server = served();
    let mut c = Client4::connect_as(server.connect(), 1, b"one");
    let (_, file) = c.open(b"file", NEW, 0).unwrap();
    c.run(&[putfh(&file), set(SetxattrOption::Either, b"a", b"1")], |status, results| {
        assert_eq!((status, results.len()), (Nfsstat4::OpIllegal, 2));
        assert!(matches!(results[1], OpResult::Illegal(_)), "{results:?}");
    });
    let asked = Op::Access(forebay_wire::nfs4::AccessArgs { access: access::XAREAD | access::READ });
    c.run(&[putfh(&file), asked], |_, results| {
        let OpResult::Access(Ok(got)) = results[1] else { panic!("{results:?}") };
        assert_eq!(got.supported, access::READ);
    });
}

/// The reply waits until the file system has the change, since no record of the cache's log does.
#[test]
fn an_acknowledged_value_survives_a_power_cut() {
    needs_root!();
    for fs in ["xfs", "ext4"] {
        let home = tempfile::tempdir().unwrap();
        let Some(disk) = LoopDisk::new(home.path(), fs, 320 << 20) else { return };
        let server = disk.serve().cached().start();
        let mut c = client(&server);
        // A block of the small file system holds it.
        let large = vec![7; 900];
        let (_, file) = c.open(b"file", NEW, 0).unwrap();
        let both = [
            putfh(&file),
            set(SetxattrOption::Create, b"gone", b"1"),
            set(SetxattrOption::Create, b"large", &large),
            Op::Removexattr(XattrNameArgs { name: b"gone" }),
        ];
        assert_eq!(c.status(&both), Nfsstat4::Ok, "{fs}");
        let after = disk.after_power_cut(home.path());
        assert_eq!(host_value(&after.at.join("file"), "user.large"), Some(large), "{fs}");
        assert_eq!(host_value(&after.at.join("file"), "user.gone"), None, "{fs}");
    }
}
