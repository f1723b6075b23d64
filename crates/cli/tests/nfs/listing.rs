//! Tests of READDIR and READDIRPLUS: listings are complete, without duplicates, and within the size that the client
//! allows.

use std::collections::BTreeSet;

use crate::harness::*;

/// The procedure and sizes with which a listing is read.
#[derive(Clone, Copy)]
pub(crate) enum Way {
    Plain { count: u32 },
    Plus { dircount: u32, maxcount: u32 },
}

fn page(c: &mut Client, dir: &FileHandle, place: Place, way: Way) -> Result<Page, Nfsstat3> {
    match way {
        Way::Plain { count } => c.readdir(dir, place, count),
        Way::Plus { dircount, maxcount } => c.readdirplus(dir, place, dircount, maxcount),
    }
    .map_err(|failed| failed.status)
}

/// Reads the remaining entries of a directory from a place on.
pub(crate) fn list_from(c: &mut Client, dir: &FileHandle, mut place: Place, way: Way) -> Vec<Listed> {
    let mut all = Vec::new();
    loop {
        let page = page(c, dir, place, way).unwrap();
        let (Way::Plain { count: most } | Way::Plus { maxcount: most, .. }) = way;
        assert!(page.bytes <= most as usize, "{} bytes for {most}", page.bytes);
        if let Way::Plus { dircount, .. } = way {
            let names: usize = page.entries.iter().map(|entry| entry_size(entry.name.len())).sum();
            assert!(names <= dircount as usize || page.entries.len() == 1, "{names} for {dircount}");
        }
        assert!(page.eof || !page.entries.is_empty(), "no progress");
        let eof = page.eof;
        if let Some(last) = page.entries.last() {
            place = (last.cookie, page.verifier);
        }
        all.extend(page.entries);
        if eof {
            return all;
        }
    }
}

pub(crate) fn list(c: &mut Client, dir: &FileHandle, way: Way) -> Vec<Listed> {
    list_from(c, dir, START, way)
}

fn names(entries: &[Listed]) -> Vec<Vec<u8>> {
    entries.iter().map(|entry| entry.name.clone()).collect()
}

/// Returns names of all lengths, so that every combination of padding and bounds occurs.
fn some_names() -> Vec<String> {
    (0..300).map(|n| format!("{n:03}{}", "x".repeat(n % 253))).collect()
}

fn server_with_names() -> Server {
    Serve::new().start_on(|data| {
        for name in some_names() {
            std::fs::write(data.join(name), "").unwrap();
        }
    })
}

#[test]
fn every_page_size_lists_everything_once() {
    let server = server_with_names();
    let mut c = server.connect();
    let root = c.root();
    let mut expected: BTreeSet<Vec<u8>> = some_names().into_iter().map(String::into_bytes).collect();
    expected.extend([b".".to_vec(), b"..".to_vec()]);
    // The largest entry has 280 bytes, and 84 + 4 + 4 + 28 further bytes with attributes and handle.
    let ways = [400, 401, 512, 1000, 4096, 65_536, 1 << 20, u32::MAX]
        .map(|count| Way::Plain { count })
        .into_iter()
        .chain(
            [(1, 600), (u32::MAX, 600), (300, 4096), (1000, 65_536), (8192, 32_768), (u32::MAX, u32::MAX)]
                .map(|(dircount, maxcount)| Way::Plus { dircount, maxcount }),
        );
    for way in ways {
        let all = names(&list(&mut c, &root, way));
        let set: BTreeSet<Vec<u8>> = all.iter().cloned().collect();
        assert_eq!(all.len(), set.len(), "doubles");
        assert_eq!(set, expected);
    }
}

#[test]
fn plus_tells_what_getattr_and_lookup_tell() {
    let server = server_with_names();
    let mut c = server.connect();
    let root = c.root();
    c.new_dir(&root, b"dir", 0o755);
    c.symlink(&root, b"link", b"x").unwrap();
    c.mknod(&root, b"fifo", MknodData::Fifo(mode(0o600))).unwrap();
    for entry in list(&mut c, &root, Way::Plus { dircount: 8192, maxcount: 32_768 }) {
        if entry.name == b".." {
            continue;
        }
        let found = c.lookup(&root, &entry.name).unwrap();
        assert_eq!(entry.handle, Some(found.object));
        // Listing the directory is an access to it, so its atime is left out.
        let without_atime = |attr: Option<Fattr3>| attr.map(|attr| Fattr3 { atime: attr.mtime, ..attr });
        assert_eq!(without_atime(entry.attributes), without_atime(found.obj_attributes));
        assert_eq!(entry.fileid, found.obj_attributes.unwrap().fileid);
    }
}

#[test]
fn bounds_are_kept_to_the_byte() {
    let server = Serve::new().start_on(|data| std::fs::write(data.join("a-file"), "").unwrap());
    let mut c = server.connect();
    let root = c.root();
    let whole = c.readdir(&root, START, 4096).unwrap();
    assert!(whole.eof && whole.entries.len() == 3);
    let exact = whole.bytes as u32;
    let page = c.readdir(&root, START, exact).unwrap();
    assert_eq!((page.bytes as u32, page.eof), (exact, true));
    let page = c.readdir(&root, START, exact - 1).unwrap();
    assert_eq!((page.entries.len(), page.eof), (2, false));

    let whole = c.readdirplus(&root, START, 4096, 8192).unwrap();
    let exact = whole.bytes as u32;
    let page = c.readdirplus(&root, START, 4096, exact).unwrap();
    assert_eq!((page.bytes as u32, page.eof), (exact, true));
    let page = c.readdirplus(&root, START, 4096, exact - 1).unwrap();
    assert_eq!((page.entries.len(), page.eof), (2, false));
    let of_names: u32 = whole.entries.iter().map(|entry| entry_size(entry.name.len()) as u32).sum();
    assert!(c.readdirplus(&root, START, of_names, 8192).unwrap().eof);
    let page = c.readdirplus(&root, START, of_names - 1, 8192).unwrap();
    assert_eq!((page.entries.len(), page.eof), (2, false));
    for dircount in [0, 1] {
        let page = c.readdirplus(&root, START, dircount, 8192).unwrap();
        assert_eq!((page.entries.len(), page.eof), (1, false), "dircount is a hint");
    }
}

#[test]
fn counts_too_small_for_one_entry() {
    let server = server_with_names();
    let mut c = server.connect();
    let root = c.root();
    for count in [0, 1, 88, 103, 104] {
        assert_eq!(c.readdir(&root, START, count).status(), Nfsstat3::Toosmall, "{count}");
        assert_eq!(c.readdirplus(&root, START, count, count).status(), Nfsstat3::Toosmall, "{count}");
        assert_eq!(c.readdirplus(&root, START, 8192, count).status(), Nfsstat3::Toosmall, "{count}");
    }
    let one = c.readdir(&root, START, 104 + 24 + 4).unwrap();
    assert_eq!((one.entries.len(), one.eof), (1, false));
}

#[test]
fn one_entry_at_a_time() {
    let server = server_with_names();
    let mut c = server.connect();
    let root = c.root();
    let expected = names(&list(&mut c, &root, Way::Plain { count: 1 << 20 }));
    let one = list(&mut c, &root, Way::Plus { dircount: 1, maxcount: 1 << 20 });
    assert_eq!(names(&one), expected);
    // A listing that starts at any entry, in any order, returns the remaining entries.
    let verifier = c.readdir(&root, START, 4096).unwrap().verifier;
    for (n, entry) in one.iter().enumerate().rev().step_by(7) {
        let rest = list_from(&mut c, &root, (entry.cookie, verifier), Way::Plain { count: 8192 });
        assert_eq!(names(&rest), expected[n + 1..]);
    }
}

#[test]
fn an_empty_directory_and_the_end_of_a_full_one() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"d", 0o755);
    let page = c.readdir(&dir, START, 4096).unwrap();
    let found: BTreeSet<Vec<u8>> = names(&page.entries).into_iter().collect();
    assert_eq!(found, BTreeSet::from([b".".to_vec(), b"..".to_vec()]));
    assert!(page.eof);
    let attr = c.attr(&dir);
    assert_eq!(page.attributes.map(|before| Fattr3 { atime: attr.atime, ..before }), Some(attr));
    let end = (page.entries.last().unwrap().cookie, page.verifier);
    for _ in 0..2 {
        let page = c.readdir(&dir, end, 4096).unwrap();
        assert!(page.entries.is_empty() && page.eof);
        let page = c.readdirplus(&dir, end, 4096, 4096).unwrap();
        assert!(page.entries.is_empty() && page.eof);
    }
}

#[test]
fn cookies_and_verifiers_that_are_not_ours() {
    let mut server = server_with_names();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"d", 0o755);
    let page = c.readdir(&root, START, 4096).unwrap();
    let cookie = page.entries[3].cookie;
    let others = c.readdir(&dir, START, 4096).unwrap().verifier;
    for verifier in [[0; 8], [0xff; 8], others] {
        assert_eq!(c.readdir(&root, (cookie, verifier), 4096).status(), Nfsstat3::BadCookie);
        assert_eq!(c.readdirplus(&root, (cookie, verifier), 4096, 4096).status(), Nfsstat3::BadCookie);
    }
    assert_eq!(c.readdir(&root, (u64::MAX, page.verifier), 4096).status(), Nfsstat3::BadCookie);
    // The verifier of an earlier server is valid, because the cookies come from the file system.
    let rest = list_from(&mut c, &root, (cookie, page.verifier), Way::Plain { count: 4096 });
    server.restart();
    let mut c = server.connect();
    let again = list_from(&mut c, &root, (cookie, page.verifier), Way::Plain { count: 4096 });
    assert_eq!(names(&rest), names(&again));
}

#[test]
fn listing_needs_the_right_to_read_and_plus_the_right_to_search() {
    needs_root!();
    let server = Serve::new().flags(&["--squash", "none"]).start();
    let mut c = server.connect();
    let root = c.root();
    for (child, bits) in [(&b"r"[..], 0o744), (b"x", 0o711), (b"rx", 0o755)] {
        let dir = c.new_dir(&root, child, 0o755);
        c.new_file(&dir, b"f", 0o644);
        c.setattr(&dir, mode(bits)).unwrap();
        c.user = user(1000, 1000, &[]);
        let plain = c.readdir(&dir, START, 4096);
        let plus = c.readdirplus(&dir, START, 4096, 8192);
        assert_eq!(plain.is_ok(), child != b"x");
        assert_eq!(plus.is_ok(), child != b"x");
        if let Ok(page) = plus {
            let file = page.entries.iter().find(|entry| entry.name == b"f").unwrap();
            assert_eq!(file.handle.is_some(), child == b"rx");
            assert_eq!(file.attributes.is_some(), child == b"rx");
        }
        c.user = user(0, 0, &[]);
    }
    let file = c.new_file(&root, b"f", 0o644);
    assert_eq!(c.readdir(&file, START, 4096).status(), Nfsstat3::Notdir);
}

/// The directory has 200,000 entries, or the number in FOREBAY_TEST_ENTRIES. It is on a file system of its own if this
/// machine can mount one: for minutes, ext4 searches among inodes that were removed when it makes others.
#[test]
fn a_large_directory_is_listed_completely() {
    let entries: u64 =
        std::env::var("FOREBAY_TEST_ENTRIES").ok().map_or(200_000, |text| text.parse().unwrap());
    let home = tempfile::tempdir().unwrap();
    let inodes = (entries + 1000).to_string();
    let disk = match rustix::process::geteuid().is_root() {
        true => LoopDisk::with(home.path(), "ext4", 1 << 30, &["-N", &inodes]),
        false => None,
    };
    let serve = disk.as_ref().map_or_else(Serve::new, LoopDisk::serve);
    let server = serve.start_on(|data| {
        for n in 0..entries {
            std::fs::File::create(data.join(n.to_string())).unwrap();
        }
    });
    let mut c = server.connect();
    let root = c.root();
    for way in [Way::Plain { count: 1 << 20 }, Way::Plus { dircount: 1 << 20, maxcount: 1 << 20 }] {
        let mut seen = vec![false; entries as usize];
        let mut place = START;
        loop {
            let page = page(&mut c, &root, place, way).unwrap();
            for entry in &page.entries {
                let Ok(n) = str::from_utf8(&entry.name).unwrap().parse::<usize>() else { continue };
                assert!(!std::mem::replace(&mut seen[n], true), "{n} comes twice");
            }
            place = (page.entries.last().map_or(place.0, |entry| entry.cookie), page.verifier);
            if page.eof {
                break;
            }
        }
        assert_eq!(seen.iter().filter(|seen| !**seen).count(), 0, "names are missing");
    }
}
