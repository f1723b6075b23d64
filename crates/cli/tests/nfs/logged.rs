//! Tests of changes that the cache's log makes durable. They do not wait for a commit of the file system's journal.
//! After a power cut every acknowledged change must be there, with its handle.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_wire::xdr::{Decode, Encode, Reader};

use crate::harness::*;

/// A client's knowledge about an object.
struct Thing {
    handle: FileHandle,
    attributes: Fattr3,
    mode: u32,
    /// Byte that fills the object's first block.
    byte: Option<u8>,
    links: usize,
}

type Name = (usize, String);

/// A client that changes names in directories of its own, and the acknowledged state.
struct Worker {
    client: Client,
    seed: u64,
    count: usize,
    dirs: Vec<FileHandle>,
    things: Vec<Thing>,
    names: BTreeMap<Name, usize>,
    /// Names, and objects, whose last change was not answered.
    doubtful: (BTreeSet<Name>, BTreeSet<usize>),
    /// Calls and their replies.
    answered: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Worker {
    fn new(mut client: Client, seed: u64, dirs: Vec<FileHandle>) -> Self {
        client.xid = (seed as u32) << 20;
        let doubtful = Default::default();
        let (things, names, answered) = (Vec::new(), BTreeMap::new(), Vec::new());
        Worker { client, seed: seed * 7919 + 1, count: 0, dirs, things, names, doubtful, answered }
    }

    fn draw(&mut self, below: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as usize % below
    }

    /// Calls a procedure. Returns the result's bytes if the call succeeded.
    fn call(&mut self, procedure: Procedure, args: &impl Encode) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        args.encode(&mut bytes);
        let record = self.client.call_bytes((PROGRAM, VERSION, procedure as u32), &bytes);
        let reply = self.client.try_exchange(&record)?;
        let mut reader = Reader::new(&reply);
        rpc::ReplyHeader::decode(&mut reader).unwrap();
        let result = reader.rest().to_vec();
        let ok = Nfsstat3::decode(&mut Reader::new(&result)).unwrap() == Nfsstat3::Ok;
        self.answered.push((record, reply));
        ok.then_some(result)
    }

    fn new_name(&mut self) -> Name {
        self.count += 1;
        (self.draw(self.dirs.len()), format!("n{}", self.count))
    }

    /// Returns a random name of an object that `fits`.
    fn pick(&mut self, fits: impl Fn(&Thing) -> bool) -> Option<Name> {
        let fitting: Vec<_> = self
            .names
            .iter()
            .filter(|(_, at)| fits(&self.things[**at]))
            .map(|(name, _)| name.clone())
            .collect();
        (!fitting.is_empty()).then(|| fitting[self.draw(fitting.len())].clone())
    }

    fn make(&mut self) -> Option<()> {
        let at = self.new_name();
        self.doubtful.0.insert(at.clone());
        let (dir, child) = (self.dirs[at.0], at.1.clone());
        let mode_bits = [0o600, 0o644, 0o751, 0o2755][self.draw(4)];
        let target = name(&dir, child.as_bytes());
        let result = match self.draw(6) {
            0 => self.call(Procedure::Mkdir, &MkdirArgs { target, attributes: mode(mode_bits) }),
            1 => {
                let args = SymlinkArgs { target, attributes: Sattr3::default(), path: child.as_bytes() };
                self.call(Procedure::Symlink, &args)
            }
            2 => self.call(Procedure::Mknod, &MknodArgs { target, what: MknodData::Fifo(mode(mode_bits)) }),
            3 => {
                let how = CreateHow::Exclusive([self.count as u8; 8]);
                self.call(Procedure::Create, &CreateArgs { target, how })
            }
            _ => {
                let how = CreateHow::Guarded(mode(mode_bits));
                self.call(Procedure::Create, &CreateArgs { target, how })
            }
        }?;
        let made = CreateRes::decode(&mut Reader::new(&result)).unwrap().unwrap();
        let (handle, attributes) = (made.object.unwrap(), made.obj_attributes.unwrap());
        self.things.push(Thing { handle, attributes, mode: attributes.mode, byte: None, links: 1 });
        self.doubtful.0.remove(&at);
        self.names.insert(at, self.things.len() - 1);
        Some(())
    }

    fn unname(&mut self, at: &Name) {
        if let Some(thing) = self.names.remove(at) {
            self.things[thing].links -= 1;
        }
    }

    fn remove(&mut self) -> Option<()> {
        let Some(at) = self.pick(|_| true) else { return Some(()) };
        self.doubtful.0.insert(at.clone());
        let is_dir = self.things[self.names[&at]].attributes.ftype == Ftype3::Dir;
        let procedure = if is_dir { Procedure::Rmdir } else { Procedure::Remove };
        let dir = self.dirs[at.0];
        self.call(procedure, &name(&dir, at.1.as_bytes()))?;
        self.doubtful.0.remove(&at);
        self.unname(&at);
        Some(())
    }

    fn link(&mut self) -> Option<()> {
        let Some(from) = self.pick(|thing| thing.attributes.ftype == Ftype3::Reg) else { return Some(()) };
        let (at, thing) = (self.new_name(), self.names[&from]);
        self.doubtful.0.insert(at.clone());
        let (file, dir) = (self.things[thing].handle, self.dirs[at.0]);
        self.call(Procedure::Link, &LinkArgs { file, link: name(&dir, at.1.as_bytes()) })?;
        self.doubtful.0.remove(&at);
        self.things[thing].links += 1;
        self.names.insert(at, thing);
        Some(())
    }

    /// Renames an object to a new name, or over another object.
    fn rename(&mut self) -> Option<()> {
        let not_dir = |thing: &Thing| thing.attributes.ftype != Ftype3::Dir;
        let over = if self.draw(2) == 0 { self.pick(not_dir) } else { None };
        let from = match over {
            Some(_) => self.pick(not_dir),
            None => self.pick(|_| true),
        };
        let Some(from) = from else { return Some(()) };
        let thing = self.names[&from];
        let over = over.filter(|over| self.names[over] != thing);
        let to = over.unwrap_or_else(|| self.new_name());
        self.doubtful.0.extend([from.clone(), to.clone()]);
        let dirs = self.dirs.clone();
        let place = |at: &Name| dirs[at.0];
        let (left, taken) = (place(&from), place(&to));
        let args = RenameArgs { from: name(&left, from.1.as_bytes()), to: name(&taken, to.1.as_bytes()) };
        self.call(Procedure::Rename, &args)?;
        [&from, &to].iter().for_each(|at| assert!(self.doubtful.0.remove(*at)));
        self.unname(&to);
        self.names.remove(&from);
        self.names.insert(to, thing);
        Some(())
    }

    fn change_mode(&mut self) -> Option<()> {
        let Some(at) = self.pick(|thing| thing.attributes.ftype != Ftype3::Lnk) else { return Some(()) };
        let (thing, bits) = (self.names[&at], [0o640, 0o700, 0o1755][self.draw(3)]);
        self.doubtful.1.insert(thing);
        let object = self.things[thing].handle;
        self.call(Procedure::Setattr, &SetattrArgs { object, new_attributes: mode(bits), guard: None })?;
        self.doubtful.1.remove(&thing);
        self.things[thing].mode = bits;
        Some(())
    }

    fn write(&mut self) -> Option<()> {
        let Some(at) = self.pick(|thing| thing.attributes.ftype == Ftype3::Reg) else { return Some(()) };
        let (thing, byte) = (self.names[&at], self.count as u8);
        self.doubtful.1.insert(thing);
        let (file, data) = (self.things[thing].handle, [byte; 4096]);
        let args = WriteArgs { file, offset: 0, count: 4096, stable: StableHow::FileSync, data: &data };
        self.call(Procedure::Write, &args)?;
        // Only the last answer to a change of names is requested again later.
        self.answered.pop();
        self.doubtful.1.remove(&thing);
        self.things[thing].byte = Some(byte);
        Some(())
    }

    /// Makes changes until one fails.
    fn work(&mut self, done: &AtomicUsize) {
        loop {
            let changed = match self.draw(12) {
                0..5 => self.make(),
                5..7 => self.remove(),
                7 => self.link(),
                8 | 9 => self.rename(),
                10 => self.change_mode(),
                _ => self.write(),
            };
            if changed.is_none() {
                return;
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Checks that everything is as acknowledged, as seen by client `c`.
    fn check(&self, c: &mut Client) {
        for (at, thing) in &self.names {
            if self.doubtful.0.contains(at) {
                continue;
            }
            let found = c.lookup(&self.dirs[at.0], at.1.as_bytes());
            let found = found.unwrap_or_else(|failed| panic!("{at:?} is lost: {}", failed.status));
            self.check_thing(c, at, *thing, &found.object);
        }
        let doubted = |thing: usize| self.doubtful.0.iter().any(|at| self.names.get(at) == Some(&thing));
        for (number, thing) in self.things.iter().enumerate().filter(|(_, thing)| thing.links == 0) {
            if !doubted(number) {
                assert_eq!(c.getattr(&thing.handle).status(), Nfsstat3::Stale, "what was removed is there");
            }
        }
        for (dir, handle) in self.dirs.iter().enumerate() {
            let page = c.readdirplus(handle, START, 1 << 20, 1 << 20).unwrap();
            assert!(page.eof);
            for entry in page.entries.iter().filter(|entry| !entry.name.starts_with(b".")) {
                let at = (dir, String::from_utf8(entry.name.clone()).unwrap());
                assert!(
                    self.names.contains_key(&at) || self.doubtful.0.contains(&at),
                    "{at:?} is there, and nobody has made it"
                );
                let Some(thing) = self.names.get(&at).filter(|_| !self.doubtful.0.contains(&at)) else {
                    continue;
                };
                let thing = &self.things[*thing];
                assert_eq!(entry.fileid, thing.attributes.fileid, "{at:?}: file id in a listing");
                assert_eq!(entry.handle, Some(thing.handle), "{at:?}: handle in a listing");
            }
        }
    }

    fn check_thing(&self, c: &mut Client, at: &Name, number: usize, found: &FileHandle) {
        let thing = &self.things[number];
        assert_eq!(*found, thing.handle, "{at:?} leads to another object");
        let attr = c.attr(found);
        assert_eq!((attr.ftype, attr.fileid), (thing.attributes.ftype, thing.attributes.fileid), "{at:?}");
        assert_eq!((attr.uid, attr.gid), (thing.attributes.uid, thing.attributes.gid), "{at:?}: owner");
        if self.doubtful.1.contains(&number) {
            return;
        }
        if attr.ftype != Ftype3::Lnk {
            assert_eq!(attr.mode, thing.mode, "{at:?}: mode");
        }
        if attr.ftype == Ftype3::Lnk {
            // A renamed link keeps its text, which is the first name of an object.
            assert!(c.readlink(found).unwrap().0.starts_with(b"n"));
        }
        if attr.ftype == Ftype3::Reg {
            let expected = thing.byte.map(|byte| vec![byte; 4096]).unwrap_or_default();
            assert_eq!(c.read(found, 0, 8192).unwrap().data, expected, "{at:?}: contents");
        }
    }
}

/// Lets clients work, and cuts the power after this number of changes. Returns the restarted server and the clients.
fn cut(array: &Array, seed: u64, changes: usize) -> (Server, Vec<Worker>) {
    let mut server = array.serve().cached().start();
    let mut c = server.connect();
    let root = c.root();
    let mut dirs = |n: u64| -> Vec<_> {
        (0..2).map(|part| c.new_dir(&root, format!("d{n}-{part}").as_bytes(), 0o755)).collect()
    };
    let mut workers: Vec<_> =
        (0..4).map(|n| Worker::new(server.connect(), seed * 4 + n + 1, dirs(n))).collect();
    let done: [AtomicUsize; 4] = Default::default();
    let enough = || {
        let done = done.each_ref().map(|done| done.load(Ordering::Relaxed));
        done.iter().sum::<usize>() >= changes && done.iter().all(|done| *done >= 60)
    };
    std::thread::scope(|scope| {
        let working = workers.iter_mut().zip(&done).map(|(worker, done)| scope.spawn(|| worker.work(done)));
        let working: Vec<_> = working.collect();
        while !enough() && !working.iter().all(|thread| thread.is_finished()) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        array.cut_power(&seed.to_string());
        server.kill();
    });
    assert!(array.power_on(), "the file system cannot be mounted any more");
    server.start();
    (server, workers)
}

fn survive(fs: &'static str) {
    for (seed, changes) in [(1, 300), (2, 900)] {
        let Some(array) = Array::new(fs) else { return };
        let (mut server, workers) = cut(&array, seed, changes);
        let look = |server: &Server| {
            let mut c = server.connect();
            for worker in &workers {
                worker.check(&mut c);
            }
        };
        look(&server);
        let outside = &server.status()["pool"]["counters"]["changed_outside"];
        assert_eq!(outside.as_u64(), Some(0), "{fs}, seed {seed}: recovery is taken for a change by others");
        let mut c = server.connect();
        for worker in &workers {
            assert!(worker.answered.len() > 20, "{fs}, seed {seed}: a client hardly came to work");
            let answered = worker.answered.iter().rev().filter(|(_, reply)| is_ok(reply)).take(20);
            for (record, reply) in answered {
                assert_eq!(&c.exchange(record), reply, "{fs}, seed {seed}: another answer");
            }
        }
        look(&server);
        // The next server must find the tree as recovery made it.
        server.kill();
        server.start();
        look(&server);
        server.stop();
        server.start();
        look(&server);
        server.stop();
    }
}

fn is_ok(reply: &[u8]) -> bool {
    let mut reader = Reader::new(reply);
    rpc::ReplyHeader::decode(&mut reader).unwrap();
    Nfsstat3::decode(&mut reader).unwrap() == Nfsstat3::Ok
}

#[test]
fn everything_acknowledged_is_there_after_a_power_cut_on_xfs() {
    survive("xfs");
}

#[test]
fn everything_acknowledged_is_there_after_a_power_cut_on_ext4() {
    survive("ext4");
}

#[test]
fn no_change_waits_for_a_commit_of_the_journal() {
    for fs in ["xfs", "ext4"] {
        let Some(array) = Array::new(fs) else { return };
        let server = array.serve().cached().start();
        let mut c = server.connect();
        let root = c.root();
        let operations = || server.status()["durability"]["operations"].as_u64().unwrap();
        let before = operations();
        let all = 100;
        for n in 0..all {
            let names = ["f", "d", "l", "p", "h", "g"].map(|kind| format!("{kind}{n}"));
            let [file, dir, symlink, fifo, link, moved] = names.each_ref().map(|name| name.as_bytes());
            let made = c.new_file(&root, file, 0o644);
            c.mkdir(&root, dir, mode(0o755)).unwrap();
            c.symlink(&root, symlink, b"to").unwrap();
            c.mknod(&root, fifo, MknodData::Fifo(mode(0o600))).unwrap();
            c.link(&made, &root, link).unwrap();
            c.setattr(&made, mode(0o600)).unwrap();
            c.rename((&root, file), (&root, moved)).unwrap();
            c.remove(&root, moved).unwrap();
            c.rmdir(&root, dir).unwrap();
        }
        // The server makes a checkpoint every few seconds, so a few commits are expected.
        let commits = operations() - before;
        assert!(commits <= all / 4, "{fs}: {commits} commits of the journal for {} changes", all * 9);
    }
}

/// Numbers start again after a clean stop. A rename intent of an earlier RENAME has a higher number. It must not
/// count as proof that a later change is durable without the log.
#[test]
fn what_was_said_before_a_stop_proves_nothing_after_it() {
    for fs in ["xfs", "ext4"] {
        let Some(array) = Array::new(fs) else { return };
        let mut server = array.serve().cached().start();
        let mut c = server.connect();
        let root = c.root();
        c.new_file(&root, b"a0", 0o644);
        for n in 0..200 {
            let [from, to] = [n, n + 1].map(|n| format!("a{n}"));
            c.rename((&root, from.as_bytes()), (&root, to.as_bytes())).unwrap();
        }
        server.stop();
        server.start();
        let mut c = server.connect();
        let name = |n: usize| format!("b{n}");
        let made: Vec<_> = (0..50).map(|n| c.new_file(&root, name(n).as_bytes(), 0o644)).collect();
        array.cut_power("1");
        server.kill();
        assert!(array.power_on());
        server.start();
        let mut c = server.connect();
        for (n, file) in made.iter().enumerate() {
            let found = c.lookup(&root, name(n).as_bytes());
            let found = found.unwrap_or_else(|failed| panic!("{fs}: {} is lost: {}", name(n), failed.status));
            assert_eq!(found.object, *file);
        }
        c.find(&root, b"a200");
        server.stop();
    }
}
