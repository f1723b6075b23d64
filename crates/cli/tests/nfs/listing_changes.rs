//! Listings of directories that change: by clients, and by others on the host at the same time.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::harness::*;
use crate::listing::{Way, list};

/// Every listed child of a directory must be as GETATTR says; times of access aside.
fn assert_listed_as_it_is(c: &mut Client, dir: &FileHandle, after: &str) {
    for entry in list(c, dir, Way::Plus { dircount: 8192, maxcount: 32_768 }) {
        if let (Some(handle), Some(attributes)) = (entry.handle, entry.attributes) {
            let now = c.attr(&handle);
            let shown = entry.name.escape_ascii().to_string();
            assert_eq!(Fattr3 { atime: now.atime, ..attributes }, now, "{shown} after {after}");
            if !matches!(&entry.name[..], b"." | b"..") {
                assert_eq!(handle, c.find(dir, &entry.name), "{shown} after {after}");
            }
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
        // Only what has not changed for a while is remembered.
        std::thread::sleep(std::time::Duration::from_millis(30));
        for _ in 0..2 {
            assert_listed_as_it_is(&mut c, &dir, "nothing");
        }
        assert!(act(&mut c), "{name}");
        assert_listed_as_it_is(&mut c, &dir, name);
    }
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
        // The name stays, the file behind it is another one each time. Directly: faster than through the server.
        let new = server.data.join(format!("new-{n}"));
        std::fs::File::create(&new).unwrap();
        std::fs::rename(&new, server.data.join(format!("changing-{}", n % 20))).unwrap();
    });
}
