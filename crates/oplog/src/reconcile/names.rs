//! Steps 4 and 5: gives all objects their names. Objects under wrong names go to the directory for moving. Then each
//! object gets its names, and the directory for moving is emptied. Each step compares before it acts, so recovery may
//! be interrupted anywhere and started again.

use super::decide::Decided;
use super::fold::{Bound, Fold, Place};
use super::view::View;
use super::{Name, SetAside};
use crate::identity::Identity;
use crate::object::Kind;
use crate::planted_bugs;
use crate::tree::Tree;

/// The longest name, in bytes.
const NAME_MAX: usize = 255;

pub(super) struct Names<'a, T: Tree> {
    pub(super) view: View<'a, T>,
    pub(super) fold: &'a Fold,
    pub(super) decided: &'a Decided,
    pub(super) set_aside: Vec<SetAside>,
}

/// The treatment of an object under a name that should not lead to it.
enum Verdict {
    Detach,
    SetAside,
    Leave,
}

impl<T: Tree> Names<'_, T> {
    /// Takes objects away from wrong names.
    pub(super) fn detach(&mut self) -> Result<(), T::Error> {
        for (place, bound) in &self.fold.entries {
            if !self.decided.present.contains(&place.0) {
                continue;
            }
            let Some(found) = self.view.lookup(place)? else { continue };
            match self.verdict(bound, found) {
                Verdict::Detach => self.detach_from(found, place)?,
                Verdict::SetAside => self.set_aside_as(found, place, place)?,
                Verdict::Leave => {}
            }
        }
        self.detach_strays()
    }

    /// Decides about the inode that a name of the fold leads to in the tree. The rows are those of the table in
    /// docs/metadata-log.md.
    fn verdict(&self, bound: &Bound, found: Identity) -> Verdict {
        let (wanted, gone) = (self.decided.wanted.contains(&found), !self.decided.bound.contains(&found));
        let known = bound.known.contains(&found);
        match bound.now {
            // Row 1.
            Some(object) if object == found => Verdict::Leave,
            // Rows 7 and 9.
            Some(object) if !self.decided.wanted.contains(&object) => Verdict::Leave,
            // Row 3. An administrator may have moved an object here that the log knows only by its attributes.
            Some(_) if wanted || known && gone => {
                match planted_bugs::active("3: what is in the way and known stays") {
                    true => Verdict::SetAside,
                    false => Verdict::Detach,
                }
            }
            // Row 4.
            Some(_) if planted_bugs::active("4: what is in the way and unknown is removed") => {
                Verdict::Detach
            }
            Some(_) => Verdict::SetAside,
            None if planted_bugs::active("11: what was removed stays") => Verdict::Leave,
            None if planted_bugs::active("12: what has the name of something removed is removed") => {
                Verdict::Detach
            }
            // Row 11.
            None if known && (wanted || gone) => Verdict::Detach,
            // Row 12.
            None => Verdict::Leave,
        }
    }

    /// Takes a name away from an object. The first name is moved to the directory for objects on the move, and further
    /// names are removed.
    fn detach_from(&mut self, object: Identity, place: &Place) -> Result<(), T::Error> {
        let moving = self.view.moving(object);
        match self.view.lookup(&moving)? {
            // An earlier call has moved the object here from another of its names.
            Some(_) => self.view.unlink(object, place),
            None => self.view.rename(object, place, &moving),
        }
    }

    /// Moves directories away from names that the fold does not know: someone else moved them there.
    fn detach_strays(&mut self) -> Result<(), T::Error> {
        for (place, object) in &self.decided.live {
            if self.decided.missing.contains(object) || !self.view.is_directory(*object)? {
                continue;
            }
            let moving = self.view.moving(*object);
            let at_home =
                self.decided.present.contains(&place.0) && self.view.lookup(place)? == Some(*object);
            if !at_home && self.view.lookup(&moving)?.is_none() {
                let stray = self.view.place(*object)?;
                self.view.rename(*object, &stray, &moving)?;
            }
        }
        Ok(())
    }

    /// Recreates missing objects in the directory for moving.
    pub(super) fn make(&mut self) -> Result<(), T::Error> {
        for object in &self.decided.missing {
            let known = self.fold.objects.get(object);
            if let Some((known, new)) = known.and_then(|known| Some((known, known.new.as_ref()?))) {
                self.view.make(*object, known.attributes.kind, new, known.given.as_ref())?;
            }
        }
        Ok(())
    }

    /// Gives each object its names.
    pub(super) fn attach(&mut self) -> Result<(), T::Error> {
        for (place, object) in &self.decided.live {
            if self.view.lookup(place)? == Some(*object) {
                continue;
            }
            if self.view.is_directory(*object)? {
                let moving = self.view.moving(*object);
                self.view.rename(*object, &moving, place)?;
            } else if self.decided.missing.contains(object)
                || !planted_bugs::active("2: what lost its name stays without")
            {
                self.view.link(*object, place)?;
            }
        }
        Ok(())
    }

    /// Empties the directory for moving. An object with all its names does not need this one; an object without a name
    /// was removed.
    pub(super) fn clear(&mut self) -> Result<(), T::Error> {
        for place in self.view.in_moving()? {
            let Some(object) = Identity::from_name(&place.1) else { continue };
            let homes = self.fold.entries.iter().filter(|(_, bound)| bound.known.contains(&object));
            let homes: Vec<&Place> = homes.map(|(home, _)| home).collect();
            let lost = self.decided.bound.contains(&object) && !self.decided.wanted.contains(&object);
            let strange =
                homes.is_empty() && !planted_bugs::active("4: what is in the way and unknown is removed");
            if strange || lost || !self.remove(object, &place)? {
                let home = self.home(&homes, &place)?;
                self.set_aside_as(object, &place, &home)?;
            }
        }
        Ok(())
    }

    /// Returns a place that the object had, in a directory that still exists.
    fn home(&mut self, homes: &[&Place], place: &Place) -> Result<Place, T::Error> {
        for home in homes.iter().rev() {
            if self.view.is_directory(home.0)? {
                return Ok((*home).clone());
            }
        }
        let name = homes.last().map_or(&place.1, |home| &home.1);
        Ok((self.view.root()?, name.clone()))
    }

    /// Removes the object. Returns false if it is a directory with an entry that the fold does not know.
    fn remove(&mut self, object: Identity, place: &Place) -> Result<bool, T::Error> {
        match self.view.attributes(object)?.is_some_and(|it| it.kind == Kind::Directory) {
            true => self.view.rmdir(place),
            false => self.view.unlink(object, place).map(|()| true),
        }
    }

    /// Renames an object to a name beside `home` that tells where it comes from.
    fn set_aside_as(&mut self, object: Identity, place: &Place, home: &Place) -> Result<(), T::Error> {
        for serial in 1u64.. {
            let end = format!(".forebay-{serial}");
            let mut name: Name = home.1[..home.1.len().min(NAME_MAX - end.len())].into();
            name.extend_from_slice(end.as_bytes());
            let to = (home.0, name);
            if self.view.lookup(&to)?.is_none() {
                self.view.rename(object, place, &to)?;
                self.set_aside.push(SetAside { object, dir: to.0, name: to.1 });
                break;
            }
        }
        Ok(())
    }
}
