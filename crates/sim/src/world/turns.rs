//! Restarts with some of the devices only, after they went in turn: which of them may be used, and which must be.

use forebay_engine::io::Device as _;

use super::{Crash, World};
use crate::disk::Disk;
use crate::hits::Fault;

impl World {
    /// The machine starts with some of its devices: all, one, or any others.
    pub(super) fn offer_some(&mut self) {
        self.disks.iter().for_each(Disk::appear);
        if self.rng.chance(4000) {
            return;
        }
        let kept = self.rng.index(self.disks.len());
        for at in (0..self.disks.len()).filter(|at| *at != kept) {
            if self.disks.len() == 2 || self.rng.chance(5000) {
                self.disks[at].vanish();
            }
        }
    }

    /// A start was cut short. The next one may find other devices.
    pub(super) fn cut_in_turn(&mut self) {
        // The engine spoke of an earlier epoch.
        self.mirrored = false;
        if self.rng.chance(5000) {
            self.offer_some();
        }
    }

    fn offered(&self) -> Vec<String> {
        let here = self.disks.iter().filter(|disk| !disk.is_gone());
        here.map(|disk| disk.name().to_owned()).collect()
    }

    /// The devices that are there were refused. That is right where they lack something that others have. Then the others are
    /// connected as well, or, where devices were each opened without the other, only those in use last.
    pub(super) fn refused_in_turn(&mut self, error: &str, split: bool) -> Result<(), String> {
        let (offered, legs) = (self.offered(), self.shared.epochs.legs());
        let missing = legs.iter().filter(|leg| !offered.contains(leg)).count();
        self.shared.tell(|| format!("{offered:?} do not open: {error}; in use last: {legs:?}"));
        let surplus = offered.iter().any(|name| !legs.contains(name));
        if split && surplus && missing == 0 {
            let others = self.disks.iter().filter(|disk| !legs.iter().any(|leg| leg == disk.name()));
            others.for_each(Disk::vanish);
        } else if missing == 0 || (missing == 1 && missing < legs.len() && self.mirrored && !split) {
            return Err(format!("{offered:?} have all that {legs:?} had, and do not open: {error}"));
        } else {
            let all = missing == legs.len();
            self.shared.hits.hit(if all { Fault::StaleAlone } else { Fault::Incomplete });
            self.disks.iter().for_each(Disk::appear);
        }
        self.crash(Crash::Kill);
        Ok(())
    }

    /// The engine opened with `members`, after `legs` were in use.
    pub(super) fn opened_in_turn(&self, legs: &[String], members: &[String]) {
        if !legs.is_empty() && !members.iter().any(|name| legs.contains(name)) {
            self.shared.fail(format!("{members:?} are used, though only {legs:?} were in use last (P10)"));
        }
        if let ([_], true) = (members, legs.len() > 1) {
            self.shared.hits.hit(Fault::Alone);
        }
        let names = self.disks.iter().map(|disk| disk.name().to_owned());
        self.shared.outdated.lock().extend(names.filter(|name| !members.contains(name)));
    }
}
