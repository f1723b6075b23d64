//! Tests of MOUNT v3 (RFC 1813 appendix I).

use forebay_wire::xdr::List;

use crate::harness::mount3::{ExportList, MountList, Mountstat3, Procedure as Mount};
use crate::harness::*;

/// Decodes a result, which must end with its last field.
fn whole<'a, T: forebay_wire::Decode<'a>>(bytes: &'a [u8]) -> T {
    let mut reader = forebay_wire::Reader::new(bytes);
    let value = T::decode(&mut reader).unwrap();
    assert_eq!(reader.remaining(), 0);
    value
}

#[test]
fn mnt_gives_the_root_and_directories_below() {
    let server = Serve::new().flags(&["--export", "/data"]).start_on(|data| {
        std::fs::create_dir_all(data.join("a/b")).unwrap();
        std::fs::write(data.join("a/file"), b"").unwrap();
        std::os::unix::fs::symlink("/", data.join("a/link")).unwrap();
    });
    let mut c = server.connect();
    let mounted = c.mnt(b"/").unwrap();
    assert_eq!(mounted.auth_flavors, [rpc::AUTH_SYS, rpc::AUTH_NONE]);
    let root = mounted.fhandle;
    assert_eq!(c.attr(&root).ftype, Ftype3::Dir);
    assert_eq!(c.mnt(b"/data").unwrap().fhandle, root);
    let a = c.find(&root, b"a");
    let b = c.find(&a, b"b");
    for path in [&b"/a/b"[..], b"/a//b/", b"/a/./b", b"/a/b/../b", b"/data/a/b", b"/../../a/b"] {
        assert_eq!(c.mnt(path).map(|ok| ok.fhandle), Ok(b), "{}", path.escape_ascii());
    }
    assert_eq!(c.mnt(b"/..").map(|ok| ok.fhandle), Ok(root), "the root has no parent");
    assert_eq!(c.mnt(b"/none").unwrap_err(), Mountstat3::Noent);
    assert_eq!(c.mnt(b"a").unwrap_err(), Mountstat3::Noent, "not absolute");
    assert_eq!(c.mnt(b"").map(|ok| ok.fhandle), Ok(root));
    assert_eq!(c.mnt(b"/a/file").unwrap_err(), Mountstat3::Notdir);
    assert_eq!(c.mnt(b"/a/link").unwrap_err(), Mountstat3::Notdir, "links are not followed");
    assert_eq!(c.mnt(b"/a/link/etc").unwrap_err(), Mountstat3::Notdir, "links are not followed");
    assert_eq!(c.mnt(b"/a/nul\0").unwrap_err(), Mountstat3::Inval);
    assert_eq!(c.mnt(&[b'/'; 1025]).unwrap_err(), Mountstat3::Nametoolong);
    let long = [&b"/"[..], &[b'n'; 256]].concat();
    assert_eq!(c.mnt(&long).unwrap_err(), Mountstat3::Nametoolong);
}

#[test]
fn export_lists_every_name_with_its_networks() {
    let server = Serve::new().flags(&["--export", "/data", "--allow", "127.0.0.0/8,fd00::/8"]).start();
    let mut c = server.connect();
    let bytes = c.mount_call(Mount::Export, &());
    let exports: ExportList<'_> = whole(&bytes);
    let networks = List(vec![&b"127.0.0.0/8"[..], b"fd00::/8"]);
    let names: Vec<_> = exports.0.iter().map(|export| (export.directory, export.groups.clone())).collect();
    assert_eq!(names, [(&b"/"[..], networks.clone()), (b"/data", networks)]);
}

fn dump(c: &mut Client) -> Vec<(Vec<u8>, Vec<u8>)> {
    let bytes = c.mount_call(Mount::Dump, &());
    let mounts: MountList<'_> = whole(&bytes);
    mounts.0.iter().map(|mount| (mount.hostname.to_vec(), mount.directory.to_vec())).collect()
}

#[test]
fn dump_umnt_and_umntall_keep_the_list() {
    let server = Serve::new().start_on(|data| std::fs::create_dir(data.join("a")).unwrap());
    let mut c = server.connect();
    assert!(dump(&mut c).is_empty());
    c.mnt(b"/").unwrap();
    c.mnt(b"/a").unwrap();
    c.mnt(b"/a").unwrap();
    c.mnt(b"/none").unwrap_err();
    let entry = |path: &[u8]| (b"127.0.0.1".to_vec(), path.to_vec());
    assert_eq!(dump(&mut c), [entry(b"/"), entry(b"/a")]);
    assert!(c.mount_call(Mount::Umnt, &&b"/a"[..]).is_empty());
    assert!(c.mount_call(Mount::Umnt, &&b"/never"[..]).is_empty());
    assert_eq!(dump(&mut c), [entry(b"/")]);
    c.mnt(b"/a").unwrap();
    assert!(c.mount_call(Mount::Umntall, &()).is_empty());
    assert!(dump(&mut c).is_empty());
}

#[test]
fn clients_outside_the_networks_are_refused() {
    let server = Serve::new().flags(&["--allow", "192.0.2.0/24"]).start();
    let mut c = server.connect();
    let null = c.call_bytes((mount3::PROGRAM, mount3::VERSION, 0), &[]);
    assert_eq!(c.try_exchange(&null), None, "the connection is closed");
}
