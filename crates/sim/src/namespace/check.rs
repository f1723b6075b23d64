//! Checks of a tree after recovery.
//!
//! There must be a set of operations that alone would have led to this very tree. The set has all logged operations,
//! and any of those that were carried out and not logged. The trees must agree in names, in objects (by the identity
//! that clients know), and in attributes.
//!
//! Beside that tree there may be objects that were set aside. A live object must not be among them, except under names
//! from LINKs that were not logged.

use std::collections::{BTreeMap, BTreeSet};

use forebay_oplog::{Identity, Kind, Outcome, Time, reconcile};

use super::history::{History, Set};
use super::request::{Place, Request};
use super::volume::{Refused, Volume};

/// A crash: the remains of the log and of the file system.
#[derive(Clone, Copy, Debug)]
pub struct Crash {
    /// The operations in the log.
    pub logged: Set,
    /// True if the log has the operations in another order than they were carried out.
    pub reverse: bool,
    /// The number up to which all operations are in the file system, according to the log.
    pub checkpoint: u64,
    /// The transactions in the file system.
    pub transactions: usize,
}

/// The conditions that hold after a crash.
pub struct Expected<'a> {
    history: &'a History,
    crash: Crash,
    /// Operations that were carried out at least in part, and not logged.
    unlogged: Set,
    /// Objects of operations that were carried out in part and not logged.
    partly: BTreeSet<Identity>,
    /// Objects that got names from operations that were not logged. Such a name may have been in the way.
    linked: BTreeSet<Identity>,
    /// Objects of creations that were not logged. No client knows their handles.
    unknown: BTreeSet<Identity>,
    /// Modification times of directories, according to the log.
    times: BTreeMap<Identity, Time>,
}

/// Names with the identities that clients know.
type Names = BTreeMap<Place, Identity>;

impl<'a> Expected<'a> {
    /// Makes the conditions after a crash.
    pub fn new(history: &'a History, crash: Crash) -> Self {
        let Crash { logged, checkpoint, transactions, .. } = crash;
        let (partly, linked, unknown, times) = Default::default();
        let mut expected = Expected { history, crash, unlogged: 0, partly, linked, unknown, times };
        for (index, step) in history.steps.iter().enumerate() {
            if logged >> index & 1 == 1 {
                let objects = step.done.operation.objects.iter();
                let told = objects.filter(|_| step.done.operation.number > checkpoint);
                expected.times.extend(told.map(|object| (object.identity, object.attributes.mtime)));
            } else if transactions > step.begin {
                expected.unlogged |= 1 << index;
                expected.unknown.extend(step.done.made());
                if let Request::Link(object, _) = &step.done.request {
                    expected.linked.insert(*object);
                }
                expected.partly.extend(step.done.in_steps.filter(|_| transactions < step.end));
            }
        }
        expected
    }

    /// Compares a tree with the possible ones.
    pub fn check(&self, after: &Volume) -> Result<(), String> {
        sound(after)?;
        let mut nearest: Option<String> = None;
        let mut subset = self.unlogged;
        loop {
            let set = self.crash.logged | subset;
            let replay = self.history.replay(set);
            // Otherwise one of the logged operations would have another result.
            if replay.same & self.crash.logged == self.crash.logged {
                let Err(error) = self.compare(after, &replay.volume) else { return Ok(()) };
                let error = format!("compared with {set:b}: {error}");
                nearest = Some(nearest.filter(|nearest| nearest.len() <= error.len()).unwrap_or(error));
            }
            if subset == 0 {
                return Err(nearest.unwrap_or_else(|| "no set of operations is possible".to_owned()));
            }
            subset = (subset - 1) & self.unlogged;
        }
    }

    /// Compares the recovered tree with the expected one: names, handles, attributes, and objects that were set
    /// aside.
    fn compare(&self, after: &Volume, model: &Volume) -> Result<(), String> {
        let expected = names(model, None);
        let mut found = names(after, None);
        let aside: Vec<_> = found.keys().filter(|place| is_aside(place, &expected)).cloned().collect();
        let mut beside = BTreeSet::new();
        for place in aside {
            beside.extend(found.remove(&place));
        }
        let mut kept = names(after, Some(&expected));
        // Objects that were set aside may have other names, from LINKs that were not logged either.
        kept.retain(|place, object| {
            expected.contains_key(place) || !(beside.contains(object) && self.linked.contains(object))
        });
        beside
            .extend(found.iter().filter(|(place, _)| !kept.contains_key(*place)).map(|(_, object)| *object));
        if kept != expected {
            let wrong = kept.iter().filter(|(place, object)| expected.get(place) != Some(object));
            let missing = expected.iter().filter(|(place, object)| kept.get(place) != Some(object));
            return Err(format!("names are {:?}, not {:?}", Vec::from_iter(wrong), Vec::from_iter(missing)));
        }
        let living: BTreeSet<Identity> = expected.values().copied().chain([Volume::root()]).collect();
        for object in self.history.identities().filter(|object| *object != Volume::moving_dir()) {
            match (after.resolve(object), living.contains(&object)) {
                (Some(inner), true) => self.compare_object(object, after, inner, model)?,
                (None, true) if self.unknown.contains(&object) => {}
                (None, true) => return Err(format!("the handle {object:?} is stale")),
                (Some(_), false) if !beside.contains(&object) => {
                    return Err(format!("{object:?} was removed and its handle works"));
                }
                _ => {}
            }
        }
        match beside.intersection(&living).find(|object| !self.linked.contains(object)) {
            Some(object) => Err(format!("{object:?} lives and was set aside")),
            None => Ok(()),
        }
    }

    /// Compares kind, contents and attributes of one object in the two trees. Access times may differ, and so may
    /// attributes that were partly set.
    fn compare_object(
        &self,
        object: Identity,
        after: &Volume,
        inner: Identity,
        model: &Volume,
    ) -> Result<(), String> {
        let missing = |_| format!("{object:?} is nowhere");
        let modelled = model.resolve(object).ok_or(Refused::Stale).map_err(missing)?;
        let (is, was) = (after.inode(inner).map_err(missing)?, model.inode(modelled).map_err(missing)?);
        let mut wanted = was.attributes;
        // An operation that was carried out and not logged may have left a directory's time as the log has it.
        if wanted.kind == Kind::Directory && self.times.get(&object) == Some(&is.attributes.mtime) {
            wanted.mtime = is.attributes.mtime;
        }
        wanted.atime = is.attributes.atime;
        if is.new != was.new || is.attributes.kind != wanted.kind {
            return Err(format!("{object:?} is another kind of object"));
        }
        if is.attributes != wanted && !self.partly.contains(&object) {
            return Err(format!("{object:?} has {:?}, not {wanted:?}", is.attributes));
        }
        Ok(())
    }
}

/// Returns all names below the root. Of the names that recovery gave, only those in `but` are returned.
fn names(volume: &Volume, but: Option<&Names>) -> Names {
    let (mut names, mut dirs) = (Names::new(), vec![Volume::root()]);
    while let Some(dir) = dirs.pop() {
        let Some(inode) = volume.resolve(dir).and_then(|inner| volume.inode(inner).ok()) else { continue };
        for (name, child) in &inode.entries {
            let (place, child) = ((dir, name.clone()), volume.outer(*child));
            if !but.is_some_and(|but| is_aside(&place, but)) {
                names.insert(place, child);
                dirs.push(child);
            }
        }
    }
    names
}

/// Returns true if recovery gave the name.
fn is_aside(place: &Place, expected: &Names) -> bool {
    !expected.contains_key(place) && place.1.windows(9).any(|part| part == b".forebay-")
}

/// Checks that a file system is sound: every object has the names that it counts, and none is between two places.
fn sound(volume: &Volume) -> Result<(), String> {
    let mut links = BTreeMap::<Identity, u32>::new();
    let inodes = &volume.state.inodes;
    inodes
        .values()
        .flat_map(|inode| inode.entries.values())
        .for_each(|to| *links.entry(*to).or_default() += 1);
    for (object, inode) in inodes {
        let own = [Volume::root(), Volume::moving_dir()].contains(object);
        if !own && links.get(object) != Some(&inode.links) {
            return Err(format!("{object:?} has not {} names", inode.links));
        }
    }
    match volume.inode(Volume::moving_dir()).is_ok_and(|moving| moving.entries.is_empty()) {
        true => Ok(()),
        false => Err("the directory for moving is not empty".to_owned()),
    }
}

/// The result of a recovery.
#[derive(Clone, Debug)]
pub struct Recovered {
    /// The file system after recovery, with each transaction of recovery.
    pub volume: Volume,
    /// The outcome that recovery reports.
    pub outcome: Outcome,
}

/// Recovers a file system from a crash, and then again, which must change nothing.
pub fn recover(history: &History, crash: Crash, mut volume: Volume) -> Result<Recovered, String> {
    let records = history.records(crash.logged, crash.reverse);
    volume.history.clear();
    let failed = |error| format!("recovery failed: {error}");
    let outcome = reconcile(&mut volume, &records, crash.checkpoint).map_err(failed)?;
    let mut again = volume.clone();
    again.history.clear();
    let second = reconcile(&mut again, &records, crash.checkpoint).map_err(failed)?;
    if !again.history.is_empty() || second.aliases != outcome.aliases || !second.set_aside.is_empty() {
        let (before, after) = (&volume.state.identities, &again.state.identities);
        let identities =
            if before == after { String::new() } else { format!(": {before:?}, then {after:?}") };
        return Err(format!("a second recovery changed something{identities}"));
    }
    // The checkpoint is in the log, and the slots are not empty yet.
    let last = history.before + history.steps.len() as u64;
    reconcile(&mut again, &records, last).map_err(failed)?;
    match again.history.is_empty() {
        true => Ok(Recovered { volume, outcome }),
        false => Err("a recovery behind the checkpoint changed something".to_owned()),
    }
}
