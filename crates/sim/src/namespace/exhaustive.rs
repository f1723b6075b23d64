//! All sequences of a few operations on a small tree, with every crash, and with every second crash in the recovery.

use forebay_oplog::{Identity, Kind, Name, New};

use super::check::{Crash, Expected, recover};
use super::history::History;
use super::request::{How, Place, Request};
use super::volume::Volume;

/// The extent of an exploration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// The number of sequences of operations.
    pub sequences: u64,
    /// The number of crashes, each with its remains of the log and of the file system.
    pub crashes: u64,
    /// The number of crashes inside the recovery.
    pub again: u64,
    /// The number of crashes after which an administrator put a file into the tree before the recovery.
    pub meddled: u64,
}

impl Counts {
    /// Adds the counts of another exploration.
    pub fn add(&mut self, other: Counts) {
        self.sequences += other.sequences;
        self.crashes += other.crashes;
        self.again += other.again;
        self.meddled += other.meddled;
    }
}

const NAMES: [&[u8]; 2] = [b"a", b"b"];

/// Returns the small tree: the root with a file `a` and a directory `b`. In `b` are another name of that file, and an
/// empty directory `b`.
pub fn small_tree() -> Volume {
    let mut volume = Volume::new();
    let root = Volume::root();
    let make = |volume: &mut Volume, dir, name: &[u8], kind| {
        volume.make_as(None, (dir, name), kind, &New::Plain).unwrap_or(dir)
    };
    let file = make(&mut volume, root, b"a", Kind::File);
    let dir = make(&mut volume, root, b"b", Kind::Directory);
    make(&mut volume, dir, b"b", Kind::Directory);
    let linked = volume.add_link(file, dir, b"a");
    debug_assert!(linked.is_ok());
    volume
}

/// Returns every request that makes sense on a tree. Some are refused.
pub fn requests(volume: &Volume) -> Vec<Request> {
    let objects = || {
        let own = |(inner, _): &(&Identity, _)| **inner != Volume::moving_dir();
        volume.state.inodes.iter().filter(own).map(|(inner, inode)| (volume.outer(*inner), inode))
    };
    let is_dir = |kind| kind == Kind::Directory;
    let dirs = objects().filter(|(_, inode)| is_dir(inode.attributes.kind)).map(|(dir, _)| dir);
    let places: Vec<Place> =
        dirs.flat_map(|dir| NAMES.iter().map(move |name| (dir, Name::from_slice(name)))).collect();
    let mut all = Vec::new();
    for place in &places {
        let at = || place.clone();
        all.extend([How::Unchecked, How::Guarded, How::Exclusive].map(|how| Request::Create(at(), how)));
        all.extend([Request::Mkdir(at()), Request::Symlink(at()), Request::Mknod(at())]);
        all.extend([Request::Remove(at()), Request::Rmdir(at())]);
        all.extend(places.iter().map(|to| Request::Rename(at(), to.clone())));
        let files = objects().filter(|(_, inode)| !is_dir(inode.attributes.kind));
        all.extend(files.map(|(file, _)| Request::Link(file, at())));
    }
    all.extend(objects().flat_map(|(object, _)| [Request::Chmod(object), Request::Setattr(object)]));
    all
}

/// Returns the first requests of all sequences.
pub fn first_requests() -> Vec<Request> {
    let allowed = |request: &Request| start().carry_out(request, 0).is_ok();
    requests(&small_tree()).into_iter().filter(allowed).collect()
}

fn start() -> History {
    History::new(small_tree(), 0)
}

/// Explores all sequences of up to `most` operations with this first request. Of the longest sequences, only one in
/// `stride` is explored.
pub fn all_from(first: &Request, most: usize, stride: u64) -> Result<Counts, String> {
    let mut history = start();
    history.carry_out(first, 0).map_err(|refused| format!("{first:?}: {refused}"))?;
    let mut counts = Counts::default();
    let mut turn = 0;
    explore(&history, most, stride, &mut turn, &mut counts)?;
    Ok(counts)
}

/// Extends the history by every possible request up to `most` requests, and tries every crash. Of the longest
/// histories only one in `stride` is tried.
fn explore(
    history: &History,
    most: usize,
    stride: u64,
    turn: &mut u64,
    counts: &mut Counts,
) -> Result<(), String> {
    let count = history.steps.len();
    *turn += 1;
    if count < most || count == 1 || turn.is_multiple_of(stride) {
        counts.sequences += 1;
        every_crash(history, counts)?;
    }
    if count == most {
        return Ok(());
    }
    for request in requests(&history.volume) {
        let mut longer = history.clone();
        if longer.carry_out(&request, count).is_ok() {
            explore(&longer, most, stride, turn, counts)?;
        }
    }
    Ok(())
}

/// Runs every crash that leaves a part of the last operation. Shorter sequences cover all other crashes.
pub fn every_crash(history: &History, counts: &mut Counts) -> Result<(), String> {
    let count = history.steps.len();
    let all = history.steps[count - 1].end;
    for logged in (0..1u64 << count).filter(|logged| history.may_be_logged(*logged)) {
        for checkpoint in 0..=count {
            let durable = if checkpoint == 0 { 0 } else { history.steps[checkpoint - 1].end };
            for transactions in durable..=all {
                let last = logged >> (count - 1) & 1 == 1 || transactions > history.steps[count - 1].begin;
                let reversed =
                    history.records(logged, false) != history.records(logged, true) && checkpoint == 0;
                for reverse in [false, true].into_iter().filter(|reverse| last && (!reverse || reversed)) {
                    let checkpoint = checkpoint as u64;
                    one_crash(history, Crash { logged, reverse, checkpoint, transactions }, counts)?;
                }
            }
        }
    }
    Ok(())
}

/// Recovers after one crash and checks the tree. Then crashes the recovery after each of its steps, recovers again,
/// and checks again.
fn one_crash(history: &History, crash: Crash, counts: &mut Counts) -> Result<(), String> {
    let expected = Expected::new(history, crash);
    let told = |when: &str, error: String| {
        let requests: Vec<_> = history.steps.iter().map(|step| &step.done.request).collect();
        format!("{requests:?}\n  {crash:?}{when}: {error}")
    };
    let recovered = recover(history, crash, history.crashed(crash.transactions));
    let recovered = recovered.map_err(|error| told("", error))?.volume;
    expected.check(&recovered).map_err(|error| told("", error))?;
    counts.crashes += 1;
    for (step, state) in recovered.history.iter().enumerate() {
        let again = recovered.with(state);
        let when = format!(", again after {} steps", step + 1);
        let again = recover(history, crash, again).map_err(|error| told(&when, error))?.volume;
        expected.check(&again).map_err(|error| told(&when, error))?;
        counts.again += 1;
    }
    meddle(history, crash, counts).map_err(|error| told("", error))
}

/// Puts a file under each free name before the recovery, like an administrator. Recovery must not remove it.
fn meddle(history: &History, crash: Crash, counts: &mut Counts) -> Result<(), String> {
    let crashed = history.crashed(crash.transactions);
    let dirs = crashed.state.inodes.iter().filter(|(_, inode)| inode.attributes.kind == Kind::Directory);
    let dirs: Vec<Identity> = dirs.map(|(dir, _)| *dir).filter(|dir| *dir != Volume::moving_dir()).collect();
    for place in dirs.iter().flat_map(|dir| NAMES.map(|name| (*dir, name))) {
        let mut meddled = crashed.clone();
        let theirs = Some(history.identity_for_others(&meddled));
        let Ok(theirs) = meddled.make_as(theirs, place, Kind::File, &New::Plain) else { continue };
        let after = recover(history, crash, meddled)?.volume;
        if after.inode(theirs).is_err() {
            return Err(format!("what somebody put at {place:?} is gone"));
        }
        counts.meddled += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sequences_of_two_operations() {
        let mut counts = Counts::default();
        for first in first_requests() {
            counts.add(all_from(&first, 2, 1).unwrap());
        }
        assert!(counts.sequences > 800 && counts.again > counts.crashes, "{counts:?}");
    }
}
