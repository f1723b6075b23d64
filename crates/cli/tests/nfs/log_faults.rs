//! Tests of the log of changes when the journal of a file system fails, or the log itself.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_wire::nfs4::{CreateHow as Create4, Fattr, Nfsstat4, OpenHow, share};

use crate::harness::*;
use crate::nfs4::Client4;

/// The events of a file system that lost a commit, and of one that shut itself down before it was asked for a commit.
const JOURNAL_FAILS: [&str; 2] =
    ["the journal of a served file system fails", "the journal of a served file system takes no commit"];

fn commits(server: &Server) -> u64 {
    server.status()["durability"]["operations"].as_u64().unwrap()
}

fn events(server: &Server) -> String {
    server.ask(&["events", "-n", "100"])
}

/// Cuts the power of `array` and makes files in its directory `dir` until the server reports that the journal fails.
/// A change from before the cut may be in the journal already. Then no commit of it can fail.
fn fail_journal(array: &Array, server: &Server, c: &mut Client, dir: &FileHandle) {
    array.cut_power("1");
    let mut made = 0;
    wait_for(|| {
        let name = format!("after the cut {made}").into_bytes();
        let _may_fail = c.create(dir, &name, CreateHow::Guarded(mode(0o644)));
        made += 1;
        let told = events(server);
        JOURNAL_FAILS.iter().any(|event| told.contains(event))
    });
}

#[test]
fn a_flush_ends_with_the_error_when_what_the_log_has_cannot_be_made_durable() {
    let Some(array) = Array::instant("ext4") else { return };
    let mut server = array.serve().cached().start();
    let mut c = server.connect();
    let root = c.root();
    c.new_file(&root, b"f", 0o644);
    fail_journal(&array, &server, &mut c, &root);
    let (send, ended) = std::sync::mpsc::channel();
    let output = std::thread::scope(|scope| {
        let server = &server;
        scope.spawn(move || send.send(server.try_ask(&["flush", "--wait"])).unwrap());
        ended.recv_timeout(std::time::Duration::from_secs(60)).unwrap_or_else(|_| {
            // The hanging thread cannot be joined, so the test process aborts.
            eprintln!("the flush does not end");
            std::process::abort()
        })
    });
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("not everything could be destaged: the backing store fails"), "{said}");
    server.kill();
}

/// Returns a server of two file systems, a connection, and the two roots.
fn serve_both(first: &Array, second: &Array) -> (Server, Client, [FileHandle; 2]) {
    let export = |name: &str, array: &Array| {
        let at = array.at.display();
        format!(
            "[[export]]\npath='{at}'\nname='{name}'\n[[export.client]]\nnetworks=['127.0.0.1']\nsquash='none'\n"
        )
    };
    let exports = [export("/first", first), export("/second", second)].concat();
    let server = Serve::new().exports(&exports).cached().start();
    let mut c = server.connect();
    let roots = [&b"/first"[..], b"/second"].map(|name| c.mnt(name).unwrap().fhandle);
    (server, c, roots)
}

#[test]
fn the_journal_of_one_file_system_fails_and_others_have_checkpoints() {
    let (Some(broken), Some(sound)) = (Array::instant("xfs"), Array::instant("ext4")) else { return };
    let (mut server, mut c, [first, second]) = serve_both(&broken, &sound);
    let file = c.new_file(&first, b"f", 0o644);
    fail_journal(&broken, &server, &mut c, &first);
    assert!(server.status()["health"].to_string().contains(broken.at.to_str().unwrap()));
    let before = commits(&server);
    let made = c.new_file(&second, b"g", 0o644);
    wait_for(|| commits(&server) > before);
    assert_eq!(c.find(&second, b"g"), made);
    // The link's text is longer than a record, so the link needs a checkpoint.
    assert_eq!(c.symlink(&second, b"long", &[b't'; 3000]).status(), Nfsstat3::Ok);
    assert_eq!(c.create(&first, b"h", CreateHow::Guarded(mode(0o644))).status(), Nfsstat3::Io);
    assert_eq!(c.setattr(&file, mode(0o600)).status(), Nfsstat3::Io);
    server.kill();
}

/// Makes four times `each` links in `dir`, with records of the largest size. With 1200 they exceed their share of the
/// log; with 3000 they exceed the log.
fn overfill(server: &Server, dir: FileHandle, each: usize) {
    let threads = 4;
    let (send, ended) = std::sync::mpsc::channel();
    for thread in 0..threads {
        let (mut c, send) = (server.connect(), send.clone());
        std::thread::spawn(move || {
            for n in 0..each {
                let name = format!("{thread}.{n}").into_bytes();
                c.symlink(&dir, &name, &[b't'; 2048]).unwrap();
            }
            send.send(()).unwrap();
        });
    }
    for _ in 0..threads {
        let patience = std::time::Duration::from_secs(120);
        ended.recv_timeout(patience).expect("the log is full of what cannot be let go");
    }
}

#[test]
fn a_journal_that_does_not_answer_holds_up_no_other_file_system() {
    let (Some(slow), Some(sound)) = (Array::instant("xfs"), Array::instant("ext4")) else { return };
    let (mut server, mut c, [first, second]) = serve_both(&slow, &sound);
    let name = |n: usize| format!("file{n}").into_bytes();
    let made: Vec<_> = (0..300).map(|n| c.new_file(&first, &name(n), 0o644)).collect();
    let hanging = Hanging::begin(&slow);
    overfill(&server, second, 1200);
    wait_for(|| events(&server).contains("has not answered"));
    assert!(server.status()["health"].to_string().contains(slow.at.to_str().unwrap()));
    // The link's text is longer than a record, so the link needs a checkpoint.
    assert_eq!(c.symlink(&second, b"long", &[b't'; 3000]).status(), Nfsstat3::Ok);
    assert_eq!(c.find(&first, &name(7)), made[7]);
    let create = |c: &mut Client, name| c.create(&first, name, CreateHow::Guarded(mode(0o644))).status();
    assert_eq!(create(&mut c, b"later"), Nfsstat3::Jukebox);
    drop(hanging);
    wait_for(|| events(&server).contains("works again"));
    assert_eq!(create(&mut c, b"later"), Nfsstat3::Ok);
    let later = c.find(&first, b"later");
    slow.cut_power("3");
    server.kill();
    assert!(slow.power_on());
    server.start();
    let mut c = server.connect();
    assert_eq!(c.find(&first, b"later"), later);
    for (n, made) in made.iter().enumerate() {
        assert_eq!(c.find(&first, &name(n)), *made);
    }
}

#[test]
fn what_is_dirty_of_a_file_system_that_does_not_answer_holds_up_no_other() {
    // The size is below the size at which a write may bypass the log.
    const PIECE: usize = 64 << 10;
    let (Some(slow), Some(sound)) = (Array::instant("xfs"), Array::instant("ext4")) else { return };
    let (mut server, mut c, [first, second]) = serve_both(&slow, &sound);
    let (stuck, other) = (c.new_file(&first, b"f", 0o644), c.new_file(&second, b"g", 0o644));
    let contents = |n: usize| vec![(n % 255) as u8 + 1; PIECE];
    let write = |c: &mut Client, file: &FileHandle, n: usize| {
        c.write(file, (n * PIECE) as u64, &contents(n), StableHow::FileSync).status()
    };
    assert_eq!(write(&mut c, &stuck, 0), Nfsstat3::Ok);
    server.flush();
    let hanging = Hanging::begin(&slow);
    let taken = (1..8).take_while(|n| write(&mut c, &stuck, *n) == Nfsstat3::Ok).count() + 1;
    assert_eq!(taken, 8);
    wait_for(|| events(&server).contains("backing-late"));
    assert!(server.status()["health"].to_string().contains(slow.at.to_str().unwrap()));
    // The two cache files have 64 MiB each. The volume in trouble gets at most a quarter of their room.
    let more = (8..1600).take_while(|n| write(&mut c, &stuck, *n) == Nfsstat3::Ok).count();
    assert!((80..800).contains(&more), "{more} pieces more");
    assert_eq!(write(&mut c, &stuck, 8 + more), Nfsstat3::Jukebox);
    for n in 0..3200 {
        assert_eq!(write(&mut c, &other, n), Nfsstat3::Ok);
    }
    // All accepted data can be read.
    assert_eq!(c.read(&stuck, (7 * PIECE) as u64, PIECE as u32).unwrap().data, contents(7));
    drop(hanging);
    wait_for(|| events(&server).contains("backing-healed"));
    assert_eq!(write(&mut c, &stuck, 8 + more), Nfsstat3::Ok);
    server.flush();
    let found = std::fs::read(slow.at.join("f")).unwrap();
    assert!(
        found.chunks(PIECE).enumerate().all(|(n, piece)| piece == contents(n))
            && found.len() / PIECE == 9 + more
    );
    server.stop();
}

#[test]
fn the_changes_of_a_file_system_whose_journal_fails_do_not_fill_the_log() {
    let (Some(broken), Some(sound)) = (Array::instant("xfs"), Array::instant("ext4")) else { return };
    let (mut server, mut c, [first, second]) = serve_both(&broken, &sound);
    let name = |n: usize| format!("file{n}").into_bytes();
    let made: Vec<_> = (0..300).map(|n| c.new_file(&first, &name(n), 0o644)).collect();
    for n in (0..300).step_by(3) {
        c.remove(&first, &name(n)).unwrap();
        c.rename((&first, &name(n + 1)), (&first, &name(n))).unwrap();
    }
    fail_journal(&broken, &server, &mut c, &first);
    overfill(&server, second, 3000);
    server.kill();
    assert!(broken.power_on());
    server.start();
    let mut c = server.connect();
    for n in (0..300).step_by(3) {
        assert_eq!(c.find(&first, &name(n)), made[n + 1]);
        assert_eq!(c.lookup(&first, &name(n + 1)).status(), Nfsstat3::Noent);
        assert_eq!(c.find(&first, &name(n + 2)), made[n + 2]);
    }
}

/// Finds the unnamed file that group commits change, through a descriptor of the server.
pub(crate) fn marker(server: &Server, at: &std::path::Path) -> std::fs::File {
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap();
    let mut paths = descriptors.map(|entry| entry.unwrap().path());
    let nameless = format!("{}/#", at.display());
    let is_marker = |path: &std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with(&nameless))
    };
    std::fs::File::open(paths.find(is_marker).unwrap()).unwrap()
}

#[test]
fn a_checkpoint_that_the_journal_was_not_asked_for_is_tried_again() {
    use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
    for kind in ["ext4", "xfs"] {
        let Some(array) = Array::instant(kind) else { return };
        let mut server = array.serve().cached().start();
        let mut c = server.connect();
        let root = c.root();
        let marker = marker(&server, &array.at);
        let flags = ioctl_getflags(&marker).unwrap();
        // With this flag even root cannot change the file.
        ioctl_setflags(&marker, flags | IFlags::IMMUTABLE).unwrap();
        let file = c.new_file(&root, b"f", 0o644);
        wait_for(|| events(&server).contains("takes no commit"));
        assert_eq!(c.create(&root, b"g", CreateHow::Guarded(mode(0o644))).status(), Nfsstat3::Io);
        assert!(!server.try_ask(&["flush", "--wait"]).status.success());
        ioctl_setflags(&marker, flags).unwrap();
        wait_for(|| events(&server).contains("works again"));
        assert_eq!(c.find(&root, b"f"), file);
        c.new_file(&root, b"g", 0o644);
        server.flush();
        assert_eq!(events(&server).matches("takes no commit").count(), 1, "it is told once");
        server.stop();
    }
}

/// Returns a server of `array` with its cache devices on `ssd`.
fn with_ssd(array: &Array, ssd: &Array) -> Server {
    let caches = ["a", "b"].map(|name| ssd.at.join(name).to_str().unwrap().to_owned());
    let flags = ["--cache", &caches[0], "--cache", &caches[1], "--cache-size", "64MiB", "--ram", "16MiB"];
    array.serve().cached().flags(&flags).start()
}

#[test]
fn what_was_in_a_frame_when_the_last_cache_device_died_is_durable_in_the_file_system() {
    for kind in ["xfs", "ext4"] {
        let (Some(array), Some(ssd)) = (Array::instant(kind), Array::instant("ext4")) else { return };
        let mut server = with_ssd(&array, &ssd);
        let root = server.connect().root();
        let stop = AtomicBool::new(false);
        // Clients change names all the time, so that at any moment a frame has records.
        let made: Vec<String> = std::thread::scope(|scope| {
            let _at_end = DoneAtEnd(&stop);
            let clients = (0..4).map(|client| {
                let (mut c, stop) = (server.connect(), &stop);
                scope.spawn(move || {
                    let make = |n| {
                        let name = format!("{client}.{n}");
                        c.new_file(&root, name.as_bytes(), 0o644);
                        name
                    };
                    (0..).take_while(|_| !stop.load(Ordering::SeqCst)).map(make).collect::<Vec<_>>()
                })
            });
            let clients: Vec<_> = clients.collect();
            ssd.cut_power("1");
            wait_for(|| events(&server).contains("device-lost"));
            stop.store(true, Ordering::SeqCst);
            clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
        });
        array.cut_power("5");
        server.kill();
        assert!(array.power_on());
        for name in made {
            assert!(array.at.join(&name).exists(), "{kind}: {name} was answered before it was durable");
        }
    }
}

#[test]
fn cache_devices_that_come_back_do_not_undo_what_was_done_without_them() {
    for kind in ["xfs", "ext4"] {
        let (Some(array), Some(ssd)) = (Array::instant(kind), Array::instant("ext4")) else { return };
        let mut server = with_ssd(&array, &ssd);
        let mut c = server.connect();
        let root = c.root();
        let gone = [&b"removed"[..], b"removed too"];
        for name in gone {
            c.new_file(&root, name, 0o644);
        }
        let kept = c.new_file(&root, b"kept", 0o644);
        c.new_dir(&root, b"dir", 0o755);
        ssd.cut_power("1");
        // RENAME is left out, because its rename intent would prove as much as the log.
        for name in gone {
            c.remove(&root, name).unwrap();
        }
        c.rmdir(&root, b"dir").unwrap();
        let made = c.new_file(&root, b"made", 0o644);
        assert!(events(&server).contains("device-lost"));
        server.kill();
        assert!(ssd.power_on());
        server.start();
        let mut c = server.connect();
        for name in gone.into_iter().chain([&b"dir"[..]]) {
            assert_eq!(c.lookup(&root, name).status(), Nfsstat3::Noent, "{kind}: {}", name.escape_ascii());
        }
        assert_eq!((c.find(&root, b"kept"), c.find(&root, b"made")), (kept, made));
        c.rename((&root, b"kept"), (&root, b"moved")).unwrap();
        server.restart();
        assert_eq!(server.connect().find(&root, b"moved"), kept);
    }
}

/// The state changes without the log from the loss on. The log has the old state until its room is used again, and a
/// kill in between must not bring that state back.
#[test]
fn the_state_of_clients_in_cache_devices_that_come_back_stays_forgotten() {
    let (Some(array), Some(ssd)) = (Array::instant("ext4"), Array::instant("ext4")) else { return };
    let mut server = with_ssd(&array, &ssd);
    let mut one = Client4::connect(&server, b"one");
    let make = OpenHow::Create(Create4::Unchecked(Fattr::default()));
    one.open(b"file", make, share::WRITE).unwrap();
    ssd.cut_power("1");
    let mut c = server.connect();
    let root = c.root();
    c.new_file(&root, b"made", 0o644);
    assert!(events(&server).contains("device-lost"));
    server.kill();
    assert!(ssd.power_on());
    for round in 0..3 {
        server.start();
        one.reconnect(&server);
        assert_eq!(one.session_status(), Nfsstat4::Badsession, "round {round}");
        server.kill();
    }
}

#[test]
fn without_cache_devices_every_change_waits_for_the_journal() {
    for fs in ["xfs", "ext4"] {
        let Some(array) = Array::new(fs) else { return };
        let mut server = array.serve().cached().start();
        let mut c = server.connect();
        let root = c.root();
        server.caches().iter().for_each(|cache| std::fs::remove_file(cache).unwrap());
        let lost = || events(&server).matches("device-lost").count() >= 2;
        let mut names = (0..).map(|n| format!("before{n}"));
        while !lost() {
            c.new_file(&root, names.next().unwrap().as_bytes(), 0o644);
        }
        let before = commits(&server);
        let names: Vec<_> = (0..20).map(|n| format!("after{n}")).collect();
        for name in &names {
            c.new_file(&root, name.as_bytes(), 0o644);
        }
        assert!(commits(&server) >= before + 20, "{fs}: answered before they were durable");
        array.cut_power("5");
        server.kill();
        assert!(array.power_on());
        for name in &names {
            assert!(array.at.join(name).exists(), "{fs}: {name} is lost");
        }
    }
}
