//! Tests that a creation which fails half-way leaves no object behind.

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::harness::*;

#[test]
fn a_creation_that_fails_half_way_leaves_nothing() {
    for serve in [Serve::new().plain(), Serve::new().cached()] {
        let server = serve.start();
        let mut c = server.connect();
        let root = c.root();
        let impossible = Sattr3 { size: Some(1 << 62), ..mode(0o644) };
        for how in [CreateHow::Unchecked(impossible), CreateHow::Guarded(impossible)] {
            assert_ne!(c.create(&root, b"f", how).status(), Nfsstat3::Ok);
            assert_eq!(c.lookup(&root, b"f").status(), Nfsstat3::Noent);
        }
        let file = c.new_file(&root, b"f", 0o644);
        c.write(&file, 0, b"there", StableHow::FileSync).unwrap();
        let impossible = Sattr3 { size: Some(1 << 62), ..mode(0o644) };
        assert_ne!(c.create(&root, b"f", CreateHow::Unchecked(impossible)).status(), Nfsstat3::Ok);
        assert_eq!(c.read(&file, 0, 100).unwrap().data, b"there", "it was there before");
    }
}

/// A guard. While it lives, the server can open no file.
struct NoDescriptors<'a>(&'a Server);

impl<'a> NoDescriptors<'a> {
    fn begin(server: &'a Server) -> Self {
        let taken: Vec<u64> = std::fs::read_dir(format!("/proc/{}/fd", server.pid()))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
            .collect();
        let lowest_free = (0..).find(|number| !taken.contains(number)).unwrap();
        set_descriptors(server, lowest_free);
        NoDescriptors(server)
    }
}

impl Drop for NoDescriptors<'_> {
    fn drop(&mut self) {
        // The limit is higher than before: the hard limit is inherited from the test.
        set_descriptors(self.0, getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20));
    }
}

fn set_descriptors(server: &Server, current: u64) {
    let pid = Pid::from_raw(server.pid().try_into().unwrap()).unwrap();
    let maximum = getrlimit(Resource::Nofile).maximum;
    prlimit(Some(pid), Resource::Nofile, Rlimit { current: Some(current), maximum }).unwrap();
}

fn make(c: &mut Client, dir: &FileHandle, name: &str) -> Nfsstat3 {
    match name {
        "dir" => c.mkdir(dir, name.as_bytes(), mode(0o755)).status(),
        "link" => c.symlink(dir, name.as_bytes(), b"text").status(),
        "fifo" => c.mknod(dir, name.as_bytes(), MknodData::Fifo(mode(0o644))).status(),
        _ => c.mknod(dir, name.as_bytes(), MknodData::Sock(mode(0o644))).status(),
    }
}

/// These objects are made without a descriptor, and examined with one.
#[test]
fn what_cannot_be_looked_at_after_it_was_made_is_taken_back() {
    for serve in [Serve::unsquashed().plain(), Serve::unsquashed().cached()] {
        let server = serve.start();
        let mut c = server.connect();
        let root = c.root();
        for name in ["dir", "link", "fifo", "socket"] {
            let path = server.data.join(name);
            let mut fails = || {
                let none = NoDescriptors::begin(&server);
                let status = make(&mut c, &root, name);
                drop(none);
                // If the request succeeded, a thread of the server's start has closed a descriptor meanwhile.
                let failed = status != Nfsstat3::Ok;
                if !failed {
                    std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path)).unwrap();
                }
                failed
            };
            assert!((0..100).any(|_| fails()), "{name}: nothing fails");
            assert!(path.symlink_metadata().is_err(), "{name} was left behind");
            assert_eq!(make(&mut c, &root, name), Nfsstat3::Ok, "{name}, after that");
        }
    }
}
