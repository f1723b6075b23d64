//! READDIR and READDIRPLUS: complete, without doubles, within the bytes the client allows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::*;

/// How a listing is read.
#[derive(Clone, Copy)]
enum Way {
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

/// Reads the rest of a directory from a place on.
fn list_from(c: &mut Client, dir: &FileHandle, mut place: Place, way: Way) -> Vec<Listed> {
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

fn list(c: &mut Client, dir: &FileHandle, way: Way) -> Vec<Listed> {
    list_from(c, dir, START, way)
}

fn names(entries: &[Listed]) -> Vec<Vec<u8>> {
    entries.iter().map(|entry| entry.name.clone()).collect()
}

/// Names of all lengths, so that padding and bounds are met in every combination.
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
    // The largest entry has 280 bytes of its own, and 84 + 4 + 4 + 28 more with attributes and handle.
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
        // Listing the directory is an access to it.
        let without_atime = |attr: Option<Fattr3>| attr.map(|attr| Fattr3 { atime: attr.mtime, ..attr });
        assert_eq!(without_atime(entry.attributes), without_atime(found.obj_attributes));
        assert_eq!(entry.fileid, found.obj_attributes.unwrap().fileid);
    }
}

/// Every listed child of a directory must be as GETATTR says; times of access aside.
fn assert_listed_as_it_is(c: &mut Client, dir: &FileHandle, after: &str) {
    for entry in list(c, dir, Way::Plus { dircount: 8192, maxcount: 32_768 }) {
        if let (Some(handle), Some(attributes)) = (entry.handle, entry.attributes) {
            let now = c.attr(&handle);
            let shown = entry.name.escape_ascii().to_string();
            assert_eq!(Fattr3 { atime: now.atime, ..attributes }, now, "{shown} after {after}");
        }
    }
}

/// Listings remember what they saw: not over a change made by a client, whatever its kind.
#[test]
fn what_clients_change_is_listed_at_once() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"dir", 0o777);
    let sub = c.new_dir(&dir, b"sub", 0o777);
    let f = c.new_file(&dir, b"f", 0o666);
    let g = c.new_file(&dir, b"g", 0o666);
    c.new_file(&dir, b"h", 0o666);
    type Act<'a> = (&'a str, Box<dyn Fn(&mut Client) -> bool + 'a>);
    let acts: Vec<Act<'_>> = vec![
        ("WRITE", Box::new(|c| c.write(&f, 0, b"data", StableHow::Unstable).is_ok())),
        ("a stable WRITE", Box::new(|c| c.write(&f, 4, b"data", StableHow::FileSync).is_ok())),
        ("SETATTR", Box::new(|c| c.setattr(&f, mode(0o600)).is_ok())),
        ("a change of size", Box::new(|c| c.setattr(&f, size(1)).is_ok())),
        ("LINK", Box::new(|c| c.link(&f, &dir, b"f2").is_ok())),
        ("LINK elsewhere", Box::new(|c| c.link(&f, &root, b"f3").is_ok())),
        ("REMOVE of another link", Box::new(|c| c.remove(&dir, b"f2").is_ok())),
        ("REMOVE of a link elsewhere", Box::new(|c| c.remove(&root, b"f3").is_ok())),
        ("LINK again", Box::new(|c| c.link(&g, &root, b"g2").is_ok())),
        ("RENAME over a link elsewhere", Box::new(|c| c.rename((&dir, b"h"), (&root, b"g2")).is_ok())),
        ("RENAME", Box::new(|c| c.rename((&dir, b"g"), (&dir, b"g3")).is_ok())),
        ("CREATE below", Box::new(|c| c.create(&sub, b"x", CreateHow::Guarded(mode(0o644))).is_ok())),
        ("unchecked CREATE", Box::new(|c| c.create(&dir, b"f", CreateHow::Unchecked(size(0))).is_ok())),
        ("MKDIR below", Box::new(|c| c.mkdir(&sub, b"d", mode(0o755)).is_ok())),
        ("SYMLINK below", Box::new(|c| c.symlink(&sub, b"l", b"t").is_ok())),
        ("RMDIR below", Box::new(|c| c.rmdir(&sub, b"d").is_ok())),
        ("REMOVE below", Box::new(|c| c.remove(&sub, b"l").is_ok())),
        ("RENAME out of below", Box::new(|c| c.rename((&sub, b"x"), (&dir, b"x")).is_ok())),
    ];
    for (name, act) in &acts {
        // Only what has not changed for a while is remembered.
        std::thread::sleep(std::time::Duration::from_millis(30));
        for _ in 0..2 {
            assert_listed_as_it_is(&mut c, &dir, "nothing");
        }
        assert!(act(&mut c), "{name}");
        assert_listed_as_it_is(&mut c, &dir, name);
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
    // From every entry on, in any order, the rest is the same.
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
    // The verifier of an earlier instance is as good: the cookies are the file system's.
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

/// Lists while `churn` changes the directory; every name that was there throughout must come exactly once.
fn list_under_churn(
    entries: u32,
    rounds: usize,
    churn: impl Fn(&Server, &mut Client, &FileHandle, u32) + Sync,
) {
    let server = Serve::new().start_on(|data| {
        for n in 0..entries {
            std::fs::File::create(data.join(format!("stays-{n}"))).unwrap();
        }
    });
    let done = AtomicBool::new(false);
    let root = server.connect().root();
    std::thread::scope(|scope| {
        for worker in 0..3 {
            let (done, churn, root, server) = (&done, &churn, &root, &server);
            let mut c = server.connect();
            scope.spawn(move || {
                let mut n = worker;
                while !done.load(Ordering::Relaxed) {
                    churn(server, &mut c, root, n);
                    n += 3;
                }
            });
        }
        // Ends the others also when this one panics.
        struct Set<'a>(&'a AtomicBool);
        impl Drop for Set<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let _end = Set(&done);
        let mut c = server.connect();
        for round in 0..rounds {
            let way = match round % 3 {
                0 => Way::Plain { count: 700 },
                1 => Way::Plus { dircount: 1000, maxcount: 3000 },
                _ => Way::Plus { dircount: 32_768, maxcount: 65_536 },
            };
            let mut times: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
            for entry in list(&mut c, &root, way) {
                if let (Some(attributes), Some(handle)) = (entry.attributes, entry.handle) {
                    assert_eq!(attributes.fileid, entry.fileid, "attributes of another file");
                    if round % 3 == 1
                        && let Ok(now) = c.getattr(&handle)
                    {
                        assert_eq!(now.fileid, entry.fileid, "the handle of another file");
                    }
                }
                *times.entry(entry.name).or_default() += 1;
            }
            for n in 0..entries {
                let name = format!("stays-{n}").into_bytes();
                assert_eq!(times.get(&name), Some(&1), "stays-{n} in round {round}");
            }
        }
    });
}

#[test]
fn what_stays_is_listed_once_while_others_create_and_remove() {
    list_under_churn(500, 15, |_, c, root, n| {
        let child = format!("comes-{n}-{}", "x".repeat((n % 50) as usize));
        c.new_file(root, child.as_bytes(), 0o644);
        c.remove(root, child.as_bytes()).unwrap();
    });
}

#[test]
fn attributes_and_handle_of_an_entry_belong_together_while_names_are_exchanged() {
    list_under_churn(50, 100, |server, _, _, n| {
        // The name stays, the file behind it is another one each time. Directly: faster than through the server.
        let new = server.data.join(format!("new-{n}"));
        std::fs::File::create(&new).unwrap();
        std::fs::rename(&new, server.data.join(format!("changing-{}", n % 20))).unwrap();
    });
}

/// 200,000 entries, or as many as FOREBAY_TEST_ENTRIES says.
#[test]
fn a_large_directory_is_listed_completely() {
    let entries: u64 =
        std::env::var("FOREBAY_TEST_ENTRIES").ok().map_or(200_000, |text| text.parse().unwrap());
    let server = Serve::new().start_on(|data| {
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

/// Listings remember attributes for a moment: every way to change an object through the server must be seen at once.
#[test]
fn a_listing_shows_every_change_at_once() {
    let server = Serve::new().flags(&["--squash", "none"]).start_on(|data| {
        for name in ["written", "truncated", "mode", "linked", "unlinked", "moved", "inner/deep", "committed"]
        {
            let path = data.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, b"0123456789").unwrap();
        }
        std::fs::hard_link(data.join("unlinked"), data.join("inner/other name")).unwrap();
        // Names are remembered only under a directory time older than a clock tick.
        let old = std::time::SystemTime::UNIX_EPOCH;
        std::fs::File::open(data).unwrap().set_modified(old).unwrap();
    });
    let mut c = server.connect();
    let root = c.root();
    let whole = Way::Plus { dircount: 1 << 20, maxcount: 1 << 20 };
    let changes: [fn(&mut Client, &FileHandle); 9] = [
        |c, root| {
            let file = c.find(root, b"written");
            c.write(&file, 8, b"more", StableHow::Unstable).unwrap();
        },
        |c, root| {
            let file = c.find(root, b"truncated");
            c.setattr(&file, size(3)).unwrap();
        },
        |c, root| {
            let file = c.find(root, b"mode");
            c.setattr(&file, mode(0o600)).unwrap();
        },
        |c, root| {
            let (file, inner) = (c.find(root, b"linked"), c.find(root, b"inner"));
            c.link(&file, &inner, b"second name").unwrap();
        },
        |c, root| {
            let inner = c.find(root, b"inner");
            c.remove(&inner, b"other name").unwrap();
        },
        |c, root| {
            let inner = c.find(root, b"inner");
            c.rename((root, b"moved"), (&inner, b"moved")).unwrap();
            c.rename((&inner, b"moved"), (root, b"moved")).unwrap();
        },
        |c, root| {
            let inner = c.find(root, b"inner");
            c.new_dir(&inner, b"new", 0o755);
        },
        |c, root| {
            let how = CreateHow::Unchecked(size(0));
            c.create(root, b"committed", how).unwrap();
        },
        |c, root| {
            c.remove(root, b"mode").unwrap();
            c.new_file(root, b"mode", 0o640);
        },
    ];
    for (n, change) in changes.iter().enumerate() {
        // Longer than a clock tick, so that the listings before the change are remembered at all.
        std::thread::sleep(std::time::Duration::from_millis(40));
        list(&mut c, &root, whole);
        list(&mut c, &root, whole);
        change(&mut c, &root);
        for listed in list(&mut c, &root, whole) {
            let Some(handle) = listed.handle else { continue };
            assert_eq!(listed.attributes, Some(c.attr(&handle)), "{:?} after change {n}", listed.name);
            if listed.name != b"." && listed.name != b".." {
                assert_eq!(handle, c.find(&root, &listed.name), "after change {n}");
            }
        }
    }
}
