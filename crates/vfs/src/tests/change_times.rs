//! Change times on a kernel whose clock of change times has ticks.

use std::path::Path;

use super::*;
use crate::attr::coarse;

/// Starts a server without a cache.
fn serve_bare(dir: &Path) -> (Vfs, Target, Cred) {
    let [path, state] = ["data", "state"].map(|name| dir.join(name));
    [&path, &state].into_iter().for_each(|dir| std::fs::create_dir_all(dir).unwrap());
    let spec = ExportSpec { id: 1, name: "/".to_owned(), path, watch: None };
    let verifier = Arc::new(Verifier::open(&state).unwrap());
    let budget = Budget::new(1000, 1 << 20);
    let vfs = Vfs::open(&[spec], HandleKey::new(&[1; 16]), verifier, budget, |run| run()).ok().unwrap();
    let root = vfs.exports().iter().next().unwrap().root();
    let cred = vfs.creds.intern(&Identity { uid: vfs.server_uid, gid: 0, groups: Default::default() });
    (vfs, root, cred)
}

/// Lets this much time pass without a tick of the clock of change times.
fn wait(nanos: u32) {
    let Time { sec, nsec } = coarse::now().unwrap();
    coarse::set(coarse::ctime().unwrap(), Time { sec, nsec: nsec + nanos });
}

fn listed(vfs: &Vfs, dir: &Target, cred: &Cred, name: &[u8]) -> Attr {
    let mut found = None;
    let visit = |entry: EntryPlus<'_>| {
        found = found.or(entry.found.filter(|_| entry.entry.name == name));
        true
    };
    vfs.readdirplus(dir, cred, 0, Wait::Yes, visit).unwrap();
    found.unwrap().0
}

fn change(vfs: &Vfs, target: &Target, cred: &Cred, mode: u32) -> Time {
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    vfs.setattr(target, cred, &set, None).result.unwrap();
    target.attr().unwrap().ctime
}

#[test]
fn under_coarse_change_times_no_time_returns_when_an_inode_leaves_memory_or_the_server_ends() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let tick = Time { sec: 1_700_000_000, nsec: 4_000_000 };
    coarse::set(tick, tick);
    let (vfs, root, cred) = serve_bare(dir.path());
    let made = vfs.create(&root, b"file", Create::Guarded(SetAttr::default()), &cred, None);
    let (mut file, _) = made.result.ok().unwrap();
    wait(1000);
    // Another client looks between two changes of one tick.
    let mut seen = vec![change(&vfs, &file, &cred, 0o600)];
    wait(1000);
    change(&vfs, &file, &cred, 0o640);
    let kernel = file.object.kernel;
    for (waits, mode) in [(1000, 0o600), (1000, 0o644), (900_000_000, 0o600)] {
        root.export.fs.inodes.forget(&file.object);
        drop(file);
        wait(waits);
        let listed = listed(&vfs, &root, &cred, b"file").ctime;
        let object = root.export.fs.resolve(&kernel, true).unwrap();
        file = Target { export: root.export.clone(), object };
        let shown = file.attr().unwrap().ctime;
        assert!(!seen.contains(&shown) && !seen.contains(&listed), "{shown:?} {listed:?} {seen:?}");
        seen.push(shown);
        wait(1000);
        let changed = change(&vfs, &file, &cred, mode);
        assert!(!seen.contains(&changed), "{changed:?} {seen:?}");
    }
    drop((file, root, vfs));
    wait(1000);
    let started = serve_bare(dir.path());
    let look = |(vfs, root, cred): &(Vfs, Target, Cred)| {
        let listed = listed(vfs, root, cred, b"file").ctime;
        (listed, vfs.lookup(root, b"file", cred, Wait::Yes).0.unwrap().attr.ctime)
    };
    let shown = look(&started);
    assert!(!seen.contains(&shown.0) && !seen.contains(&shown.1), "{shown:?} {seen:?}");
    drop(started);
    coarse::set(tick, Time { sec: tick.sec + 60, ..tick });
    let settled = look(&serve_bare(dir.path()));
    assert!(settled.0 == settled.1 && !seen.contains(&settled.0), "{settled:?} {seen:?}");
    coarse::set(tick, Time { sec: tick.sec + 3600, ..tick });
    assert_eq!(look(&serve_bare(dir.path())), settled, "a restart shows no change if there was none");
}

/// A write that only the cache has shows in the change time by its own clock, which is fine.
#[test]
fn under_coarse_change_times_a_change_after_a_cached_write_shows_when_the_inode_was_away() {
    let tick = Time { sec: 1_700_000_000, nsec: 4_000_000 };
    coarse::set(tick, tick);
    let served = serve(Mode::WriteBack);
    let (root, cred) = (&served.root, &served.cred);
    let mut file = served.create(b"file");
    wait(1000);
    served.commit(served.write(&file, true));
    let mut seen = vec![file.attr().unwrap().ctime];
    assert_eq!(seen, [coarse::now().unwrap()], "the time of the write");
    for mode in [0o600, 0o640] {
        wait(1000);
        let changed = change(&served.vfs, &file, cred, mode);
        let kernel = file.object.kernel;
        root.export.fs.inodes.forget(&file.object);
        drop(file);
        wait(1000);
        file = Target { export: root.export.clone(), object: root.export.fs.resolve(&kernel, true).unwrap() };
        let shown = file.attr().unwrap().ctime;
        assert!(!seen.contains(&shown), "{shown:?} {seen:?} {changed:?}");
        seen.push(shown);
    }
}
