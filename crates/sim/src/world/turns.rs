//! Restarts with only some of the devices, after devices vanished in turn. Some of them may be used, and some must be.

use forebay_engine::io::Device as _;

use super::{Crash, World};
use crate::disk::Disk;
use crate::hits::Fault;

impl World {
    /// Offers some of the devices at a start: all, one, or any subset.
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

    /// Cuts a start short. The next start may find other devices. A pool that was not made yet is made of all devices.
    pub(super) fn cut_in_turn(&mut self) {
        // The engine spoke of an earlier epoch.
        self.mirrored = false;
        if self.rng.chance(5000) && self.formatted {
            self.offer_some();
        }
    }

    /// Returns the names of the devices that have not vanished, which the next start may use.
    fn offered(&self) -> Vec<String> {
        let here = self.disks.iter().filter(|disk| !disk.is_gone());
        here.map(|disk| disk.name().to_owned()).collect()
    }

    /// Handles the refusal of the present devices, which is right if they lack something that other devices have. Then
    /// those are connected as well. If devices were each opened without the other, only the devices in use last are
    /// connected.
    pub(super) fn refused_in_turn(&mut self, error: &str, split: bool) -> Result<(), String> {
        let (offered, mut legs) = (self.offered(), self.shared.epochs.legs());
        if legs.is_empty() {
            // The pool was made, and never in use.
            legs.extend(self.disks.iter().take(self.plan.devices.len()).map(|disk| disk.name().to_owned()));
        }
        // A device whose adding was cut short may be a member as well.
        let joining = self.shared.adding.lock().clone();
        let joining = joining.iter().filter(|name| !legs.contains(name));
        let missing = legs.iter().chain(joining).filter(|name| !offered.contains(name)).count();
        self.shared.tell(|| format!("{offered:?} do not open: {error}; in use last: {legs:?}"));
        let surplus = offered.iter().any(|name| !legs.contains(name));
        if split && surplus && missing == 0 {
            let others = self.disks.iter().filter(|disk| !legs.iter().any(|leg| leg == disk.name()));
            others.for_each(Disk::vanish);
        } else if missing == 0 || (missing == 1 && missing < legs.len() && self.mirrored && !split) {
            return Err(format!("{offered:?} have all that {legs:?} had, and do not open: {error}"));
        } else {
            let all = legs.iter().all(|leg| !offered.contains(leg));
            self.shared.hits.hit(if all { Fault::StaleAlone } else { Fault::Incomplete });
            self.disks.iter().for_each(Disk::appear);
        }
        self.crash(Crash::Kill);
        Ok(())
    }

    /// Checks that the engine may open with `members`, after `legs` were in use.
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
