//! Tests of listings of directories that clients and other programs on the host change at one time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::*;
use crate::listing::{Way, list};

/// Asserts that every listed child of a directory has the attributes that GETATTR returns, except atime.
fn assert_listed_as_it_is(c: &mut Client, dir: &FileHandle, after: &str) {
    for entry in list(c, dir, Way::Plus { dircount: 8192, maxcount: 32_768 }) {
        if let (Some(handle), Some(attributes)) = (entry.handle, entry.attributes) {
            let now = c.attr(&handle);
            let shown = entry.name.escape_ascii().to_string();
            let later = has_coarse_times() && attributes.ctime < now.ctime;
            let ctime = if later { now.ctime } else { attributes.ctime };
            assert_eq!(Fattr3 { atime: now.atime, ctime, ..attributes }, now, "{shown} after {after}");
            if !matches!(&entry.name[..], b"." | b"..") {
                assert_eq!(handle, c.find(dir, &entry.name), "{shown} after {after}");
            }
        }
    }
}

/// The directory cache must not outlive any kind of change by a client.
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
        (
            "REMOVE and CREATE of one name",
            Box::new(|c| {
                c.remove(&dir, b"g3").is_ok()
                    && c.create(&dir, b"g3", CreateHow::Guarded(mode(0o640))).is_ok()
            }),
        ),
        ("RENAME out of below", Box::new(|c| c.rename((&sub, b"x"), (&dir, b"x")).is_ok())),
    ];
    for (name, act) in &acts {
        // The server caches a listing only if the directory has not changed for a while.
        std::thread::sleep(std::time::Duration::from_millis(30));
        for _ in 0..2 {
            assert_listed_as_it_is(&mut c, &dir, "nothing");
        }
        assert!(act(&mut c), "{name}");
        assert_listed_as_it_is(&mut c, &dir, name);
    }
}

/// Lists a directory while `churn` changes it. Every name that exists throughout must be listed exactly once.
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
        let _done = DoneAtEnd(&done);
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
        // The name stays, but its file is replaced each time. The change is external, because that is faster.
        let new = server.data.join(format!("new-{n}"));
        std::fs::File::create(&new).unwrap();
        std::fs::rename(&new, server.data.join(format!("changing-{}", n % 20))).unwrap();
    });
}

fn listings_from_memory(server: &Server) -> u64 {
    server.status()["metadata"]["listing_hits"].as_u64().unwrap()
}

/// After any creation or move of a name, the next listing has it, from any place and in pages of any size.
#[test]
fn listings_from_memory_are_as_the_directory_is() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let dir = c.new_dir(&root, b"dir", 0o777);
    let at = |n: u64| server.data.join(format!("dir/{n}"));
    let ways = [(4000, 8192), (1 << 20, 1 << 20), (1, 600), (600, 1500)];
    let ways = ways.map(|(dircount, maxcount)| Way::Plus { dircount, maxcount });
    let mut seed = 7u64;
    let mut draw = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for n in 0..40 {
        c.new_file(&dir, n.to_string().as_bytes(), 0o644);
    }
    for round in 0..60 {
        // The server caches a listing only if the directory has not changed for a while.
        std::thread::sleep(std::time::Duration::from_millis(30));
        for _ in 0..2 {
            list(&mut c, &dir, ways[draw(4) as usize]);
        }
        let (one, other) = (draw(60), draw(60));
        let name = |n: u64| n.to_string().into_bytes();
        // Most of these changes may also fail.
        match draw(8) {
            0 => drop(c.create(&dir, &name(one), CreateHow::Guarded(mode(0o600)))),
            1 => drop(c.remove(&dir, &name(one))),
            2 => drop(c.rename((&dir, &name(one)), (&dir, &name(other)))),
            3 => drop(c.lookup(&dir, &name(one)).map(|file| c.link(&file.object, &dir, &name(other)))),
            4 => drop(
                c.lookup(&dir, &name(one))
                    .map(|file| c.write(&file.object, round, b"x", StableHow::FileSync)),
            ),
            5 => drop(std::fs::File::create_new(at(one))),
            6 => drop(std::fs::remove_file(at(one))),
            _ => drop(std::fs::rename(at(one), at(other))),
        }
        for way in ways {
            let listed = list(&mut c, &dir, way);
            let names: std::collections::BTreeSet<_> =
                listed.iter().map(|entry| entry.name.clone()).collect();
            assert_eq!(names.len(), listed.len(), "doubles in round {round}");
            let there = std::fs::read_dir(server.data.join("dir"))
                .unwrap()
                .map(|entry| std::os::unix::ffi::OsStringExt::into_vec(entry.unwrap().file_name()));
            let there = there.chain([b".".to_vec(), b"..".to_vec()]).collect();
            assert_eq!(names, there, "round {round}");
        }
        assert_listed_as_it_is(&mut c, &dir, &format!("round {round}"));
    }
    assert!(listings_from_memory(&server) > 60, "little came from memory");
}

/// While writers continue, a listing must contain every change acknowledged before the listing began.
#[test]
fn listings_from_memory_never_go_back_in_time() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let files: Vec<_> = (0..24u8).map(|n| c.new_file(&root, &[b'a' + n], 0o666)).collect();
    let sizes: Vec<_> = files.iter().map(|_| std::sync::atomic::AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    std::thread::sleep(std::time::Duration::from_millis(30));
    std::thread::scope(|scope| {
        let _done = DoneAtEnd(&done);
        for writer in 0..3 {
            let (mut c, done, files, sizes) = (server.connect(), &done, &files, &sizes);
            scope.spawn(move || {
                for size in 1u64.. {
                    for n in (writer..files.len()).step_by(3) {
                        if done.load(Ordering::Relaxed) {
                            return;
                        }
                        if size.is_multiple_of(5) {
                            c.setattr(&files[n], crate::harness::size(size)).unwrap();
                        } else {
                            c.write(&files[n], size - 1, b"x", StableHow::Unstable).unwrap();
                        }
                        sizes[n].store(size, Ordering::Release);
                    }
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            });
        }
        for round in 0..300 {
            let least: Vec<_> = sizes.iter().map(|size| size.load(Ordering::Acquire)).collect();
            let way = Way::Plus { dircount: 1 << 20, maxcount: if round % 2 == 0 { 1 << 20 } else { 3000 } };
            for entry in
                list(&mut c, &root, way).iter().filter(|entry| entry.name.len() == 1 && entry.name[0] != b'.')
            {
                let size = entry.attributes.unwrap().size;
                let n = usize::from(entry.name[0] - b'a');
                assert!(size >= least[n], "file {n}: {size} after {}", least[n]);
            }
        }
    });
    assert!(listings_from_memory(&server) > 0);
}
