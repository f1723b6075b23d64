//! RENAME.

use forebay_oplog::Bindings;
use rustix::io::Errno;

use crate::attr::Wcc;
use crate::cred::Cred;
use crate::durability::request_journal::LoggedReply;
use crate::error::{Error, Result};
use crate::export::Target;
use crate::export::external_change::NamedChange;
use crate::export::filesystem::{Scheme, require_dir};
use crate::export::vfs::Vfs;
use crate::oplog::commit::CommitRequest;
use crate::oplog::removal::Removal;
use crate::oplog::{Announced, ChangeEffects, binding};
use crate::ops::change::{Caller, Renaming, changeable, metadata};
use crate::ops::keep::{Keep, Keeping, KeptDir, logged_dir, with_dir};
use crate::ops::rename_locks::{DirEntry, Moving, Seen};
use crate::sys::KernelHandle;

/// The outcome of RENAME: two directories.
pub struct Renamed {
    /// The result of the operation.
    pub result: Result<()>,
    /// Around the source directory.
    pub from: Wcc,
    /// Around the target directory.
    pub to: Wcc,
    /// The commit request, to be durable before the reply.
    pub intent: Option<CommitRequest>,
}

impl Vfs {
    /// Renames within one export (RFC 1813 section 3.3.14), with both directories locked. `asked` is the request for
    /// the request journal, if it may not be carried out twice.
    pub fn rename(
        &self,
        from: &Target,
        from_name: &[u8],
        to: &Target,
        to_name: &[u8],
        cred: &Cred,
        asked: Option<&LoggedReply>,
    ) -> Renamed {
        let refused = require_dir(&to.object)
            .and_then(|()| changeable(from, from_name))
            .and_then(|()| changeable(to, to_name))
            .and_then(|()| match [from_name, to_name].iter().any(|name| matches!(*name, b"." | b"..")) {
                true => Err(Error::INVALID),
                false => Ok(()),
            })
            .and_then(|()| match from.export.id == to.export.id {
                true => Ok(()),
                false => Err(Error::Os(Errno::XDEV)),
            });
        let failed = |error| {
            let (from, to) = (self.wcc_of(from), self.wcc_of(to));
            Renamed { result: Err(error), from, to, intent: None }
        };
        if let Err(error) = refused {
            return failed(error);
        }
        let (from, to) = (DirEntry { dir: from, name: from_name }, DirEntry { dir: to, name: to_name });
        let mut seen = Seen::default();
        loop {
            let now = match seen.lock(&from.dir.export.fs, from, to) {
                Ok(Ok(moving)) => {
                    let fs = &from.dir.export.fs;
                    let losing = self.losing(fs, moving.replaced());
                    if !losing.is_open() || !seen.kept_dir.is_unasked() {
                        let keep = Keep::of(&seen.kept_dir, &losing)
                            .filter(|_| self.may_replace(from, to, cred, &moving));
                        return self.rename_locked(from, to, Caller { cred, asked }, moving, keep);
                    }
                    drop((moving, losing));
                    Seen::keeping(KeptDir::ask(fs))
                }
                Ok(Err(now)) => now,
                Err(error) => return failed(error),
            };
            seen = now;
        }
    }

    /// Returns false if the kernel is sure to refuse that a file is replaced: see [`Vfs::may_unlink`].
    fn may_replace(&self, from: DirEntry<'_>, to: DirEntry<'_>, cred: &Cred, moving: &Moving<'_>) -> bool {
        let may = |entry: DirEntry<'_>, file: &KernelHandle| self.may_unlink(entry.dir, file, cred);
        let both = moving.moved.zip(moving.victim);
        both.is_some_and(|(moved, victim)| may(from, &moved) && may(to, &victim))
    }

    /// Renames with both names locked. `keep` is the place for the replaced file, if clients have it open.
    fn rename_locked(
        &self,
        DirEntry { dir: from, name: from_name }: DirEntry<'_>,
        DirEntry { dir: to, name: to_name }: DirEntry<'_>,
        Caller { cred, asked }: Caller<'_>,
        locked: Moving<'_>,
        keep: Option<Keep<'_>>,
    ) -> Renamed {
        let fs = &from.export.fs;
        let (victim, moved) = (locked.victim, locked.moved);
        let first = Renaming::locked(from);
        let second = (from.object.kernel != to.object.kernel).then(|| Renaming::locked(to));
        // The kernel refuses to move a directory into itself, and to replace the directory that it takes a name from.
        let is_dir = |kernel: &KernelHandle| [from.object.kernel, to.object.kernel].contains(kernel);
        let changing = [&victim, &moved].map(|kernel| {
            kernel.as_ref().filter(|kernel| !is_dir(kernel)).map(|kernel| fs.named_change(kernel))
        });
        let mut removal = victim.and_then(|victim| Removal::begin(fs, victim));
        let way = fs.way();
        // Else rename(2) will refuse, or has nothing to do.
        let moves = moved.is_some() && victim != moved;
        let mut bindings = Bindings::new();
        if moves {
            bindings.push(binding(&from.object, from_name, moved, None));
            bindings.push(binding(&to.object, to_name, victim, moved));
        }
        let request = fs.under_way(bindings.clone(), asked.filter(|_| moves));
        let (mut announced, mut kept) = (None, Keeping::default());
        let both = first.before().and(second.as_ref().map_or(Ok(()), |second| second.before().map(drop)));
        let result = both.and_then(|()| {
            if moves {
                announced = fs.announce(way, [from.object.kernel, to.object.kernel])?;
            }
            // Before the intent, which proves that the file has this name.
            kept = Keeping::begin(fs, keep, victim);
            announced.as_ref().map_or(Ok(()), Announced::say)?;
            let _acting = self.act_as(cred)?;
            Ok(rustix::fs::renameat(from.object.path(), from_name, to.object.path(), to_name)?)
        });
        // For two names of one inode rename(2) succeeds and does nothing.
        let done = result.is_ok() && (moves || moved.is_none());
        let kept_dir = kept.end(fs, done, &mut bindings);
        changing.into_iter().flatten().filter(|_| done && moves).for_each(NamedChange::made);
        let request = request.and_then(|request| request.carried_out(done));
        if let (true, Some(moved), Scheme::DentryCache(locator)) = (done, &moved, &from.export.fs.scheme) {
            locator.learn(moved, &to.object.kernel, to_name);
        }
        if let Some(moved) = moved.filter(|_| done && moves) {
            fs.moved(&moved, &from.object, &to.object);
        }
        let intent = done.then(|| {
            let dirs = first.logged().into_iter().chain(second.as_ref().and_then(Renaming::logged));
            let objects = dirs.chain(kept_dir.and_then(logged_dir)).collect();
            let did = ChangeEffects { bindings, objects, kept: request, ..ChangeEffects::default() };
            let pending = match announced.take() {
                Some(announced) => Some(announced.carried_out(did)),
                None => fs.changed(way, did),
            };
            with_dir(metadata(&[from, to], pending), kept_dir)
        });
        let (from_wcc, to_wcc) = match second {
            Some(second) => {
                let to_wcc = second.end(done, &[(to_name, moved)]);
                (first.end(done, &[(from_name, None)]), to_wcc)
            }
            None => {
                let wcc = first.end(done, &[(from_name, None), (to_name, moved)]);
                (wcc, wcc)
            }
        };
        drop(locked);
        // The announcement of a rename that failed. In the closure it would be dropped before the locks are.
        drop(announced);
        let gone = self.forget_if_gone(to, victim);
        let intent = intent.map(|intent| {
            let removal = removal.take().map(|removal| removal.carried_out(gone));
            CommitRequest { removal, ..intent }
        });
        Renamed { result, from: from_wcc, to: to_wcc, intent }
    }
}
