//! Tests of the handle map on a real directory: entries outlive the process, and spent identities lead nowhere.

use super::*;
use crate::sys::KERNEL_HANDLE_MAX;

/// The kind of ext4's and XFS's handles: inode number and generation of 32 bits each.
const INO_GENERATION: i32 = 1;

fn handle(ino: u32, generation: u32) -> KernelHandle {
    let mut bytes = [0; KERNEL_HANDLE_MAX];
    bytes[..4].copy_from_slice(&ino.to_ne_bytes());
    bytes[4..8].copy_from_slice(&generation.to_ne_bytes());
    KernelHandle { kind: INO_GENERATION, len: 8, bytes }
}

fn open(dir: &tempfile::TempDir) -> HandleMap {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    HandleMap::open(rustix::fs::open(dir.path(), flags, Mode::empty()).unwrap(), true).unwrap()
}

#[test]
fn an_alias_leads_both_ways_and_outlives_the_process() {
    let dir = tempfile::tempdir().unwrap();
    let aliases = open(&dir);
    assert!(aliases.is_empty() && !dir.path().join(PRIVATE).exists());
    aliases.insert(handle(10, 1), handle(20, 2)).unwrap();
    // The inode is recreated after another crash: no chain of entries grows.
    aliases.insert(handle(10, 1), handle(30, 3)).unwrap();
    for aliases in [aliases, open(&dir)] {
        assert_eq!(aliases.all(), [(handle(10, 1), handle(30, 3))]);
        assert_eq!(aliases.inner(&handle(10, 1)), handle(30, 3));
        assert_eq!(aliases.outer(handle(30, 3)).unwrap(), handle(10, 1));
        assert_eq!((aliases.fileid(30), aliases.fileid(20)), (10, 20));
        assert_eq!(aliases.outer(handle(20, 9)).unwrap(), handle(20, 9), "nobody shows that number");
    }
    let aliases = open(&dir);
    aliases.remove(&handle(10, 1)).unwrap();
    // The inode is gone, and another one may get its first identity.
    for aliases in [aliases, open(&dir)] {
        assert!(aliases.all().is_empty() && aliases.resolve(&handle(10, 1)).is_none());
        aliases.tidy().unwrap();
        assert!(!dir.path().join(PRIVATE).join(ALIASES).exists());
    }
    let aliases = open(&dir);
    assert_eq!(aliases.outer(handle(10, 2)).unwrap(), handle(10, 2));
    aliases.tidy().unwrap();
    assert!(open(&dir).is_empty() && !dir.path().join(PRIVATE).exists());
}

#[test]
fn an_identity_of_an_inode_that_is_gone_leads_nowhere_and_an_inode_that_gets_it_has_another_one() {
    let dir = tempfile::tempdir().unwrap();
    open(&dir).spend([handle(10, 1)]).unwrap();
    for _ in 0..2 {
        let aliases = open(&dir);
        assert_eq!(aliases.resolve(&handle(10, 1)), None);
        let given = aliases.outer(handle(10, 1)).unwrap();
        assert!(given.is_made_up() && given != nowhere());
        assert_eq!(aliases.resolve(&given), Some(handle(10, 1)));
        // The inode with the identity goes as well.
        aliases.remove(&given).unwrap();
        assert_eq!(aliases.resolve(&handle(10, 1)), None);
    }
    let aliases = open(&dir);
    assert_eq!(aliases.resolve(&handle(10, 2)), Some(handle(10, 2)), "the next generation");
    assert_eq!(aliases.outer(handle(10, 2)).unwrap(), handle(10, 2));
    assert_eq!(aliases.outer(handle(10, 1)).unwrap(), handle(10, 1), "nobody will get it");
}

#[test]
fn what_another_directory_has_is_taken_over() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (aliases, theirs) = (open(&dir), open(&other));
    aliases.insert(handle(10, 1), handle(20, 2)).unwrap();
    theirs.insert(handle(11, 1), handle(21, 2)).unwrap();
    aliases.spend([handle(12, 1)]).unwrap();
    theirs.spend([handle(13, 1)]).unwrap();
    for aliases in [&aliases, &theirs] {
        let slots = private_dir(aliases.private().unwrap(), SLOTS).unwrap();
        rustix::fs::mkdirat(&slots, "0", Mode::RWXU).unwrap();
    }
    aliases.gather(&theirs.root).unwrap();
    assert!(!other.path().join(PRIVATE).exists());
    for aliases in [&aliases, &open(&dir)] {
        assert_eq!(aliases.inner(&handle(10, 1)), handle(20, 2));
        assert_eq!(aliases.inner(&handle(11, 1)), handle(21, 2));
        assert!(aliases.is_spent(&handle(12, 1)) && aliases.is_spent(&handle(13, 1)));
    }
    assert_eq!(std::fs::read_dir(dir.path().join(PRIVATE).join(SLOTS)).unwrap().count(), 2);
}

#[test]
fn what_comes_by_a_number_that_an_alias_shows_gets_another_one_for_good() {
    let dir = tempfile::tempdir().unwrap();
    let aliases = open(&dir);
    aliases.insert(handle(10, 1), handle(20, 2)).unwrap();
    let newcomer = handle(10, 7);
    assert_eq!(aliases.outer_if_met(&newcomer), None);
    assert_eq!(aliases.all(), [(handle(10, 1), handle(20, 2))], "nothing was made up for that");
    let outer = aliases.outer(newcomer).unwrap();
    assert!(outer.is_made_up());
    assert_eq!(aliases.outer_if_met(&newcomer), Some(outer));
    assert_eq!(aliases.outer_if_met(&handle(20, 2)), Some(handle(10, 1)));
    let fileid = aliases.fileid(10);
    assert_eq!(Some(fileid), outer.number());
    assert_eq!(aliases.fileid(20), 10);
    for aliases in [aliases, open(&dir)] {
        assert_eq!(aliases.outer(newcomer).unwrap(), outer);
        assert_eq!(aliases.inner(&outer), newcomer);
        assert_eq!(aliases.fileid(10), fileid);
    }
    // Two recreated inodes may have got each other's numbers.
    let aliases = open(&dir);
    aliases.insert(handle(41, 1), handle(42, 5)).unwrap();
    aliases.insert(handle(42, 1), handle(41, 5)).unwrap();
    assert_eq!(aliases.outer(handle(42, 5)).unwrap(), handle(41, 1));
    assert_eq!((aliases.fileid(41), aliases.fileid(42)), (42, 41));
}
