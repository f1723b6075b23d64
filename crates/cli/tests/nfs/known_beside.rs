//! Tests in which some clients look at files that are not open while other clients change them. Each answer must have
//! been right at some moment between call and reply.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::harness::*;
use crate::known::{few_open, looks};

/// A counter of steps that one client takes.
#[derive(Default)]
struct Steps {
    begun: AtomicU64,
    done: AtomicU64,
}

impl Steps {
    /// Takes a step. `act` gets its number, from 1.
    fn step<T>(&self, act: impl FnOnce(u64) -> T) {
        let n = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        act(n);
        self.done.store(n, Ordering::SeqCst);
    }

    /// Returns the number of finished steps. Any later answer must be at least this new.
    fn least(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }

    /// Returns the number of steps begun. Any earlier answer is at most this new.
    fn most(&self) -> u64 {
        self.begun.load(Ordering::SeqCst)
    }

    fn assert_between(&self, least: u64, seen: u64, what: &str) {
        let most = self.most();
        assert!(least <= seen && seen <= most, "{what}: {seen}, which is not from {least} to {most}");
    }
}

/// A file whose size, owner, links and times all grow.
struct Growing {
    handle: FileHandle,
    name: Vec<u8>,
    size: Steps,
    owner: Steps,
    mode: Steps,
    links: Steps,
}

/// The values that a file has reached at least.
struct Least {
    size: u64,
    owner: u64,
    mode: u64,
    links: u64,
}

impl Growing {
    fn new(c: &mut Client, dir: &FileHandle, n: usize) -> Self {
        let name = format!("growing-{n}").into_bytes();
        let handle = c.new_file(dir, &name, 0);
        let none = Steps::default;
        Growing { handle, name, size: none(), owner: none(), mode: none(), links: none() }
    }

    fn change(&self, c: &mut Client, links: &FileHandle, what: u64) {
        let set = |c: &mut Client, set| c.setattr(&self.handle, set).unwrap();
        match what % 5 {
            0 => self.size.step(|n| set(c, size(n))),
            1 => self.size.step(|n| {
                let stable = if n.is_multiple_of(2) { StableHow::FileSync } else { StableHow::Unstable };
                c.write(&self.handle, n - 1, b"x", stable).unwrap()
            }),
            2 => self.owner.step(|n| set(c, Sattr3 { uid: Some(n as u32), ..Sattr3::default() })),
            3 => self.mode.step(|n| set(c, mode(n as u32))),
            _ => self.links.step(|n| {
                let link = [&self.name[..], format!("-{n}").as_bytes()].concat();
                c.link(&self.handle, links, &link).unwrap()
            }),
        }
    }

    fn least(&self) -> Least {
        Least {
            size: self.size.least(),
            owner: self.owner.least(),
            mode: self.mode.least(),
            links: self.links.least(),
        }
    }

    fn assert_is(&self, least: &Least, seen: &Fattr3, by: &str) {
        let what = |part| format!("{part} of {} by {by}", self.name.escape_ascii());
        self.size.assert_between(least.size, seen.size, &what("size"));
        self.owner.assert_between(least.owner, seen.uid.into(), &what("owner"));
        self.links.assert_between(least.links, u64::from(seen.nlink) - 1, &what("links"));
        self.mode.assert_between(least.mode, seen.mode.into(), &what("mode"));
    }
}

/// A name that exists after each odd step and does not exist after each even step.
struct Flickering {
    name: Vec<u8>,
    steps: Steps,
}

impl Flickering {
    fn change(&self, c: &mut Client, dir: &FileHandle, elsewhere: &FileHandle) {
        let name = &self.name[..];
        let step = |n| match n % 6 {
            1 => {
                c.new_file(dir, name, 0o600);
            }
            2 => {
                c.remove(dir, name).unwrap();
            }
            // The file comes from another directory by RENAME, and goes back there.
            3 => {
                c.new_file(elsewhere, name, 0o600);
                c.rename((elsewhere, name), (dir, name)).unwrap();
            }
            4 => {
                c.rename((dir, name), (elsewhere, name)).unwrap();
            }
            5 => {
                let file = c.find(elsewhere, name);
                c.link(&file, dir, name).unwrap();
            }
            _ => {
                c.remove(dir, name).unwrap();
                c.remove(elsewhere, name).unwrap();
            }
        };
        self.steps.step(step);
    }

    fn look(&self, c: &mut Client, dir: &FileHandle) {
        let least = self.steps.least();
        let found = c.lookup(dir, &self.name);
        let most = self.steps.most();
        let so = u64::from(found.is_ok());
        assert!((least..=most).any(|n| n % 2 == so), "{:?} from {least} to {most}", found.status());
    }
}

struct Scene {
    server: Server,
    dir: FileHandle,
    links: FileHandle,
    growing: Vec<Growing>,
    flickering: Vec<Flickering>,
    /// Files that are looked at so that the server closes other files.
    others: Vec<FileHandle>,
}

impl Scene {
    fn new(server: Server) -> Self {
        let mut c = server.connect();
        let root = c.root();
        let dir = c.new_dir(&root, b"dir", 0o777);
        let links = c.new_dir(&root, b"links", 0o777);
        let growing = (0..6).map(|n| Growing::new(&mut c, &dir, n)).collect();
        let flickering =
            (0..4).map(|n| Flickering { name: vec![b'a' + n], steps: Steps::default() }).collect();
        let others = (0..64).map(|n| c.new_file(&root, format!("other-{n}").as_bytes(), 0o600)).collect();
        Scene { server, dir, links, growing, flickering, others }
    }

    fn change(&self, writer: usize, rounds: u64, done: &AtomicBool) {
        let mut c = self.server.connect();
        for round in 0..rounds {
            if done.load(Ordering::Relaxed) {
                return;
            }
            for (n, growing) in self.growing.iter().enumerate().filter(|(n, _)| n % 2 == writer) {
                growing.change(&mut c, &self.links, round + n as u64);
            }
            for (_, name) in self.flickering.iter().enumerate().filter(|(n, _)| n % 2 == writer) {
                name.change(&mut c, &self.dir, &self.links);
            }
            // The server needs time to close the files and to cache their attributes.
            std::thread::sleep(std::time::Duration::from_millis(round % 8));
        }
    }

    fn look(&self, way: usize, done: &AtomicBool) {
        let mut c = self.server.connect();
        while !done.load(Ordering::Relaxed) {
            match way {
                0 => self.growing.iter().for_each(|growing| {
                    let least = growing.least();
                    growing.assert_is(&least, &c.attr(&growing.handle), "GETATTR");
                }),
                1 => self.growing.iter().for_each(|growing| {
                    let least = growing.least();
                    let found = c.lookup(&self.dir, &growing.name).unwrap();
                    assert_eq!(found.object, growing.handle);
                    growing.assert_is(&least, &found.obj_attributes.unwrap(), "LOOKUP");
                }),
                2 => self.others.iter().for_each(|other| assert_eq!(c.attr(other).size, 0)),
                _ => self.list(&mut c),
            }
            if way < 2 {
                self.flickering.iter().for_each(|name| name.look(&mut c, &self.dir));
            }
            // The pause gives the writers their turn.
            std::thread::sleep(std::time::Duration::from_millis(4));
        }
    }

    fn list(&self, c: &mut Client) {
        let least: Vec<_> = self.growing.iter().map(Growing::least).collect();
        let page = c.readdirplus(&self.dir, crate::harness::START, 1 << 16, 1 << 16).unwrap();
        for entry in &page.entries {
            let is = |growing: &&Growing| growing.name == entry.name;
            if let Some(n) = self.growing.iter().position(|growing| is(&growing)) {
                self.growing[n].assert_is(&least[n], &entry.attributes.unwrap(), "READDIRPLUS");
            }
        }
    }

    /// Looks and changes at one time, and calls `meanwhile` repeatedly.
    fn play(&self, rounds: u64, mut meanwhile: impl FnMut(&Server, u64) + Send) {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let done = &done;
            let _done = DoneAtEnd(done);
            for way in 0..4 {
                scope.spawn(move || {
                    let _done = DoneAtEnd(done);
                    self.look(way, done);
                });
            }
            scope.spawn(move || {
                let _done = DoneAtEnd(done);
                for turn in 0.. {
                    if done.load(Ordering::Relaxed) {
                        return;
                    }
                    meanwhile(&self.server, turn);
                    std::thread::sleep(std::time::Duration::from_millis(100));
                }
            });
            let writers: Vec<_> =
                (0..2).map(|writer| scope.spawn(move || self.change(writer, rounds, done))).collect();
            for writer in writers {
                // The message of a writer's panic has been printed already.
                assert!(writer.join().is_ok(), "a writer failed");
            }
        });
        let (hits, misses) = looks(&self.server);
        let enough = hits > 200 || !rustix::process::geteuid().is_root();
        assert!(enough, "{hits} answers from memory, {misses} not");
    }
}

#[test]
fn answers_from_memory_are_those_of_the_moment_without_a_cache() {
    Scene::new(few_open().plain().start()).play(60, |_, _| {});
}

/// The cache destages all the time, and the mode changes repeatedly.
#[test]
fn answers_from_memory_are_those_of_the_moment_with_a_cache() {
    Scene::new(few_open().cached().start()).play(60, |server, turn| {
        if turn % 2 == 0 {
            server.flush();
        }
        if turn % 8 == 7 {
            let modes = ["write-through", "write-around", "pass-through", "write-back"];
            server.ask(&["mode", modes[turn as usize / 8 % 4]]);
        }
    });
}

/// Memory for a few files only, so that files displace each other.
#[test]
fn answers_from_memory_are_those_of_the_moment_with_hardly_any_of_it() {
    // Attributes get three eighths of the memory: enough for one or two files in each of 64 parts.
    let flags = ["--metadata-memory", "32KiB"];
    Scene::new(few_open().cached().flags(&flags).start()).play(60, |_, _| {});
}
