//! The virtual file system, as reconciliation sees it.

use forebay_oplog::{Attributes, Given, Identity, Kind, Name, New, RenameIntent, Tree};

use super::volume::{Refused, Volume};

impl Tree for Volume {
    type Error = Refused;

    fn root(&mut self) -> Result<Identity, Refused> {
        Ok(Volume::root())
    }

    fn moving(&mut self) -> Result<Identity, Refused> {
        Ok(Volume::moving_dir())
    }

    fn lookup(&mut self, dir: Identity, name: &[u8]) -> Result<Option<Identity>, Refused> {
        self.child(dir, name)
    }

    fn attributes(&mut self, object: Identity) -> Result<Option<Attributes>, Refused> {
        Ok(self.state.inodes.get(&object).map(|inode| inode.attributes))
    }

    fn list(&mut self, dir: Identity) -> Result<Vec<Name>, Refused> {
        Ok(self.inode(dir)?.entries.keys().cloned().collect())
    }

    fn place(&mut self, dir: Identity) -> Result<(Identity, Name), Refused> {
        let places = self.state.inodes.iter().flat_map(|(parent, inode)| {
            inode.entries.iter().map(move |(name, child)| (*child, (*parent, name.clone())))
        });
        places.filter(|(child, _)| *child == dir).map(|(_, place)| place).next().ok_or(Refused::Stale)
    }

    fn make(
        &mut self,
        dir: Identity,
        name: &[u8],
        kind: Kind,
        new: &New,
        _given: &Given,
    ) -> Result<Identity, Refused> {
        self.make_as(None, (dir, name), kind, new)
    }

    fn link(&mut self, object: Identity, dir: Identity, name: &[u8]) -> Result<(), Refused> {
        self.add_link(object, dir, name)
    }

    fn rename(&mut self, from: (Identity, &[u8]), to: (Identity, &[u8])) -> Result<(), Refused> {
        match self.child(to.0, to.1)? {
            Some(_) => Err(Refused::Exists),
            None => self.move_name(from, to),
        }
    }

    fn unlink(&mut self, dir: Identity, name: &[u8]) -> Result<(), Refused> {
        self.remove(dir, name, false)
    }

    fn rmdir(&mut self, dir: Identity, name: &[u8]) -> Result<bool, Refused> {
        match self.remove(dir, name, true) {
            Err(Refused::NotEmpty) => Ok(false),
            other => other.map(|()| true),
        }
    }

    fn set(&mut self, object: Identity, wanted: &Attributes) -> Result<(), Refused> {
        let now = self.inode(object)?.attributes;
        if (now.uid, now.gid) != (wanted.uid, wanted.gid) {
            self.change(object, |it| (it.uid, it.gid) = (wanted.uid, wanted.gid))?;
        }
        if now.mode != wanted.mode {
            self.change_mode(object, wanted.mode)?;
        }
        if (now.atime, now.mtime) != (wanted.atime, wanted.mtime) {
            self.change(object, |it| (it.atime, it.mtime) = (wanted.atime, wanted.mtime))?;
        }
        Ok(())
    }

    fn intents(&mut self) -> Result<Vec<RenameIntent>, Refused> {
        Ok(self.state.slots.values().cloned().collect())
    }

    fn aliases(&mut self) -> Result<Vec<(Identity, Identity)>, Refused> {
        Ok(self.state.identities.entries().collect())
    }

    fn alias(&mut self, outer: Identity, inner: Identity) -> Result<(), Refused> {
        self.set_alias(outer, Some(inner));
        Ok(())
    }

    fn unalias(&mut self, outer: Identity) -> Result<(), Refused> {
        self.set_alias(outer, None);
        Ok(())
    }

    fn is_own(&mut self, object: Identity) -> Result<bool, Refused> {
        Ok(object == Volume::moving_dir())
    }

    fn is_spent(&mut self, identity: &Identity) -> bool {
        self.state.identities.spent().has(identity)
    }

    fn spend(&mut self, gone: Vec<Identity>) -> Result<(), Refused> {
        Volume::spend(self, gone);
        Ok(())
    }

    fn make_up(&mut self, inner: Identity) -> Result<Identity, Refused> {
        Ok(Volume::make_up(self, inner))
    }

    fn sync(&mut self) -> Result<(), Refused> {
        Ok(())
    }
}
