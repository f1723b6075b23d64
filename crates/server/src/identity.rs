//! The identity check of a start (docs/decisions/015-identity.md). If an exported directory is not the one that the
//! state directory and the pool know, nothing is written and no client is served.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_config::{Access, Export as Configured, Settings};
use forebay_engine::pool::{OWNER_MAX, Pool};
use forebay_vfs::{
    Adoption, Difference, Export, ExportIdentity, How, KnownExport, KnownExports, Owner, Recorded, Stamp,
    Store, Vfs, compare, decode_owner, encode_owner,
};

use crate::error::Error;
use crate::handle_key::HandleSecret;
use crate::in_time::{ASK_AGAIN, in_time, real};
use crate::under_way::UnderWay;

/// The identities of the exports, as found and as recorded.
pub(crate) struct Identities {
    known: KnownExports,
    said: Vec<Adoption>,
    /// Exports that an administrator adopted as they are now, by their ids.
    adopted: BTreeMap<u32, How>,
    /// The pool's record of each export that it knows.
    recorded: BTreeMap<u32, Recorded>,
    secret: HandleSecret,
    /// Records which export is being asked: its file system may not answer.
    under_way: Arc<UnderWay>,
}

/// An export that differs from its record.
struct Other<'a> {
    path: &'a Path,
    state_dir: &'a Path,
    expected: &'a ExportIdentity,
    here: &'a ExportIdentity,
    difference: Difference,
}

impl Identities {
    /// Examines every exported directory and compares it with the record in the state directory. Writes nothing, and
    /// nothing may have been written before.
    ///
    /// # Errors
    /// [`Error::OtherDirectory`]; a directory or the state directory cannot be read.
    pub(crate) fn check(
        state_dir: &Path,
        exports: &[Configured],
        under_way: &Arc<UnderWay>,
    ) -> Result<Self, Error> {
        let failed = state_error(state_dir);
        let known = KnownExports::read(state_dir).map_err(&failed)?;
        let said = Adoption::read(state_dir).map_err(&failed)?;
        let (adopted, recorded, secret) = Default::default();
        let under_way = under_way.clone();
        let mut identities = Identities { known, said, adopted, recorded, secret, under_way };
        for export in exports {
            identities.under_way.waits_for(&export.path);
            let expected = identities.known.0.get(&export.id).map(|known| known.identity.clone());
            let here = ExportIdentity::at(&export.path).map_err(|error| {
                let reason = missing(error, expected.as_ref());
                Error::Export { path: export.path.clone(), reason }
            })?;
            if let Some(expected) = expected.filter(|expected| !expected.is(&here)) {
                let difference = match expected.is_filesystem_of(&here) {
                    true => Difference::Directory,
                    false => Difference::FileSystem,
                };
                let (path, expected) = (&export.path, &expected);
                identities
                    .accept(export.id, &Other { path, state_dir, expected, here: &here, difference })?;
            }
        }
        Ok(identities)
    }

    /// Continues with the directory as it is now, if an administrator adopted exactly this directory.
    fn accept(&mut self, id: u32, other: &Other<'_>) -> Result<(), Error> {
        let said = self.said.iter().find(|said| said.path == other.path && said.identity.is(other.here));
        let how = said.map(|said| said.how).ok_or_else(|| Error::OtherDirectory(other.to_string()))?;
        self.adopted.insert(id, how);
        Ok(())
    }

    /// Takes the secret of file handles. If it is from the pool, so are the salts of the exports.
    pub(crate) fn take_secret(&mut self, mut secret: HandleSecret) {
        for Recorded { export, salt, identity, .. } in std::mem::take(&mut secret.owner.records) {
            self.known.0.entry(export).or_insert(KnownExport { salt, identity });
        }
        self.secret = secret;
    }

    /// Returns the salts for the handles of exports that were other directories before.
    pub(crate) fn salts(&mut self, random: impl Fn() -> u64) -> Vec<(u32, u64)> {
        for (id, known) in &mut self.known.0 {
            if self.adopted.get(id) == Some(&How::New) {
                known.salt = random().max(1);
            }
        }
        self.known
            .0
            .iter()
            .filter(|(_, known)| known.salt != 0)
            .map(|(id, known)| (*id, known.salt))
            .collect()
    }

    /// Returns the salt of an export's handles; 0: none.
    fn salt(&self, export: u32) -> u64 {
        self.known.0.get(&export).map_or(0, |known| known.salt)
    }

    /// Checks that the served directories are still the examined ones: they may have been opened since.
    pub(crate) fn check_opened(&mut self, settings: &Settings, vfs: &Vfs) -> Result<(), Error> {
        let checked = Self::check(&settings.state_dir, &settings.exports, &self.under_way)?;
        let opened = |export: &&Arc<Export>| {
            let known = checked.known.0.get(&export.id).map(|known| &known.identity);
            known
                .is_some_and(|known| !known.is(&export.identity) && !checked.adopted.contains_key(&export.id))
        };
        match vfs.exports().iter().find(opened) {
            Some(export) => {
                let reason = "something was mounted there meanwhile; start again".to_owned();
                Err(Error::Export { path: export.path.clone(), reason })
            }
            None => Ok(()),
        }
    }

    /// Compares the exports with the pool's records. `may_hold`: the pool may hold changes that the directories lack.
    /// Writes nothing but the secret of file handles into the state directory, if that had none.
    ///
    /// # Errors
    /// [`Error::OtherDirectory`]; [`Error::HandleKeyRestored`]; [`Error::OtherHandleKey`]; the pool's record is of a
    /// later version; the directory cannot be examined.
    pub(crate) fn check_pool(
        &mut self,
        settings: &Settings,
        pool: &Pool,
        vfs: &Vfs,
        may_hold: bool,
    ) -> Result<(), Error> {
        let Owner { secret, records } = decode_owner(pool.owner()).ok_or_else(|| {
            Error::Cache(
                "a later version of Forebay has opened the pool; start that version. To go back, run \
                 `forebay flush --wait` and stop it, then start this version with --format-cache"
                    .into(),
            )
        })?;
        self.recorded = records.into_iter().map(|recorded| (recorded.export, recorded)).collect();
        let is_known = vfs.exports().iter().any(|export| self.record_of(export, vfs).is_some());
        self.secret.keep(&settings.state_dir, secret, is_known)?;
        for export in vfs.exports() {
            let Some(recorded) = self.record_of(export, vfs).cloned() else { continue };
            if self.adopted.contains_key(&export.id) {
                continue;
            }
            self.under_way.waits_for(&export.path);
            let stamp = export.stamp().map_err(|error| unreadable(export, error))?;
            let difference = compare(&recorded, &export.identity, stamp, pool.uuid as u64);
            if let Some(difference) = difference.filter(|it| *it != Difference::Newer || may_hold) {
                let (path, state_dir) = (&export.path, &settings.state_dir);
                let (expected, here) = (&recorded.identity, &export.identity);
                self.accept(export.id, &Other { path, state_dir, expected, here, difference })?;
            }
        }
        self.under_way.waits_for_none();
        Ok(())
    }

    /// Returns the pool's record of an export, found by its id. Otherwise the record of an export that is no longer
    /// served and was the same directory. An id is derived from the path, unless it is configured.
    fn record_of(&self, export: &Export, vfs: &Vfs) -> Option<&Recorded> {
        let is_served = |id: u32| vfs.exports().iter().any(|export| export.id == id);
        let moved = || {
            let mut others = self.recorded.values().filter(|recorded| !is_served(recorded.export));
            others.find(|recorded| recorded.identity.is(&export.identity))
        };
        self.recorded.get(&export.id).or_else(moved)
    }

    /// Returns the pool's numbers of the file systems, by the ids of exports.
    pub(crate) fn numbers(&self, vfs: &Vfs) -> Vec<(u32, u32)> {
        let number = |export: &Export| Some((export.id, self.record_of(export, vfs)?.number));
        let served = vfs.exports().iter().filter_map(|export| number(export));
        self.recorded.values().map(|recorded| (recorded.export, recorded.number)).chain(served).collect()
    }

    /// Describes the file system that has this number in the keys of the cache, as the pool knows it.
    pub(crate) fn described(&self, number: u32) -> Option<String> {
        let recorded = self.recorded.values().find(|recorded| recorded.number == number)?;
        Some(recorded.identity.to_string())
    }

    /// Returns the exports that are other directories than before.
    pub(crate) fn renumbered(&self) -> Vec<u32> {
        self.adopted.iter().filter(|(_, how)| **how == How::New).map(|(id, _)| *id).collect()
    }

    /// Counts this start in the directories, durably. Then has the pool record with its next change that the pool
    /// belongs to them. A crash between the two is row I3.
    pub(crate) fn claim(
        &self,
        settings: &Settings,
        pool: &mut Pool,
        vfs: &Vfs,
        store: &Store,
    ) -> Result<(), Error> {
        let id = pool.uuid as u64;
        let mut records = self.recorded.clone();
        // A moved directory has a record under its old id; its next record has its new id.
        let moved = vfs.exports().iter().filter_map(|export| self.record_of(export, vfs));
        moved.for_each(|recorded| drop(records.remove(&recorded.export)));
        for (export, configured) in vfs.exports().iter().zip(&settings.exports) {
            let failed = |error| unreadable(export, error);
            self.under_way.waits_for(&export.path);
            let there = export.stamp().map_err(failed)?;
            // An adopted file system counts one start more than the replaced one. The replaced one may have counted one
            // start more than is recorded (row I3), and must be the older one from now on.
            let beyond = u64::from(self.adopted.contains_key(&export.id));
            let recorded = self.record_of(export, vfs).map_or(0, |recorded| recorded.start + beyond);
            let next = next_start(recorded, there, id);
            let written = is_writable(configured)
                && export.set_stamp(Stamp { start: next, pool: id }).map_err(failed)?;
            let start = if written { next } else { there.map_or(0, |stamp| stamp.start) };
            let (number, identity) = (vfs.number_of(store, export), export.identity.clone());
            let salt = self.salt(export.id);
            records.insert(export.id, Recorded { export: export.id, number, start, salt, identity });
        }
        self.under_way.waits_for_none();
        // Records of served exports come first: records without room are left out.
        let served = |record: &Recorded| vfs.exports().iter().any(|export| export.id == record.export);
        let (mut all, others): (Vec<_>, Vec<_>) = records.into_values().partition(served);
        all.extend(others);
        pool.set_owner(encode_owner(&self.secret.bytes, &all, OWNER_MAX));
        Ok(())
    }

    /// Records the served exports durably, before any client is served. An administrator's adoption is completed then.
    /// Returns the pool's records of exports.
    pub(crate) fn keep(mut self, settings: &Settings, vfs: &Vfs) -> Result<BTreeMap<u32, Recorded>, Error> {
        let failed = state_error(&settings.state_dir);
        if !self.adopted.is_empty() {
            // The other directory may have had acknowledged data that this one lacks.
            vfs.verifier.lost();
        }
        for export in vfs.exports() {
            let (salt, identity) = (self.salt(export.id), export.identity.clone());
            self.known.0.insert(export.id, KnownExport { salt, identity });
        }
        self.known.write(&settings.state_dir).map_err(&failed)?;
        Adoption::clear(&settings.state_dir).map_err(&failed)?;
        Ok(self.recorded)
    }
}

/// Compares the directory of an export that is to be added in service with its record in the state directory. Returns
/// false if an administrator has adopted the directory: only a start carries that out.
///
/// # Errors
/// [`Error::OtherDirectory`]; the directory or the state directory cannot be read.
pub(crate) fn is_known(state_dir: &Path, export: &Configured) -> Result<bool, Error> {
    let checked = Identities::check(state_dir, std::slice::from_ref(export), &Arc::default())?;
    Ok(!checked.adopted.contains_key(&export.id))
}

/// Records exports that are about to be added in service, durably.
///
/// # Errors
/// The state directory cannot be read or written.
pub(crate) fn keep_added<'a>(state_dir: &Path, added: impl Iterator<Item = &'a Export>) -> Result<(), Error> {
    let failed = state_error(state_dir);
    let mut known = KnownExports::read(state_dir).map_err(&failed)?;
    for export in added {
        let salt = known.0.get(&export.id).map_or(0, |known| known.salt);
        known.0.insert(export.id, KnownExport { salt, identity: export.identity.clone() });
    }
    known.write(state_dir).map_err(&failed)
}

/// Returns the count to write: the next one of this pool. If another pool counted further, the result exceeds that.
fn next_start(recorded: u64, there: Option<Stamp>, pool: u64) -> u64 {
    match there {
        Some(there) if there.start > recorded && (there.start, there.pool) != (recorded + 1, pool) => {
            there.start + 1
        }
        _ => recorded + 1,
    }
}

/// Returns true if a rule lets clients change the export.
pub(crate) fn is_writable(export: &Configured) -> bool {
    export.clients.iter().any(|rule| rule.access == Access::ReadWrite)
}

/// Returns why a directory that cannot be examined cannot be served.
fn missing(error: forebay_vfs::Error, expected: Option<&ExportIdentity>) -> String {
    let expected = expected.map(|it| format!(": expected is {it}, which is not mounted perhaps"));
    format!("{error}{}", expected.unwrap_or_default())
}

fn unreadable(export: &Export, error: forebay_vfs::Error) -> Error {
    Error::Export { path: export.path.clone(), reason: format!("cannot count starts in it: {error}") }
}

fn state_error(state_dir: &Path) -> impl Fn(io::Error) -> Error {
    move |source| Error::StateDir { path: state_dir.to_owned(), source }
}

/// A directory that the next start accepts.
#[derive(Debug, PartialEq, Eq)]
pub struct Adopted {
    /// The description of the directory as it is now.
    pub described: String,
    /// False if no export with the id that follows from the path was served. An export with an `id` in the
    /// configuration may have the path all the same: the state directory has no paths.
    pub is_known: bool,
}

/// Has the next start of the server with this state directory serve `path`, which has no symbolic links, as it is now,
/// although the export was another directory before.
///
/// # Errors
/// A sentence: the directory or the state directory cannot be used, or the file system does not answer.
pub fn adopt(state_dir: &Path, path: &Path, same: bool) -> Result<Adopted, String> {
    let (place, state_dir, path) = (path.display().to_string(), state_dir.to_owned(), path.to_owned());
    in_time(&place, ASK_AGAIN, move || {
        let how = if same { How::Same } else { How::New };
        let identity = ExportIdentity::at(&path)
            .map_err(|error| format!("cannot look at {}: {error}", path.display()))?;
        let described = identity.to_string();
        let recorded = || {
            let known = KnownExports::read(&state_dir)?;
            Adoption { path: path.clone(), identity, how }.write(&state_dir)?;
            Ok(known.0.contains_key(&forebay_config::derived_id(&path)))
        };
        let is_known = recorded().map_err(|error: io::Error| {
            format!("cannot record the file system in {}: {error}", state_dir.display())
        })?;
        Ok(Adopted { described, is_known })
    })?
}

/// Returns a directory without symbolic links.
///
/// # Errors
/// A sentence: it cannot be found, it is no directory, or its file system does not answer.
pub fn real_directory(path: &Path) -> Result<PathBuf, String> {
    let asked = path.to_owned();
    in_time(&path.display().to_string(), ASK_AGAIN, move || {
        let path = real(&asked)?;
        match path.is_dir() {
            true => Ok(path),
            false => {
                Err(format!("{} is not a directory; name one that the server is to serve", path.display()))
            }
        }
    })?
}

impl std::fmt::Display for Other<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Other { expected, here, difference, .. } = self;
        let path = self.path.display();
        match difference {
            Difference::FileSystem if expected.is_mount() && !here.is_mount() => {
                write!(
                    f,
                    "nothing is mounted at {path}: expected is {expected}, and there is a directory of {here}"
                )?;
            }
            Difference::FileSystem => {
                write!(f, "another file system is at {path}: expected is {expected}, and there is {here}")?;
            }
            Difference::Directory => {
                write!(
                    f,
                    "another directory of the file system is at {path}: expected is that of {expected}"
                )?;
            }
            Difference::Older => {
                write!(
                    f,
                    "an older copy of the file system is at {path}: expected is the newest {expected}"
                )?;
            }
            Difference::Diverged => write!(
                f,
                "a copy of the file system is at {path} that was served with another cache: expected is the one of {expected} \
                 that was served with this one"
            )?,
            Difference::Newer => write!(
                f,
                "the file system at {path}, {here}, was served without this cache since, which may hold older changes"
            )?,
        }
        match self.mount() {
            Some(mount) => write!(f, "; nothing was changed: mount it (`{mount}`), or ")?,
            None => write!(f, "; nothing was changed: bring that back, or ")?,
        }
        write!(
            f,
            "serve what is there now and set aside what the cache holds for the other with `forebay adopt {path} --state-dir {}`",
            self.state_dir.display()
        )?;
        match difference {
            Difference::FileSystem => Ok(()),
            _ => write!(f, " (`--same`: it is the right one)"),
        }
    }
}

impl Other<'_> {
    /// Returns the command that mounts the expected file system, as far as it is known.
    fn mount(&self) -> Option<String> {
        let at = self.expected.mounted_at().filter(|_| self.difference == Difference::FileSystem)?;
        let what = match self.expected.uuid() {
            Some(uuid) => format!("UUID={uuid}"),
            None => Some(self.expected.source()).filter(|source| !source.is_empty())?.to_owned(),
        };
        let part = self.expected.subvolume().map(|id| format!("-o subvolid={id} ")).unwrap_or_default();
        Some(format!("mount {part}{what} {at}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_counts_on_from_the_pools_own_count_unless_others_have_counted() {
        let there = |start, pool| Some(Stamp { start, pool });
        assert_eq!(next_start(0, None, 7), 1);
        assert_eq!(next_start(0, there(5, 8), 7), 6, "new to this pool");
        assert_eq!(next_start(5, there(5, 7), 7), 6);
        assert_eq!(next_start(5, there(6, 7), 7), 6, "after a cut, however often");
        assert_eq!(next_start(5, there(6, 8), 7), 7, "others count too");
        assert_eq!(next_start(5, there(9, 7), 7), 10);
    }
}
