//! Tests of SETATTR: times, sizes, owners, modes, guards, and changes that the kernel adds.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use crate::harness::*;

#[test]
fn setattr_reports_the_attributes_around_it() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let sets = [
        mode(0o1711),
        size(100),
        Sattr3 { atime: at(5, 6), mtime: at(7, 8), ..Sattr3::default() },
        Sattr3 { mtime: SetTime::ServerTime, ..mode(0o600) },
        Sattr3::default(),
    ];
    for set in sets {
        let before = c.attr(&file);
        let wcc = c.setattr(&file, set).unwrap();
        let after = c.attr(&file);
        assert_wcc(&wcc, &before, &after);
        assert_eq!(after.mode, set.mode.unwrap_or(before.mode));
        assert_eq!(after.size, set.size.unwrap_or(before.size));
        if set == Sattr3::default() {
            assert_eq!(before, after, "nothing was asked for");
        } else {
            assert!(after.ctime > before.ctime);
        }
    }
    let times = (c.attr(&file).atime, c.attr(&file).mtime);
    assert_eq!(times.0, Nfstime3 { seconds: 5, nseconds: 6 });
    assert!(times.1.seconds > 1_000_000_000, "the server's clock");
}

#[test]
fn a_guard_that_does_not_match_changes_nothing() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let attr = c.attr(&file);
    let wrong = [
        Nfstime3 { nseconds: attr.ctime.nseconds ^ 1, ..attr.ctime },
        Nfstime3 { seconds: attr.ctime.seconds + 1, ..attr.ctime },
        Nfstime3::default(),
        Nfstime3 { seconds: u32::MAX, nseconds: u32::MAX },
    ];
    for guard in wrong {
        let failed = c.setattr_guarded(&file, mode(0o600), Some(guard)).unwrap_err();
        assert_eq!(failed.status, Nfsstat3::NotSync);
        assert_wcc(&failed.attributes, &attr, &attr);
    }
    c.setattr_guarded(&file, mode(0o600), Some(attr.ctime)).unwrap();
    assert_eq!(c.attr(&file).mode, 0o600);
    assert_eq!(c.setattr_guarded(&file, mode(0o644), Some(attr.ctime)).status(), Nfsstat3::NotSync);
}

#[test]
fn times_to_the_nanosecond_over_the_protocols_whole_range() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"d", 0o755);
    let link = c.symlink(&root, b"l", b"x").unwrap().object.unwrap();
    let file = c.new_file(&root, b"f", 0o644);
    for object in [file, dir, link] {
        for (seconds, nseconds) in [(0, 0), (1, 1), (1_700_000_000, 999_999_999), (u32::MAX, 123_456_789)] {
            let set =
                Sattr3 { atime: at(seconds, nseconds), mtime: at(seconds, nseconds), ..Sattr3::default() };
            c.setattr(&object, set).unwrap();
            let attr = c.attr(&object);
            let expected = Nfstime3 { seconds, nseconds };
            assert_eq!((attr.atime, attr.mtime), (expected, expected), "{:?}", attr.ftype);
        }
    }
    for nseconds in [1_000_000_000, u32::MAX] {
        let set = Sattr3 { mtime: at(1, nseconds), ..Sattr3::default() };
        assert_eq!(c.setattr(&file, set).status(), Nfsstat3::Inval);
    }
}

#[test]
fn times_the_protocol_cannot_say_show_as_the_nearest_it_can() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let on_disk = std::fs::File::options().write(true).open(server.data.join("f")).unwrap();
    let year = Duration::from_secs(365 * 86400);
    // The times of ext4 end in 2446, those of XFS in 2486.
    for (time, seconds) in
        [(SystemTime::UNIX_EPOCH - year, 0), (SystemTime::UNIX_EPOCH + 200 * year, u32::MAX)]
    {
        on_disk.set_modified(time).unwrap();
        assert_eq!(c.attr(&file).mtime.seconds, seconds);
        // A change of another attribute leaves the time on disk alone.
        c.setattr(&file, mode(0o600)).unwrap();
        assert_eq!(std::fs::metadata(server.data.join("f")).unwrap().modified().unwrap(), time);
    }
}

#[test]
fn truncating_down_and_up_leaves_zeroes() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    c.write(&file, 0, &[7; 10_000], StableHow::FileSync).unwrap();
    c.setattr(&file, size(5_000)).unwrap();
    c.setattr(&file, size(10_000)).unwrap();
    let read = c.read(&file, 0, 20_000).unwrap();
    assert_eq!(read.data, [vec![7; 5_000], vec![0; 5_000]].concat());
    assert!(read.eof);
    let far = (5 << 30) + 1;
    c.setattr(&file, size(far)).unwrap();
    let attr = c.attr(&file);
    assert_eq!(attr.size, far);
    assert!(attr.used < 1 << 20, "extending makes a hole");
    c.setattr(&file, size(0)).unwrap();
    assert_eq!(c.attr(&file).size, 0);
    assert_eq!(c.setattr(&root, size(0)).status(), Nfsstat3::Isdir);
    for too_large in [1 << 63, u64::MAX] {
        assert_eq!(c.setattr(&file, size(too_large)).status(), Nfsstat3::Fbig);
    }
}

#[test]
fn only_root_gives_files_away_and_only_owners_change_modes() {
    needs_root!();
    let server = Serve::unsquashed().start();
    let mut c = server.connect().acting_as(user(1000, 1000, &[2000]));
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o640);
    let owner = |uid| Sattr3 { uid: Some(uid), ..Sattr3::default() };
    let group = |gid| Sattr3 { gid: Some(gid), ..Sattr3::default() };
    assert_eq!(c.setattr(&file, owner(1001)).status(), Nfsstat3::Perm);
    assert_eq!(c.setattr(&file, group(3000)).status(), Nfsstat3::Perm);
    assert_eq!(c.setattr(&file, owner(1000)).status(), Nfsstat3::Ok, "to itself");
    assert_eq!(c.setattr(&file, group(2000)).status(), Nfsstat3::Ok, "to a group of its own");
    c.user = user(1001, 1001, &[2000]);
    assert_eq!(c.setattr(&file, mode(0o666)).status(), Nfsstat3::Perm);
    assert_eq!(c.setattr(&file, size(0)).status(), Nfsstat3::Acces);
    let times = Sattr3 { mtime: at(1, 1), atime: at(1, 1), ..Sattr3::default() };
    assert_eq!(c.setattr(&file, times).status(), Nfsstat3::Perm);
    let now = Sattr3 { mtime: SetTime::ServerTime, atime: SetTime::ServerTime, ..Sattr3::default() };
    assert_eq!(c.setattr(&file, now).status(), Nfsstat3::Acces);
    c.user = user(0, 0, &[]);
    c.setattr(&file, mode(0o660)).unwrap();
    c.user = user(1001, 1001, &[2000]);
    assert_eq!(c.setattr(&file, now).status(), Nfsstat3::Ok, "who may write may say now");
    assert_eq!(c.setattr(&file, size(3)).status(), Nfsstat3::Ok);
    c.user = user(0, 0, &[]);
    c.setattr(&file, Sattr3 { uid: Some(5), gid: Some(6), ..mode(0o4755) }).unwrap();
    let attr = c.attr(&file);
    assert_eq!((attr.uid, attr.gid, attr.mode), (5, 6, 0o4755), "all at once, the mode last");
}

#[test]
fn owners_truncate_their_files_whatever_the_mode() {
    needs_root!();
    let server = Serve::unsquashed().start();
    let mut c = server.connect().acting_as(user(1000, 1000, &[]));
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o000);
    c.write(&file, 0, b"12345678", StableHow::FileSync).unwrap();
    c.setattr(&file, size(3)).unwrap();
    assert_eq!(c.read(&file, 0, 10).unwrap().data, b"123");
}

#[test]
fn set_user_and_set_group_bits_end_with_a_write_of_another() {
    needs_root!();
    let server = Serve::unsquashed().start();
    let mut c = server.connect();
    let root = c.root();
    for (child, change) in [(b"w", 0), (b"t", 1), (b"c", 2)] {
        let file = c.new_file(&root, child, 0o777);
        c.setattr(&file, mode(0o6777)).unwrap();
        c.user = user(1000, 1000, &[]);
        match change {
            0 => drop(c.write(&file, 0, b"x", StableHow::FileSync).unwrap()),
            1 => drop(c.setattr(&file, size(9)).unwrap()),
            _ => drop(c.write(&file, 0, b"x", StableHow::Unstable).unwrap()),
        }
        assert_eq!(c.attr(&file).mode, 0o777, "{}", child.escape_ascii());
        assert_eq!(
            std::fs::metadata(server.data.join(str::from_utf8(child).unwrap())).unwrap().mode() & 0o7777,
            0o777
        );
        c.user = user(0, 0, &[]);
    }
    let file = c.new_file(&root, b"chown", 0o777);
    c.setattr(&file, mode(0o6777)).unwrap();
    c.setattr(&file, Sattr3 { uid: Some(1), ..Sattr3::default() }).unwrap();
    assert_eq!(c.attr(&file).mode, 0o777, "a new owner");
}

#[test]
fn a_set_group_bit_needs_the_group() {
    needs_root!();
    let server = Serve::unsquashed().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o755);
    c.setattr(&file, Sattr3 { uid: Some(1000), gid: Some(2000), ..Sattr3::default() }).unwrap();
    c.user = user(1000, 1000, &[]);
    c.setattr(&file, mode(0o2755)).unwrap();
    assert_eq!(c.attr(&file).mode, 0o755);
    c.user = user(1000, 1000, &[2000]);
    c.setattr(&file, mode(0o2755)).unwrap();
    assert_eq!(c.attr(&file).mode, 0o2755);
}

#[test]
fn file_type_bits_in_a_mode_are_ignored() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o100_644);
    assert_eq!(c.attr(&file).mode, 0o644);
    c.setattr(&file, mode(0o177_0600)).unwrap();
    assert_eq!((c.attr(&file).mode, c.attr(&file).ftype), (0o600, Ftype3::Reg));
}

/// A Linux client's open(2) with O_TRUNC sets the size and the server's time in one request.
#[test]
fn who_may_write_may_truncate_and_touch_in_one() {
    let server = Serve::new().flags(&["--squash", "none"]).start();
    let mut owner = server.connect();
    let root = owner.root();
    let file = owner.new_file(&root, b"shared", 0o666);
    owner.write(&file, 0, b"longer", StableHow::FileSync).unwrap();
    owner.setattr(&file, Sattr3 { mtime: at(1000, 0), ..Sattr3::default() }).unwrap();
    let mut other = server.connect().acting_as(user(1000, 1000, &[]));
    let truncate = Sattr3 { size: Some(0), mtime: SetTime::ServerTime, ..Sattr3::default() };
    other.setattr(&file, truncate).unwrap();
    let attr = other.attr(&file);
    assert_eq!(attr.size, 0);
    assert!(attr.mtime.seconds > 1000, "truncation sets the time");
}

/// For an empty file a Linux client does not truncate. It only sets the time.
#[test]
fn who_may_write_may_set_one_time_to_now() {
    let server = Serve::new().flags(&["--squash", "none"]).start();
    let mut owner = server.connect();
    let root = owner.root();
    let file = owner.new_file(&root, b"a", 0o666);
    let old = Sattr3 { atime: at(1000, 0), mtime: at(1000, 0), ..Sattr3::default() };
    owner.setattr(&file, old).unwrap();
    let mut other = server.connect().acting_as(user(2000, 2000, &[]));
    other.setattr(&file, Sattr3 { mtime: SetTime::ServerTime, ..Sattr3::default() }).unwrap();
    let attr = other.attr(&file);
    assert!(attr.mtime.seconds > 1000 && attr.atime.seconds == 1000);
    let given = Sattr3 { mtime: at(5, 0), ..Sattr3::default() };
    assert_eq!(other.setattr(&file, given).status(), Nfsstat3::Perm);
    owner.setattr(&file, mode(0o644)).unwrap();
    let now = Sattr3 { mtime: SetTime::ServerTime, ..Sattr3::default() };
    assert_eq!(other.setattr(&file, now).status(), Nfsstat3::Acces);
}
