//! A test for each row of the tables in forebay-oplog's `reconcile` (docs/metadata-log.md), on a tree made by hand.

use std::collections::BTreeMap;

use forebay_oplog::{Identity, Kind, Name, New};

use super::check::{Crash, Expected, recover};
use super::exhaustive::small_tree;
use super::history::{History, Set};
use super::request::{How, Place, Request};
use super::volume::Volume;

const ALL: Set = u64::MAX;

/// A crash of the small tree after some operations.
struct Case {
    history: History,
    /// A file of an administrator, which exists before the recovery.
    theirs: Option<(Identity, &'static [u8])>,
}

fn at(dir: Identity, name: &str) -> Place {
    (dir, Name::from_slice(name.as_bytes()))
}

fn root() -> Identity {
    Volume::root()
}

/// Returns the object that a path leads to, by the identity that clients know.
fn find(volume: &Volume, path: &str) -> Identity {
    paths(volume)[path]
}

/// Returns the identity at every path of the tree, as clients know it.
fn paths(volume: &Volume) -> BTreeMap<String, Identity> {
    let (mut paths, mut dirs) = (BTreeMap::new(), vec![(String::new(), root())]);
    while let Some((above, dir)) = dirs.pop() {
        for (name, child) in &volume.inode(volume.resolve(dir).unwrap()).unwrap().entries {
            let path = format!("{above}{}", str::from_utf8(name).unwrap());
            dirs.push((format!("{path}/"), volume.outer(*child)));
            paths.insert(path, volume.outer(*child));
        }
    }
    paths
}

/// Returns the directories and the file of the small tree: `b`, `b/b` and `a`.
fn parts() -> (Identity, Identity, Identity) {
    let tree = small_tree();
    (find(&tree, "b"), find(&tree, "b/b"), find(&tree, "a"))
}

/// Carries out the requests on the small tree, one after another. The request with index N uses intent slot N.
fn case(requests: &[Request]) -> Case {
    let mut history = History::new(small_tree(), 0);
    for (slot, request) in requests.iter().enumerate() {
        history.carry_out(request, slot).unwrap();
    }
    Case { history, theirs: None }
}

impl Case {
    /// Recovers from a crash. The log has `logged`, and the file system this number of transactions. Returns the tree,
    /// the number of transactions of the recovery, and the names that were set aside.
    fn crash(&self, logged: Set, transactions: usize) -> (Volume, usize, Vec<String>) {
        let logged = logged & ((1 << self.history.steps.len()) - 1);
        let crash = Crash { logged, reverse: false, checkpoint: 0, transactions };
        let mut crashed = self.history.crashed(transactions);
        if let Some(theirs) = self.theirs {
            let identity = Some(self.history.identity_for_others(&crashed));
            crashed.make_as(identity, theirs, Kind::Fifo, &New::Plain).unwrap();
        }
        let recovered = recover(&self.history, crash, crashed).unwrap();
        if self.theirs.is_none() {
            Expected::new(&self.history, crash).check(&recovered.volume).unwrap();
        }
        let aside = recovered.outcome.set_aside.iter();
        let aside = aside.map(|aside| String::from_utf8(aside.name.to_vec()).unwrap()).collect();
        (recovered.volume.clone(), recovered.volume.history.len(), aside)
    }

    fn all(&self) -> usize {
        self.history.volume.history.len()
    }
}

fn names(volume: &Volume) -> Vec<String> {
    paths(volume).into_keys().collect()
}

#[test]
fn row_1_what_is_in_place_is_left_alone() {
    let (_, empty, _) = parts();
    let case = case(&[Request::Create(at(empty, "a"), How::Guarded)]);
    let (volume, steps, _) = case.crash(ALL, case.all());
    assert_eq!(
        (names(&volume), steps),
        (vec!["a".into(), "b".into(), "b/a".into(), "b/b".into(), "b/b/a".into()], 0)
    );
}

#[test]
fn row_2_what_lost_its_name_gets_it() {
    let (_, empty, file) = parts();
    let (volume, ..) = case(&[Request::Link(file, at(empty, "a"))]).crash(ALL, 0);
    assert_eq!(find(&volume, "b/b/a"), file);
}

#[test]
fn row_2_a_directory_is_moved() {
    let (dir, empty, _) = parts();
    let moved = case(&[Request::Remove(at(root(), "a")), Request::Rename(at(dir, "b"), at(root(), "a"))]);
    let (volume, ..) = moved.crash(ALL, 1);
    assert_eq!((find(&volume, "a"), names(&volume).len()), (empty, 3));
}

#[test]
fn row_3_what_is_in_the_way_and_known_is_detached() {
    let (dir, _, file) = parts();
    let requests = [
        Request::Create(at(root(), "c"), How::Guarded),
        Request::Rename(at(root(), "a"), at(root(), "d")),
        Request::Rename(at(root(), "c"), at(root(), "a")),
        Request::Rename(at(root(), "b"), at(root(), "c")),
    ];
    let rotated = case(&requests);
    let made = rotated.history.steps[0].done.made().unwrap();
    for transactions in 0..=rotated.all() {
        let (volume, _, aside) = rotated.crash(ALL, transactions);
        assert_eq!(["a", "c", "d"].map(|path| find(&volume, path)), [made, dir, file]);
        assert!(aside.is_empty());
    }
}

#[test]
fn row_4_what_is_in_the_way_and_unknown_is_set_aside() {
    let (_, empty, file) = parts();
    let mut linked = case(&[Request::Link(file, at(empty, "a"))]);
    linked.theirs = Some((empty, b"a"));
    let (volume, _, aside) = linked.crash(ALL, 0);
    assert_eq!(find(&volume, "b/b/a"), file);
    assert!(names(&volume).contains(&"b/b/a.forebay-1".into()));
    assert_eq!(aside, ["a.forebay-1"]);
}

#[test]
fn row_5_what_is_gone_and_new_is_made_again_under_its_old_identity() {
    let (_, empty, _) = parts();
    for request in [Request::Mkdir, Request::Symlink, Request::Mknod] {
        // The power cut takes back the generation that the removal counted up, so the new inode has an older one.
        let before = [Request::Create(at(empty, "x"), How::Guarded), Request::Remove(at(empty, "x"))];
        let made = case(&[&before[..], &[request(at(empty, "a"))]].concat());
        let (volume, ..) = made.crash(ALL, 0);
        let identity = made.history.steps[2].done.made().unwrap();
        assert_eq!(find(&volume, "b/b/a"), identity);
        assert_ne!(volume.resolve(identity), Some(identity), "an alias");
    }
}

#[test]
fn row_6_what_is_gone_and_new_comes_back_where_something_else_is() {
    let (_, empty, file) = parts();
    let mut made = case(&[Request::Create(at(empty, "a"), How::Exclusive)]);
    made.theirs = Some((empty, b"a"));
    let (volume, _, aside) = made.crash(ALL, 0);
    assert_eq!(find(&volume, "b/b/a"), made.history.steps[0].done.made().unwrap());
    assert_eq!(aside, ["a.forebay-1"]);

    let replaced =
        case(&[Request::Remove(at(root(), "a")), Request::Create(at(root(), "a"), How::Unchecked)]);
    let (volume, _, aside) = replaced.crash(ALL, 0);
    assert_eq!(find(&volume, "a"), replaced.history.steps[1].done.made().unwrap());
    assert_eq!((find(&volume, "b/a"), aside), (file, vec![]));
}

#[test]
fn row_7_what_was_there_at_the_checkpoint_and_is_gone_was_removed() {
    let (dir, empty, file) = parts();
    let remove = |dir, name| Request::Remove(at(dir, name));
    let requests =
        [Request::Link(file, at(empty, "a")), remove(root(), "a"), remove(dir, "a"), remove(empty, "a")];
    let mut removed = case(&requests);
    let (volume, ..) = removed.crash(1, removed.all());
    assert_eq!(names(&volume), ["b", "b/b"]);
    removed.theirs = Some((empty, b"a"));
    let (volume, ..) = removed.crash(1, removed.all());
    assert_eq!(names(&volume), ["b", "b/b", "b/b/a"]);
}

#[test]
fn row_8_directories_that_are_gone_and_new_come_back_with_all_that_is_in_them() {
    let (_, empty, file) = parts();
    let mut history = case(&[Request::Mkdir(at(empty, "a"))]).history;
    let made = history.steps[0].done.made().unwrap();
    history.carry_out(&Request::Mkdir(at(made, "a")), 1).unwrap();
    history.carry_out(&Request::Link(file, at(made, "b")), 2).unwrap();
    history.carry_out(&Request::Rename(at(root(), "a"), at(made, "c")), 3).unwrap();
    let (volume, ..) = Case { history, theirs: None }.crash(ALL, 0);
    assert_eq!(["b/a", "b/b/a/b", "b/b/a/c"].map(|path| find(&volume, path)), [file; 3]);
    assert_eq!(find(&volume, "b/b/a"), made);
    assert!(names(&volume).contains(&"b/b/a/a".into()));
}

#[test]
fn row_9_what_was_in_a_directory_that_was_removed_is_gone_with_it() {
    let (dir, empty, file) = parts();
    let requests =
        [Request::Link(file, at(empty, "a")), Request::Remove(at(empty, "a")), Request::Rmdir(at(dir, "b"))];
    let removed = case(&requests);
    let (volume, steps, _) = removed.crash(1, removed.all());
    assert_eq!((names(&volume), steps), (vec!["a".into(), "b".into(), "b/a".into()], 0));
}

#[test]
fn row_10_what_was_removed_stays_so() {
    let removed = case(&[Request::Remove(at(root(), "a"))]);
    assert_eq!(removed.crash(ALL, 1).1, 0);
}

#[test]
fn row_11_what_was_removed_goes() {
    let (dir, empty, file) = parts();
    let (volume, ..) = case(&[Request::Remove(at(root(), "a"))]).crash(ALL, 0);
    assert_eq!(names(&volume), ["b", "b/a", "b/b"]);
    assert_eq!(find(&volume, "b/a"), file);

    let mut removed = case(&[Request::Rmdir(at(dir, "b"))]);
    assert_eq!(names(&removed.crash(ALL, 0).0), ["a", "b", "b/a"]);
    removed.theirs = Some((empty, b"theirs"));
    let (volume, _, aside) = removed.crash(ALL, 0);
    assert_eq!(names(&volume), ["a", "b", "b/a", "b/b.forebay-1", "b/b.forebay-1/theirs"]);
    assert_eq!(aside, ["b.forebay-1"]);
}

#[test]
fn row_11_a_directory_goes_with_all_that_was_in_it() {
    let (dir, empty, _) = parts();
    let requests =
        [Request::Remove(at(dir, "a")), Request::Rmdir(at(dir, "b")), Request::Rmdir(at(root(), "b"))];
    let mut removed = case(&requests);
    assert_eq!(names(&removed.crash(ALL, 0).0), ["a"]);
    removed.theirs = Some((empty, b"theirs"));
    let (volume, ..) = removed.crash(ALL, 0);
    assert_eq!(names(&volume), ["a", "b.forebay-1", "b.forebay-1/theirs"]);
}

#[test]
fn row_12_what_came_after_a_removal_stays() {
    let mut removed = case(&[Request::Remove(at(root(), "a"))]);
    removed.theirs = Some((root(), b"a"));
    let (volume, _, aside) = removed.crash(ALL, 1);
    assert_eq!(names(&volume), ["a", "b", "b/a", "b/b"]);
    assert!(aside.is_empty());
}

#[test]
fn an_intent_tells_that_what_was_replaced_is_gone() {
    let (_, empty, _) = parts();
    let requests = [
        Request::Create(at(empty, "a"), How::Guarded),
        Request::Mknod(at(empty, "b")),
        Request::Rename(at(empty, "a"), at(empty, "b")),
    ];
    let renamed = case(&requests);
    let (volume, steps, _) = renamed.crash(0b11, renamed.all());
    assert_eq!(find(&volume, "b/b/b"), renamed.history.steps[0].done.made().unwrap());
    assert_eq!((names(&volume).contains(&"b/b/a".into()), steps), (false, 0));
    let (volume, ..) = renamed.crash(0b11, renamed.all() - 1);
    assert_eq!(
        find(&volume, "b/b/a"),
        renamed.history.steps[0].done.made().unwrap(),
        "it did not come to it"
    );
}

#[test]
fn what_set_the_attributes_of_a_directory_tells_that_a_rename_before_it_was_carried_out() {
    let (dir, empty, file) = parts();
    let requests = [
        Request::Link(file, at(dir, "c")),
        Request::Rename(at(dir, "c"), at(empty, "c")),
        Request::Setattr(empty),
        Request::Remove(at(empty, "c")),
        // The slot is that of the first RENAME, whose record was durable.
        Request::Rename(at(root(), "a"), at(root(), "c")),
    ];
    let mut history = History::new(small_tree(), 0);
    for request in &requests {
        history.carry_out(request, 0).unwrap();
    }
    let renamed = Case { history, theirs: None };
    let (volume, steps, _) = renamed.crash(0b111, renamed.all());
    // The directory does not get the time of the recovery either.
    assert_eq!((names(&volume).contains(&"b/b/c".into()), steps), (false, 0));
}

#[test]
fn an_intent_tells_that_what_was_made_before_it_was_removed() {
    let (_, empty, _) = parts();
    let requests = [
        Request::Mkdir(at(empty, "a")),
        Request::Rmdir(at(empty, "a")),
        Request::Create(at(empty, "a"), How::Guarded),
        Request::Rename(at(root(), "a"), at(root(), "c")),
    ];
    let renamed = case(&requests);
    let (volume, steps, aside) = renamed.crash(1, renamed.all());
    assert_eq!(find(&volume, "b/b/a"), renamed.history.steps[2].done.made().unwrap());
    assert_eq!((steps, aside), (0, vec![]));
}
