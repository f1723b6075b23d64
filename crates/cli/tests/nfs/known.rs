//! Tests of names and attributes of files that are not open: more files are in use than the server may keep open.

use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use forebay_wire::nfs4::{
    AccessArgs as Access4, Bitmap, GetattrArgs as Getattr4, Nfsstat4, Op, OpResult, attr,
};

use crate::harness::*;
use crate::listing::{Way, list};
use crate::nfs4::{Client4, putfh};

const FILES: u64 = 300;

/// Returns a server that keeps few files open.
pub(crate) fn few_open() -> Serve {
    Serve::unsquashed().flags(&FEW_OPEN)
}

const FEW_OPEN: [&str; 2] = ["--open-files", "16"];

/// Returns the number of GETATTR, LOOKUP and ACCESS requests answered without opening a file, and the number of
/// others.
pub(crate) fn looks(server: &Server) -> (u64, u64) {
    let metadata = &server.status()["metadata"];
    (metadata["file_hits"].as_u64().unwrap(), metadata["file_misses"].as_u64().unwrap())
}

fn number(n: u64) -> Vec<u8> {
    n.to_string().into_bytes()
}

/// Waits, because the server caches only entries of a directory that has not changed for a while.
pub(crate) fn wait_until_cacheable() {
    std::thread::sleep(Duration::from_millis(30));
}

struct Files {
    server: Server,
    dir: FileHandle,
    files: Vec<FileHandle>,
}

impl Files {
    fn new(server: Server) -> Self {
        let mut c = server.connect();
        let root = c.root();
        let dir = c.new_dir(&root, b"dir", 0o777);
        let files = (0..FILES).map(|n| c.new_file(&dir, &number(n), 0o666)).collect();
        wait_until_cacheable();
        Files { server, dir, files }
    }

    fn path(&self, n: u64) -> PathBuf {
        self.server.data.join(format!("dir/{n}"))
    }

    /// Looks up all files, so that most of them are cached and not open.
    fn look(&self, c: &mut Client) {
        for (n, file) in (0..).zip(&self.files) {
            c.lookup(&self.dir, &number(n)).unwrap();
            c.attr(file);
        }
    }
}

/// The test has a file system of its own. The kernel reports every change on a shared file system, and during many
/// reports the server answers less from memory.
#[test]
fn what_was_asked_for_is_answered_from_memory() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "ext4", 64 << 20) else { return };
    let all = Files::new(disk.serve().flags(&FEW_OPEN).start());
    let mut c = all.server.connect();
    all.look(&mut c);
    let (hits, misses) = looks(&all.server);
    all.look(&mut c);
    let (hits_now, misses_now) = looks(&all.server);
    let status = all.server.status();
    assert_eq!(misses_now, misses, "{}", status["metadata"]);
    assert!(hits_now - hits > FILES, "{hits_now} after {hits}");
    assert!(status["metadata"]["files"].as_u64().unwrap() > FILES - 100, "{}", status["metadata"]);
    let (used, limit) = (&status["metadata"]["bytes"], &status["metadata"]["limit_bytes"]);
    assert!(used.as_u64().unwrap() > 0 && used.as_u64() < limit.as_u64());
}

/// A client of NFSv4 asks for what a client of NFSv3 has asked for.
#[test]
fn compounds_are_answered_from_memory_too() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "ext4", 64 << 20) else { return };
    let all = Files::new(disk.serve().flags(&FEW_OPEN).start());
    all.look(&mut all.server.connect());
    let mut c = Client4::connect(&all.server, b"looks");
    let mut look = || {
        for file in &all.files {
            let rights = Op::Access(Access4 { access: access::READ | access::MODIFY });
            let status = c.status(&[putfh(file.as_bytes()), rights, getattr4()]);
            assert_eq!(status, Nfsstat4::Ok);
        }
    };
    // The rights of this caller are not known yet.
    look();
    let (hits, misses) = looks(&all.server);
    look();
    let (hits_now, misses_now) = looks(&all.server);
    assert_eq!(misses_now, misses, "{}", all.server.status()["metadata"]);
    // PUTFH, ACCESS and GETATTR of each file that is not open.
    assert!(hits_now - hits > 2 * FILES, "{hits_now} after {hits}");
}

/// Returns a GETATTR for [`mode_and_links`].
fn getattr4() -> Op<'static> {
    Op::Getattr(Getattr4 { request: Bitmap::of(&[attr::MODE, attr::NUMLINKS]) })
}

/// Returns the mode and the number of names that a client of NFSv4 sees.
fn mode_and_links(c: &mut Client4, file: &FileHandle) -> Result<(u32, u32), Nfsstat4> {
    c.run(&[putfh(file.as_bytes()), getattr4()], |status, results| match results.get(1) {
        Some(OpResult::Getattr(Ok(got))) => {
            let got = got.attributes.attributes().unwrap();
            Ok((got.mode.unwrap(), got.numlinks.unwrap()))
        }
        _ => Err(status),
    })
}

/// Without memory for names and attributes everything must work, and with very little memory as well.
#[test]
fn memory_for_names_and_attributes_may_be_as_small_as_one_likes() {
    for memory in ["0", "64KiB"] {
        let all = Files::new(few_open().flags(&["--metadata-memory", memory]).start());
        let mut c = all.server.connect();
        for round in 0..2u32 {
            all.look(&mut c);
            for (n, file) in (0..).zip(&all.files).step_by(4) {
                c.setattr(file, mode(0o600 | round)).unwrap();
                assert_eq!(c.attr(file).mode, 0o600 | round);
                assert_eq!(
                    c.lookup(&all.dir, &number(n)).unwrap().obj_attributes.unwrap().mode,
                    0o600 | round
                );
            }
        }
    }
}

/// After any change of a file, the next GETATTR and LOOKUP must show it.
#[test]
fn what_is_known_of_files_is_as_the_file_system_says() {
    let all = Files::new(few_open().start());
    let (server, files, dir) = (&all.server, &all.files, &all.dir);
    let (mut c, mut c4) = (server.connect(), Client4::connect(server, b"looks"));
    let root = c.root();
    let path = |n: u64| all.path(n);
    let mut seed = 11u64;
    let mut draw = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for round in 0..1500 {
        let n = draw(FILES);
        let file = &files[n as usize];
        match draw(10) {
            0 => drop(c.write(file, draw(9000), b"x", StableHow::FileSync).unwrap()),
            1 => drop(c.setattr(file, mode(0o600 | draw(0o70) as u32)).unwrap()),
            2 => drop(c.setattr(file, size(draw(9000))).unwrap()),
            3 => std::fs::set_permissions(path(n), PermissionsExt::from_mode(0o600 | draw(0o70) as u32))
                .unwrap(),
            4 => std::fs::hard_link(path(n), server.data.join(format!("link-{round}"))).unwrap(),
            5 => drop(c.link(file, &root, format!("client-{round}").as_bytes()).unwrap()),
            6 => {
                let file = std::fs::File::options().write(true).open(path(n)).unwrap();
                file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(draw(1 << 31))).unwrap();
            }
            7 if round % 8 == 0 => {
                let away = server.data.join("away");
                std::fs::rename(path(n), &away).unwrap();
                assert_eq!(c.lookup(dir, &number(n)).status(), Nfsstat3::Noent);
                std::fs::rename(away, path(n)).unwrap();
            }
            _ => {}
        }
        for n in [n, draw(FILES)] {
            let meta = std::fs::metadata(path(n)).unwrap();
            let seen = mode_and_links(&mut c4, &files[n as usize]).unwrap();
            assert_eq!(seen, (meta.mode() & 0o7777, meta.nlink() as u32), "round {round}");
            let attr = c.attr(&files[n as usize]);
            let found = c.lookup(dir, &number(n)).unwrap();
            assert_eq!(found.object, files[n as usize], "round {round}");
            for attr in [attr, found.obj_attributes.unwrap()] {
                assert_eq!(
                    (attr.mode, u64::from(attr.nlink)),
                    (meta.mode() & 0o7777, meta.nlink()),
                    "round {round}"
                );
            }
        }
    }
    for n in (0..FILES).step_by(3) {
        let other_names = std::fs::metadata(path(n)).unwrap().nlink() > 1;
        std::fs::remove_file(path(n)).unwrap();
        let expected = if other_names { Nfsstat3::Ok } else { Nfsstat3::Stale };
        assert_eq!(c.getattr(&files[n as usize]).status(), expected);
        assert_eq!(
            mode_and_links(&mut c4, &files[n as usize]).err(),
            (!other_names).then_some(Nfsstat4::Stale)
        );
        assert_eq!(c.lookup(dir, &number(n)).status(), Nfsstat3::Noent);
        std::fs::File::create_new(path(n)).unwrap();
        assert_eq!(c.lookup(dir, &number(n)).status(), Nfsstat3::Ok);
    }
    let (hits, misses) = looks(server);
    let enough = hits > 500 || !rustix::process::geteuid().is_root();
    assert!(enough, "{hits} answers from memory, {misses} not");
}

/// External changes of contents, sizes and times, by every method except a mapping.
#[test]
fn what_others_do_to_a_file_that_is_not_open_shows_at_once() {
    needs_root!();
    let all = Files::new(few_open().plain().start());
    let mut c = all.server.connect();
    all.look(&mut c);
    let directly = |n: u64| std::fs::File::options().write(true).open(all.path(n)).unwrap();
    let other = all.server.data.join("other");
    type Act<'a> = (&'a str, Box<dyn Fn(u64) + 'a>);
    let acts: Vec<Act<'_>> = vec![
        ("write", Box::new(|n| directly(n).write_all_at(b"text", 7).unwrap())),
        ("truncate", Box::new(|n| directly(n).set_len(99).unwrap())),
        ("replace contents", Box::new(|n| std::fs::write(all.path(n), "new").unwrap())),
        (
            "chmod",
            Box::new(|n| std::fs::set_permissions(all.path(n), PermissionsExt::from_mode(0o604)).unwrap()),
        ),
        ("chown", Box::new(|n| std::os::unix::fs::chown(all.path(n), Some(5), None).unwrap())),
        ("utime", Box::new(|n| directly(n).set_modified(std::time::UNIX_EPOCH).unwrap())),
        (
            "link",
            Box::new(|n| std::fs::hard_link(all.path(n), all.server.data.join(format!("l{n}"))).unwrap()),
        ),
        (
            "rename and back",
            Box::new(|n| {
                std::fs::rename(all.path(n), &other).unwrap();
                std::fs::rename(&other, all.path(n)).unwrap();
            }),
        ),
    ];
    for (n, (what, act)) in (0..).zip(&acts) {
        let n = n * 20;
        for at in [n, n + 1] {
            act(at);
            let (meta, now) = (std::fs::metadata(all.path(at)).unwrap(), c.attr(&all.files[at as usize]));
            assert_eq!(
                (now.size, now.mode, now.uid, u64::from(now.nlink)),
                (meta.size(), meta.mode() & 0o7777, meta.uid(), meta.nlink()),
                "{what}"
            );
            let times = |time: Nfstime3| (i64::from(time.seconds), i64::from(time.nseconds));
            assert_eq!(times(now.mtime), (meta.mtime(), meta.mtime_nsec()), "{what}");
            let (ctime, changed) = (times(now.ctime), (meta.ctime(), meta.ctime_nsec()));
            assert!(
                ctime == changed || has_coarse_times() && ctime > changed,
                "{what}: {ctime:?} {changed:?}"
            );
        }
    }
}

/// Writes through a mapping show when every process has closed and unmapped the file.
#[test]
fn what_others_write_through_a_mapping_shows_when_they_close_the_file() {
    let all = Files::new(few_open().plain().start());
    let mut c = all.server.connect();
    std::fs::write(all.path(7), [1; 4096]).unwrap();
    wait_until_cacheable();
    all.look(&mut c);
    let before = c.attr(&all.files[7]);
    {
        let file = std::fs::File::options().read(true).write(true).open(all.path(7)).unwrap();
        use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
        // SAFETY: this is a new mapping of a page that the file has, and no other code knows its address.
        unsafe {
            let map = mmap(std::ptr::null_mut(), 4096, ProtFlags::WRITE, MapFlags::SHARED, &file, 0).unwrap();
            map.cast::<u8>().write_volatile(9);
            munmap(map, 4096).unwrap();
        }
    }
    let (meta, now) = (std::fs::metadata(all.path(7)).unwrap(), c.attr(&all.files[7]));
    assert_ne!(now.mtime, before.mtime);
    assert_eq!(
        (i64::from(now.mtime.seconds), i64::from(now.mtime.nseconds)),
        (meta.mtime(), meta.mtime_nsec())
    );
}

/// The kernel keeps a limited number of notifications and drops the others.
#[test]
fn more_changes_by_others_than_the_kernel_tells_of_are_seen_all_the_same() {
    needs_root!();
    let told = std::fs::read_to_string("/proc/sys/fs/fanotify/max_queued_events");
    let Some(most) =
        told.ok().and_then(|text| text.trim().parse::<u64>().ok()).filter(|most| *most <= 50_000)
    else {
        eprintln!("not run: the kernel's queue of notifications is long");
        return;
    };
    let all = Files::new(few_open().start());
    let mut c = all.server.connect();
    all.look(&mut c);
    let (hits, _) = looks(&all.server);
    all.server.signal(rustix::process::Signal::STOP);
    let many = all.server.home().join("data/many");
    std::fs::create_dir(&many).unwrap();
    for n in 0..most + 100 {
        std::fs::write(many.join(n.to_string()), "").unwrap();
    }
    for n in 0..FILES {
        std::fs::set_permissions(all.path(n), PermissionsExt::from_mode(0o611)).unwrap();
    }
    all.server.signal(rustix::process::Signal::CONT);
    for (n, file) in (0..).zip(&all.files) {
        assert_eq!(c.attr(file).mode, 0o611, "{n}");
    }
    all.look(&mut c);
    all.look(&mut c);
    assert!(looks(&all.server).0 > hits + FILES, "nothing is known any more");
}

/// After a crash a file has its acknowledged size, whether or not recovery looked at the file.
#[test]
fn what_is_known_after_a_crash_is_what_was_acknowledged_before() {
    let mut all = Files::new(few_open().cached().start());
    let mut c = all.server.connect();
    for round in 1..3u64 {
        for (n, file) in (0..).zip(&all.files) {
            c.write(file, n * round, b"x", StableHow::FileSync).unwrap();
            if n % 3 == 0 {
                c.setattr(file, mode(0o600 | round as u32)).unwrap();
            }
        }
        if round == 2 {
            c.remove(&all.dir, b"5").unwrap();
            c.rename((&all.dir, b"8"), (&all.dir, b"9")).unwrap();
        }
        all.server.kill();
        all.server.start();
        c = all.server.connect();
        for _ in 0..2 {
            for (n, file) in (0..).zip(&all.files) {
                let gone = round == 2 && (n == 5 || n == 9);
                let renamed = round == 2 && n == 8;
                if gone {
                    assert_eq!(c.getattr(file).status(), Nfsstat3::Stale, "{n}");
                    continue;
                }
                // GETATTR comes before LOOKUP, which may open the file.
                assert_eq!(c.attr(file).size, n * round + 1, "{n}");
                let found = c.lookup(&all.dir, &number(if renamed { 9 } else { n })).unwrap();
                assert_eq!((found.object, found.obj_attributes.unwrap().size), (*file, n * round + 1));
                let bits = if n % 3 == 0 { 0o600 | round as u32 } else { 0o666 };
                assert_eq!(c.attr(file).mode, bits, "{n}");
            }
        }
    }
}

/// A name with a negative entry is found as soon as another program on the host makes it, even while clients change
/// the directory.
#[test]
fn a_name_that_others_make_beside_a_client_is_found() {
    const DIRS: usize = 100;
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    let dirs: Vec<_> = (0..DIRS).map(|n| c.new_dir(&root, n.to_string().as_bytes(), 0o777)).collect();
    let turn = AtomicUsize::new(0);
    for round in 0..6 {
        let name = format!("flag-{round}");
        wait_until_cacheable();
        for dir in &dirs {
            assert_eq!(c.lookup(dir, name.as_bytes()).status(), Nfsstat3::Noent);
        }
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _done = DoneAtEnd(&done);
            let (turn, name, data, done) = (&turn, &name, &server.data, &done);
            let others = scope.spawn(move || {
                for n in 0..DIRS {
                    while turn.load(Ordering::Acquire) <= round * DIRS + n {
                        if done.load(Ordering::Acquire) {
                            return;
                        }
                        std::hint::spin_loop();
                    }
                    // The delay is about as long as a request takes to reach the server.
                    for _ in 0..(n * 40) {
                        std::hint::spin_loop();
                    }
                    std::fs::write(data.join(n.to_string()).join(name), "").unwrap();
                }
            });
            for dir in &dirs {
                turn.fetch_add(1, Ordering::Release);
                c.new_file(dir, format!("beside-{round}").as_bytes(), 0o644);
            }
            others.join().unwrap();
        });
        for (n, dir) in dirs.iter().enumerate() {
            assert_eq!(c.lookup(dir, name.as_bytes()).status(), Nfsstat3::Ok, "in directory {n}");
        }
    }
}

/// If destaging turns out to need more or less space, listings show the new figure after one second at most.
#[test]
fn listings_and_getattr_say_the_same_of_what_was_destaged() {
    let server = Serve::unsquashed().cached().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let all = Way::Plus { dircount: 1 << 20, maxcount: 1 << 20 };
    let listed = |c: &mut Client| {
        let entries = list(c, &root, all);
        entries.into_iter().find(|entry| entry.name == b"f").unwrap().attributes.unwrap()
    };
    // A hole, and a block that exists already. The block counts twice while it is dirty.
    c.write(&file, 4096, &[1; 4096], StableHow::FileSync).unwrap();
    server.flush();
    wait_until_cacheable();
    c.write(&file, 4096, &[2; 4096], StableHow::FileSync).unwrap();
    assert_eq!(listed(&mut c), c.attr(&file));
    listed(&mut c);
    server.flush();
    std::thread::sleep(Duration::from_millis(1100));
    let (listed, now) = (listed(&mut c), c.attr(&file));
    assert_eq!(Fattr3 { atime: now.atime, ..listed }, now);
}

/// After an administrator drops the cached data of a path, names, listings and attributes are read from the file
/// system again.
#[test]
fn what_is_known_of_a_path_is_dropped_on_demand() {
    needs_root!();
    for serve in [few_open().plain(), few_open().cached()] {
        let all = Files::new(serve.start());
        let mut c = all.server.connect();
        all.look(&mut c);
        let known = || {
            let metadata = &all.server.status()["metadata"];
            (metadata["files"].as_u64().unwrap(), metadata["names"].as_u64().unwrap())
        };
        let invalidate = |path: &Path| drop(all.server.ask(&["invalidate", path.to_str().unwrap()]));
        let (files, names) = known();
        assert!(files > FILES / 2 && names >= FILES, "{files} files, {names} names");
        invalidate(&all.path(3));
        let (still, names) = known();
        assert!(still + 1 >= files && names < FILES, "{still} of {files} files, {names} names");
        invalidate(&all.server.data.join("dir"));
        let (files, names) = known();
        assert!(files == 0 && names < 20, "{files} files, {names} names");
        all.look(&mut c);
    }
}

const TWO_EXPORTS: &str = r#"
[[export]]
path = "@/data"
name = "/all"
[[export.client]]
networks = ["127.0.0.1"]
squash = "none"
[[export]]
path = "@/data/below"
name = "/below"
[[export.client]]
networks = ["127.0.0.1"]
squash = "none"
"#;

/// A file that is reached through two exports, with two handles, is one file.
#[test]
fn a_change_through_one_export_shows_through_another() {
    let serve = Serve::new().flags(&["--open-files", "16"]).exports(TWO_EXPORTS);
    let server = serve.start_on(|data| std::fs::create_dir(data.join("below")).unwrap());
    let mut c = server.connect();
    let [all, below] = [&b"/all"[..], b"/below"].map(|export| c.mnt(export).unwrap().fhandle);
    let all = c.find(&all, b"below");
    let handles: Vec<_> = (0..100)
        .map(|n| {
            let made = c.new_file(&below, &number(n), 0o600);
            (c.find(&all, &number(n)), made)
        })
        .collect();
    for round in 0..4u32 {
        for (n, (one, other)) in handles.iter().enumerate() {
            assert_ne!(one, other);
            let (one, other) =
                if (n + round as usize).is_multiple_of(2) { (one, other) } else { (other, one) };
            c.setattr(one, mode(0o700 + round)).unwrap();
            assert_eq!(c.attr(other).mode, 0o700 + round);
            c.write(other, u64::from(round), b"x", StableHow::FileSync).unwrap();
        }
        for (one, other) in &handles {
            let seen = [c.attr(one), c.attr(other)].map(|attr| (attr.mode, attr.size, attr.ctime));
            assert_eq!(seen[0], seen[1]);
            assert_eq!(seen[0].1, u64::from(round) + 1);
        }
    }
    for (n, (one, other)) in (0..).zip(&handles) {
        c.remove(if n % 2 == 0 { &all } else { &below }, &number(n)).unwrap();
        assert_eq!([one, other].map(|file| c.getattr(file).status()), [Nfsstat3::Stale; 2]);
    }
}
