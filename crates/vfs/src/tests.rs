//! A server without a network, with a cache: changes are carried out, and become durable when the test says so.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use forebay_disk::FileDevice;
use forebay_engine::io::{Backing as _, BackingError, Device};
use forebay_engine::pool::Pool;
use forebay_engine::{CachedObject as Cached, Engine, Env, Mode, Settings};
use forebay_runtime::{SystemClock, Threads, block_on};

use super::durability::request_journal::RequestJournal;
use super::*;

mod change_times;
mod kept;
mod recent;
mod turns;

/// The file system is synced inode by inode, so that changes become durable in any order.
struct Served {
    vfs: Vfs,
    root: Target,
    cred: Cred,
    dir: tempfile::TempDir,
}

fn serve(mode: Mode) -> Served {
    serve_watched(mode, |_| None)
}

/// Starts a server with a cache and, if `watch` returns one, a source of news about external changes.
fn serve_watched(mode: Mode, watch: impl FnOnce(&std::path::Path) -> Option<Arc<HostWatch>>) -> Served {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let [path, state_dir] = ["data", "state"].map(|name| dir.path().join(name));
    [&path, &state_dir].into_iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    let verifier = Arc::new(Verifier::open(&state_dir).unwrap());
    let watch = watch(&path);
    let spec = ExportSpec { id: 1, name: "/".to_owned(), path, watch };
    let budget = Budget::new(1000, 1 << 20);
    let vfs = Vfs::open(&[spec], HandleKey::new(&[1; 16]), verifier, budget, |run| run()).ok().unwrap();
    let store = vfs.store(&state_dir, &[], &[]).unwrap();
    let engine = start(&store, &state_dir, mode, |pool, opening| {
        let downtime = vfs.own(&store, &state_dir, pool, true).unwrap();
        (downtime, vfs.recover(&store, &state_dir, (1, false), opening.notes()).unwrap())
    });
    let (engine, (downtime, recovery)) = engine;
    vfs.set_cache(engine, &store, downtime, recovery, Arc::new(|_| {})).unwrap();
    let root = vfs.exports().iter().next().unwrap().root();
    let cred = vfs.creds.intern(&Identity { uid: vfs.server_uid, gid: 0, groups: Default::default() });
    Served { vfs, root, cred, dir }
}

fn start<T>(
    store: &Store,
    state_dir: &std::path::Path,
    mode: Mode,
    recover: impl FnOnce(u128, &forebay_engine::Opening) -> T,
) -> (Arc<Engine>, T) {
    let device = |name| FileDevice::open_or_create(&state_dir.join(name), 64 << 20).unwrap();
    let devices = ["one", "two"].map(|name| Arc::new(device(name)) as Arc<dyn Device>);
    let mut uuid = 0;
    let mut random = || {
        uuid += 1;
        uuid
    };
    let pool = block_on(Pool::format(devices.into(), &mut random, true)).unwrap();
    let identity = pool.uuid;
    let env = Env {
        clock: Arc::new(SystemClock::new()),
        spawn: Arc::new(Threads::new()),
        backing: Arc::new(store.clone()),
        witness: None,
        deliver: Arc::new(|run: &mut dyn FnMut()| run()),
        events: Arc::new(|_| {}),
    };
    let settings = Settings { mode, ..Settings::default() };
    let opening = block_on(Engine::begin(pool, env, settings)).unwrap();
    let recovered = recover(identity, &opening);
    (block_on(opening.finish()).unwrap().0, recovered)
}

impl Served {
    /// Makes a change's commit request durable. Keeps no answer, so it does not wait for changes before it.
    fn commit(&self, intent: Option<CommitRequest>) {
        let Some(intent) = intent else { return };
        let (send, done) = channel();
        let done_with = Box::new(move |result| send.send(result).unwrap());
        self.vfs.commit(&self.root.export, intent, &[], done_with);
        done.recv().unwrap().unwrap();
    }

    /// Creates a file with a name that is durable.
    fn create(&self, name: &[u8]) -> Target {
        let how = Create::Guarded(SetAttr::default());
        let Changed { result, intent, .. } = self.vfs.create(&self.root, name, how, &self.cred, None);
        self.commit(intent);
        result.unwrap().0
    }

    fn write(&self, file: &Target, stable: bool) -> Option<CommitRequest> {
        let written =
            self.vfs.write(file, DataCaller::without_open(&self.cred), 0, &[7; 4096], stable, Wait::Yes);
        let Outcome::Done(Changed { result, intent, .. }) = written else { panic!("the write waits") };
        assert_eq!(result.unwrap().stable, stable);
        intent
    }

    fn cached(&self, file: &Target) -> Option<Arc<Cached>> {
        let linked = self.root.export.fs.linked()?;
        self.root.export.fs.inodes.all().iter().for_each(|object| linked.check(object));
        self.root.export.fs.inodes.check();
        let key = linked.key(&file.object.kernel);
        self.vfs.engine()?.known(&key)
    }

    /// Waits until the cache has forgotten a file, and all that it was told to forget before.
    fn forgotten(&self, file: &Target) {
        let begun = Instant::now();
        while self.cached(file).is_some_and(|cached| cached.dirty_blocks() > 0) {
            assert!(begun.elapsed() < Duration::from_secs(60), "it is never forgotten");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn remove(&self, name: &[u8]) -> Option<CommitRequest> {
        let Changed { result, intent, .. } = self.vfs.remove(&self.root, name, &self.cred, None);
        result.unwrap();
        intent
    }

    /// Gives the name to another file.
    fn replace(&self, name: &[u8]) -> Option<CommitRequest> {
        self.create(b"other");
        let Renamed { result, intent, .. } =
            self.vfs.rename(&self.root, b"other", &self.root, name, &self.cred, None);
        result.unwrap();
        intent
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // A panic says more than what fails after it.
        let _ = self.vfs.stop();
    }
}

#[test]
fn a_file_that_loses_two_names_at_once_is_forgotten_when_both_removals_are_durable() {
    type Remove = fn(&Served, &[u8]) -> Option<CommitRequest>;
    let ways: [Remove; 2] = [|served, name| served.remove(name), |served, name| served.replace(name)];
    let served = serve(Mode::WriteBack);
    for (first, second, late) in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 0), (1, 0, 1)] {
        let file = served.create(b"a");
        let Changed { result, intent, .. } = served.vfs.link(&file, &served.root, b"b", &served.cred, None);
        result.unwrap();
        served.commit(intent);
        served.commit(served.write(&file, true));
        let mut removals = [ways[first](&served, b"a"), ways[second](&served, b"b")];
        served.commit(removals[1 - late].take());
        // What is forgotten is so in order.
        let marker = served.create(b"marker");
        served.commit(served.write(&marker, true));
        served.commit(served.remove(b"marker"));
        served.forgotten(&marker);
        assert_eq!(served.cached(&file).unwrap().dirty_blocks(), 1, "a crash may bring a name back");
        served.commit(removals[late].take());
        served.forgotten(&file);
        for name in [&b"a"[..], b"b"] {
            let there = served.vfs.remove(&served.root, name, &served.cred, None);
            served.commit(there.intent);
        }
    }
}

#[test]
fn the_cache_knows_what_of_a_file_is_synced() {
    let served = serve(Mode::WriteAround);
    for stable in [false, true] {
        let file = served.create(b"file");
        let intent = served.write(&file, stable);
        let cached = served.cached(&file).unwrap();
        let is_synced = || match cached.begin_sync(0, 0) {
            Some(sync) => {
                sync.end(false);
                false
            }
            None => true,
        };
        if stable {
            served.commit(intent);
        } else {
            assert!(intent.is_none());
            let (Changed { intent, .. }, _) =
                served.vfs.commit_range(&file, DataCaller::without_open(&served.cred), 0, 0);
            served.commit(intent);
        }
        assert!(is_synced(), "stable: {stable}");
        let unsynced = served.write(&file, stable);
        assert!(!is_synced());
        drop(unsynced);
        served.commit(served.remove(b"file"));
    }
}

/// Recovery asks for such an inode when a power cut removed the file and its alias and left the record.
#[test]
fn a_handle_that_an_inode_made_by_recovery_happens_to_have_is_stale() {
    let Served { vfs, dir, .. } = &serve(Mode::WriteBack);
    let fs = vfs.filesystems()[0].clone();
    std::fs::write(dir.path().join("data/made"), b"").unwrap();
    let file = std::fs::File::open(dir.path().join("data/made")).unwrap();
    let inner = crate::sys::name_to_handle(&file, c"").unwrap();
    let mut outer = inner;
    outer.bytes[0] ^= 1;
    fs.aliases.insert(outer, inner).unwrap();
    assert_eq!(fs.resolve(&inner, true).map(drop), Err(Error::Stale));
    assert_eq!(fs.resolve(&outer, true).unwrap().kernel, outer);
}

/// Recovery could otherwise find a change of an inode, and not the inode.
#[test]
fn requests_about_a_new_inode_wait_for_the_record_of_its_creation_only() {
    let served = serve(Mode::WriteBack);
    let Served { vfs, root, cred, dir } = &served;
    let find = |target: &Target| vfs.target(vfs.handle(target).as_slice(), Wait::No).map(drop);
    let fs = &root.export.fs;
    let other = fs.making.begin();
    let how = Create::Guarded(SetAttr::default());
    let Changed { result, intent, .. } = vfs.create(root, b"made", how, cred, None);
    let made = result.unwrap().0;
    assert_eq!(find(&made), Err(Error::WouldBlock));
    served.commit(intent);
    assert_eq!(find(&made), Ok(()), "another creation did not make it");

    std::fs::write(dir.path().join("data/seen"), b"").unwrap();
    let (object, _) = fs.child(&root.object, b"seen", false).unwrap();
    let seen = Target { export: root.export.clone(), object };
    assert_eq!(find(&seen), Err(Error::WouldBlock), "any creation in progress may have made it");
    drop(other);
    assert_eq!(find(&seen), Ok(()));
}

#[test]
fn what_only_had_an_identity_of_the_servers_own_and_is_lost_is_stale() {
    let served = serve(Mode::WriteBack);
    let lost = crate::sys::KernelHandle::from_name(b"fffe-19e8a0ef10d7a801").unwrap();
    let fs = &served.vfs.filesystems()[0];
    assert_eq!(fs.open_inner(&lost).map(drop), Err(Error::Stale));
}

/// After a kill the log may have data of any number of files whose removal it knows. Each of them made the start wait
/// for a barrier.
#[test]
fn removed_files_that_are_asked_for_together_wait_for_one_barrier() {
    let served = serve(Mode::WriteBack);
    let journal = &served.root.export.fs.journal;
    let store = served.vfs.store(&served.dir.path().join("state"), &[], &[]).unwrap();
    let names: Vec<_> = (0..100).map(|number| format!("file{number}")).collect();
    let key = |name: &String| crate::caches::link::key(1, &served.create(name.as_bytes()).object.kernel);
    let keys: Vec<_> = names.iter().map(key).collect();
    let kept = key(&"kept".to_owned());
    let removed = keys.iter().cloned().collect();
    store.logged(crate::backing::Logged { removed, ..Default::default() });
    let data = served.dir.path().join("data");
    names.iter().for_each(|name| std::fs::remove_file(data.join(name)).unwrap());
    let barriers = || journal.stats.barriers.load(std::sync::atomic::Ordering::Relaxed);
    let before = barriers();
    let mut sizes = block_on(store.sizes(keys.into_iter().chain([kept]).collect()));
    assert_eq!(sizes.pop(), Some(Ok(0)));
    assert_eq!(sizes, [Err(BackingError::Gone); 100]);
    assert_eq!(barriers() - before, 1);
}

/// A server that is killed must not find done a change that it has refused, or was about to refuse.
#[test]
fn what_is_refused_is_not_found_under_way() {
    let served = serve(Mode::WriteBack);
    let state = served.dir.path().join("state");
    let (vfs, root, cred) = (&served.vfs, &served.root, &served.cred);
    let asked = LoggedReply { answer: b"key and reply".to_vec(), key: 3 };
    let asked = Some(&asked);
    let dir = |name: &[u8]| {
        let made = vfs.make(root, name, Special::Directory, &SetAttr::default(), cred, None);
        served.commit(made.intent);
        made.result.unwrap().0
    };
    let (file, full, _) = (served.create(b"file"), dir(b"full"), dir(b"empty"));
    served.commit(vfs.link(&file, &full, b"inside", cred, None).intent);
    let begun = || std::fs::metadata(state.join("under-way")).unwrap().len();
    let before = begun();
    // Names that exist or are missing already are no change in progress: nothing is written down.
    let taken = Create::Guarded(SetAttr::default());
    assert!(vfs.create(root, b"file", taken, cred, asked).result.is_err());
    assert!(vfs.make(root, b"full", Special::Fifo, &SetAttr::default(), cred, asked).result.is_err());
    assert!(vfs.link(&file, root, b"file", cred, asked).result.is_err());
    assert!(vfs.remove(root, b"none", cred, asked).result.is_err());
    assert!(vfs.rename(root, b"none", root, b"other", cred, asked).result.is_err());
    assert_eq!(begun(), before);
    // These were begun, and taken back.
    assert!(vfs.rmdir(root, b"full", cred, asked).result.is_err());
    assert!(vfs.rename(root, b"empty", root, b"full", cred, asked).result.is_err());
    assert!(begun() > before);
    assert_eq!(RequestJournal::open(&state, 1).unwrap().1, []);
    // As opposed to this.
    let removed = vfs.remove(root, b"file", cred, asked);
    assert!(removed.result.is_ok());
    assert_eq!(RequestJournal::open(&state, 1).unwrap().1.len(), 1);
    served.commit(removed.intent);
}

/// The change time does not show a host's write that comes between the two reads of the change time around a change by
/// the server. Without this check, cached contents were served on.
#[test]
fn contents_that_the_host_changes_during_a_change_of_the_servers_own_are_suspect() {
    let mut watched = false;
    let served = serve_watched(Mode::WriteBack, |path| {
        let watch = HostWatch::open(path).map(Arc::new);
        watched = watch.is_some();
        watch
    });
    if !watched {
        eprintln!("not run: the kernel does not tell of changes here");
        return;
    }
    let file = served.create(b"f");
    served.commit(served.write(&file, true));
    let engine = served.vfs.engine().unwrap();
    block_on(engine.flush()).unwrap();
    let (fs, link) = (&file.export.fs, &file.object.link);
    let cached = served.cached(&file).unwrap();
    for way in 0..3 {
        assert!(!link.is_suspect());
        let own = match way {
            0 => fs.own_change(&file.object),
            1 => fs.hidden_change(&file.object),
            _ => fs.own_write(&file.object),
        };
        // Another process: the server's own writes are told as such.
        let path = served.dir.path().join("data/f");
        let write =
            std::process::Command::new("sh").args(["-c", "printf x 1<> \"$0\" >&1"]).arg(&path).status();
        assert!(write.unwrap().success());
        drop(own);
        fs.linked().unwrap().look(&file.object, &file.object.raw_attr().unwrap());
        // A WRITE reads no queue.
        let begun = Instant::now();
        while way == 2 && !link.is_suspect() && begun.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(link.is_suspect(), "way {way}: the cache goes on with what was there before");
        assert!(fs.linked().unwrap().forget(&file.object, &cached).unwrap());
    }
}

#[test]
fn an_inode_that_comes_back_refers_to_the_data_that_only_the_cache_has() {
    let served = serve(Mode::WriteBack);
    let file = served.create(b"file");
    served.commit(served.write(&file, true));
    assert!(served.cached(&file).is_some_and(|cached| cached.dirty_blocks() > 0));
    let fs = &served.root.export.fs;
    let kernel = file.object.kernel;
    fs.inodes.forget(&file.object);
    drop(file);
    let object = fs.resolve(&kernel, true).unwrap();
    fs.linked().unwrap().check(&object);
    assert_eq!(object.attr().unwrap().size, 4096, "with the size that the cache knows");
}

/// The first piece goes to the backing file, since it takes the set-user-id bit away. The others go to the log.
#[test]
fn the_reply_to_a_copy_waits_for_all_its_pieces() {
    for mode in [Mode::WriteBack, Mode::WriteThrough] {
        let served = serve(mode);
        let set = SetAttr { mode: Some(0o4666), ..SetAttr::default() };
        let files = [b"from", b"into"].map(|name| served.create(name));
        for file in &files {
            let Changed { result, intent, .. } = served.vfs.setattr(file, &served.cred, &set, None);
            served.commit(intent);
            result.unwrap();
        }
        let [source, target] = &files;
        let data = vec![7; 5 << 19];
        let written =
            served.vfs.write(source, DataCaller::without_open(&served.cred), 0, &data, true, Wait::Yes);
        let Outcome::Done(Changed { result, intent, .. }) = written else { panic!("the write waits") };
        served.commit(intent);
        assert_eq!(result.unwrap().len, data.len());
        let user = served.vfs.creds.intern(&Identity { uid: 7, gid: 7, groups: Default::default() });
        let (reader, writer) = (DataCaller::without_open(&served.cred), DataCaller::without_open(&user));
        let copy = CopyRange { source, reader, source_offset: 100, target, writer, offset: 50, len: 0 };
        let Changed { result, intent, .. } = served.vfs.copy(&copy, |_| true);
        let copied = result.unwrap();
        assert_eq!((copied.len, copied.stable), (data.len() as u64 - 100, mode == Mode::WriteBack));
        if mode == Mode::WriteThrough {
            assert!(intent.is_none_or(|intent| intent.sync.is_empty()), "an unstable copy waits for nothing");
            continue;
        }
        let intent = intent.unwrap();
        if served.vfs.is_privileged() {
            let data = intent.sync.data.as_ref().unwrap();
            assert_eq!((data.offset, data.len), (50, (1 << 20) - 50));
        }
        assert!(intent.frame.is_some());
        served.commit(Some(intent));
    }
}
