//! Trees of small files. They are made, looked up, read, changed and removed, one phase after the other, as in
//! mdtest.

use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, bail};
use forebay_wire::nfs3::*;
use forebay_wire::{Encode as _, Reader};

use super::tree::{Name, Tree};
use super::{Call, Next, Progress, Workload, result};
use crate::content;
use crate::names::Fate;

/// The operation of a phase on all items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetaPhase {
    Mkdir,
    Create,
    Stat,
    Read,
    /// SETATTR of the mode.
    Setattr,
    /// RENAME within the directory.
    Rename,
    Remove,
    Rmdir,
}

impl MetaPhase {
    pub(crate) const ALL: [Self; 8] = [
        Self::Mkdir,
        Self::Create,
        Self::Stat,
        Self::Read,
        Self::Setattr,
        Self::Rename,
        Self::Remove,
        Self::Rmdir,
    ];

    /// Returns the phase's name in reports.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Mkdir => "mkdir",
            Self::Create => "create",
            Self::Stat => "stat",
            Self::Read => "read",
            Self::Setattr => "setattr",
            Self::Rename => "rename",
            Self::Remove => "remove",
            Self::Rmdir => "rmdir",
        }
    }
}

/// A client in one phase over its tree.
pub(crate) struct Meta {
    tree: Arc<Tree>,
    phase: MetaPhase,
    issued: u32,
    total: u32,
    /// The item of each slot; true if its file has been made and must now be filled.
    slots: Vec<(u32, bool)>,
}

impl Meta {
    pub(crate) fn new(tree: Arc<Tree>, phase: MetaPhase, depth: u16) -> Self {
        let total = match phase {
            MetaPhase::Mkdir | MetaPhase::Rmdir if tree.owns_dirs => tree.dirs.len() as u32,
            MetaPhase::Mkdir | MetaPhase::Rmdir => 0,
            _ => tree.items,
        };
        Self { tree, phase, issued: 0, total, slots: vec![(0, false); depth.into()] }
    }

    /// Sets the promised state of an item of this phase.
    fn note(&self, item: u32, fate: Fate) {
        let Some((files, dirs)) = &self.tree.names else { return };
        let of_dirs = matches!(self.phase, MetaPhase::Mkdir | MetaPhase::Rmdir);
        if of_dirs { dirs } else { files }.set(item.into(), fate);
    }

    /// Stores the handle of an object that was just made.
    fn made(
        &self,
        handle: &OnceLock<FileHandle>,
        body: &mut Reader<'_>,
        procedure: Procedure,
        name: Name,
    ) -> Result<()> {
        let made: CreateOk = result::<_, WccData>(body, procedure, || name.to_string())?;
        match made.object {
            Some(object) => drop(handle.set(object)),
            None => {
                bail!(
                    "{} of {name} returned no handle; this pattern cannot measure such a server",
                    procedure.name()
                )
            }
        }
        Ok(())
    }
}

/// Appends the content of a small file: units of 4 KiB, and a shorter one at the end.
pub(crate) fn append_small(out: &mut Vec<u8>, id: u64, size: u32) {
    let (mut at, size) = (0, size as usize);
    while at < size {
        let len = (size - at).min(content::UNIT);
        // A unit this small cannot contain its names. It is zeros, and the check skips it.
        if len < content::MIN_UNIT {
            out.resize(out.len() + len, 0);
        } else {
            content::append(out, id, at as u64, 1, len);
        }
        at += len;
    }
    out.resize(out.len() + forebay_wire::xdr::padding(size), 0);
}

/// Checks content that [`append_small`] wrote.
pub(super) fn check_small(bytes: &[u8], id: u64) -> Result<()> {
    for (number, unit) in bytes.chunks(content::UNIT).enumerate() {
        if unit.len() < content::MIN_UNIT {
            continue;
        }
        match content::check(unit, id, (number * content::UNIT) as u64)? {
            1 => {}
            generation => bail!("the file has generation {generation}, but generation 1 was written"),
        }
    }
    Ok(())
}

impl Workload for Meta {
    fn next(&mut self, slot: usize, stopping: bool) -> Next {
        if self.slots[slot].1 {
            return Next::GoOn;
        }
        if stopping || self.issued == self.total {
            return Next::Finished;
        }
        match self.phase {
            MetaPhase::Mkdir | MetaPhase::Create => self.note(self.issued, Fate::Making),
            MetaPhase::Remove | MetaPhase::Rmdir => self.note(self.issued, Fate::Removing),
            MetaPhase::Stat | MetaPhase::Read | MetaPhase::Setattr | MetaPhase::Rename => {}
        }
        self.slots[slot].0 = self.issued;
        self.issued += 1;
        Next::Begin
    }

    fn send(&self, slot: usize, call: &mut Call<'_>) -> Procedure {
        let (item, filling) = self.slots[slot];
        let tree = &self.tree;
        let (name, dir_name) = (tree.name(item), tree.dir_name(item));
        let in_dir = |item: u32| DirOpArgs { dir: tree.dir_of(item), name: name.as_bytes() };
        let in_base = DirOpArgs { dir: tree.base, name: dir_name.as_bytes() };
        let mode = |mode: u32| Sattr3 { mode: Some(mode), ..Sattr3::default() };
        let procedure = match self.phase {
            MetaPhase::Mkdir => Procedure::Mkdir,
            MetaPhase::Create if filling => Procedure::Write,
            MetaPhase::Create => Procedure::Create,
            MetaPhase::Stat => Procedure::Lookup,
            MetaPhase::Read => Procedure::Read,
            MetaPhase::Setattr => Procedure::Setattr,
            MetaPhase::Rename => Procedure::Rename,
            MetaPhase::Remove => Procedure::Remove,
            MetaPhase::Rmdir => Procedure::Rmdir,
        };
        let out = call.start(procedure);
        match self.phase {
            MetaPhase::Mkdir => MkdirArgs { target: in_base, attributes: mode(0o777) }.encode(out),
            MetaPhase::Create if filling => {
                WriteArgs::encode_header(out, &tree.handle(item), 0, tree.item_size, tree.stable);
                append_small(out, tree.content_id(item), tree.item_size);
            }
            MetaPhase::Create => {
                let how = CreateHow::Guarded(mode(0o644));
                CreateArgs { target: in_dir(item), how }.encode(out);
            }
            MetaPhase::Read => {
                ReadArgs { file: tree.handle(item), offset: 0, count: tree.item_size }.encode(out);
            }
            MetaPhase::Setattr => {
                SetattrArgs { object: tree.handle(item), new_attributes: mode(0o600), guard: None }
                    .encode(out);
            }
            MetaPhase::Rename => {
                let new = tree.new_name(item);
                let to = DirOpArgs { dir: tree.dir_of(item), name: new.as_bytes() };
                RenameArgs { from: in_dir(item), to }.encode(out);
            }
            MetaPhase::Stat | MetaPhase::Remove => in_dir(item).encode(out),
            MetaPhase::Rmdir => in_base.encode(out),
        }
        procedure
    }

    fn reply(&mut self, slot: usize, body: &mut Reader<'_>) -> Result<Progress> {
        let (item, filling) = self.slots[slot];
        let (tree, name) = (&self.tree, self.tree.name(item));
        let what = || name.to_string();
        match self.phase {
            MetaPhase::Mkdir => {
                self.made(&tree.dirs[item as usize], body, Procedure::Mkdir, tree.dir_name(item))?;
                self.note(item, Fate::There);
            }
            MetaPhase::Create if filling => {
                self.slots[slot].1 = false;
                let written: WriteOk = result::<_, WccData>(body, Procedure::Write, what)?;
                if written.count != tree.item_size {
                    bail!("WRITE of {name} wrote {} of {} bytes", written.count, tree.item_size);
                }
                if written.committed != StableHow::Unstable {
                    self.note(item, Fate::Filled);
                }
                return Ok(Progress::COMPLETE.with_bytes(written.count.into()));
            }
            MetaPhase::Create => {
                self.made(tree.made(item), body, Procedure::Create, name)?;
                self.note(item, Fate::There);
                if tree.item_size > 0 {
                    self.slots[slot].1 = true;
                    return Ok(Progress::CONTINUE);
                }
            }
            MetaPhase::Stat => {
                let found: LookupOk = result::<_, PostOpAttr>(body, Procedure::Lookup, what)?;
                if found.object != tree.handle(item) {
                    bail!("LOOKUP of {name} returned another handle than CREATE");
                }
            }
            MetaPhase::Read => {
                let read: ReadOk<'_> = result::<_, PostOpAttr>(body, Procedure::Read, what)?;
                if read.data.len() != tree.item_size as usize {
                    bail!("READ of {name} returned {} of {} bytes", read.data.len(), tree.item_size);
                }
                check_small(read.data, tree.content_id(item)).with_context(|| format!("{name} is wrong"))?;
                return Ok(Progress::COMPLETE.with_bytes(read.data.len() as u64));
            }
            MetaPhase::Setattr => {
                let _: WccData = result::<_, WccData>(body, Procedure::Setattr, what)?;
            }
            MetaPhase::Rename => {
                let _: RenameWcc = result::<_, RenameWcc>(body, Procedure::Rename, what)?;
                tree.renamed(item);
            }
            MetaPhase::Remove => {
                let _: WccData = result::<_, WccData>(body, Procedure::Remove, what)?;
                self.note(item, Fate::Gone);
            }
            MetaPhase::Rmdir => {
                let _: WccData =
                    result::<_, WccData>(body, Procedure::Rmdir, || tree.dir_name(item).to_string())?;
                self.note(item, Fate::Gone);
            }
        }
        Ok(Progress::COMPLETE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_content_is_checked_whatever_its_size() {
        for size in [0, 8, 40, 4096, 4104, 5000, 12288] {
            let mut out = Vec::new();
            append_small(&mut out, 7, size);
            assert_eq!(out.len(), (size as usize).next_multiple_of(4));
            let bytes = &mut out[..size as usize];
            check_small(bytes, 7).unwrap();
            if size >= 40 {
                bytes[33] ^= 1;
                assert!(check_small(bytes, 7).is_err(), "{size}");
            }
        }
    }
}
