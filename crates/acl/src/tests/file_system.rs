//! The bytes of attributes on real file systems: tmpfs, and the file system of temporary files.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use super::text::acl;
use crate::{PosixAcl, xattr};

fn get(path: &Path, name: &str) -> Result<PosixAcl, Errno> {
    let mut bytes = vec![0; 65536];
    let len = getxattr(path, name, &mut bytes[..])?;
    let acl = xattr::decode(&bytes[..len]).unwrap();
    assert_eq!(xattr::encode(&acl), bytes[..len]);
    Ok(acl)
}

#[test]
fn the_kernel_accepts_and_returns_our_bytes() {
    for parent in [Path::new("/dev/shm"), &std::env::temp_dir()] {
        let dir = tempfile::tempdir_in(parent).unwrap();
        let file = dir.path().join("file");
        fs::write(&file, b"").unwrap();
        for text in [
            "u::rw-,u:7:rwx,g::r--,m::rw-,o::---",
            "u::rwx,u:7:---,u:4000000000:r--,g::--x,g:8:rwx,g:9:-w-,m::r-x,o::r--",
            "u::rw-,g::rwx,m::r--,o::--x",
        ] {
            let mut acl = acl(text);
            let set = |path, name| setxattr(path, name, &xattr::encode(&acl), XattrFlags::empty());
            match set(&*file, xattr::ACCESS) {
                Err(Errno::OPNOTSUPP) => return println!("skipped: {} has no ACLs", parent.display()),
                done => done.unwrap(),
            }
            set(dir.path(), xattr::DEFAULT).unwrap();
            assert_eq!(get(&file, xattr::ACCESS), Ok(acl.clone()));
            assert_eq!(get(dir.path(), xattr::DEFAULT), Ok(acl.clone()));
            assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, acl.mode());
            for mode in [0o640, 0o777, 0o000, 0o751] {
                fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
                acl.set_mode(mode);
                assert_eq!(get(&file, xattr::ACCESS), Ok(acl.clone()), "chmod {mode:o}");
            }
        }
        let minimal = acl("u::rw-,g::r--,o::---");
        setxattr(&*file, xattr::ACCESS, &xattr::encode(&minimal), XattrFlags::empty()).unwrap();
        assert_eq!(get(&file, xattr::ACCESS), Err(Errno::NODATA), "Linux stores no minimal ACL");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, minimal.mode());
    }
}
