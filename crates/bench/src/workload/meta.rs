//! Trees of small files. They are made, looked up, read, changed and removed, one phase after the other, as in
//! mdtest.

use std::sync::{Arc, OnceLock};

use anyhow::{Context as _, Result, bail};
use forebay_wire::nfs3::StableHow;
use forebay_wire::nfs4::Stateid;

use super::tree::{Name, Tree};
use super::{Call, Next, Progress, Workload};
use crate::content;
use crate::names::Fate;
use crate::protocol::{Answer, Handle, Made, Open, Request};

/// The operation of a phase on all items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetaPhase {
    Mkdir,
    Create,
    Stat,
    /// READ by the handle.
    Read,
    /// The requests of open, read and close: LOOKUP, ACCESS, READ, or OPEN, READ, CLOSE in NFSv4.
    OpenReadClose,
    /// SETATTR of the mode.
    Setattr,
    /// RENAME within the directory.
    Rename,
    Remove,
    Rmdir,
}

impl MetaPhase {
    pub(crate) const ALL: [Self; 9] = [
        Self::Mkdir,
        Self::Create,
        Self::Stat,
        Self::Read,
        Self::OpenReadClose,
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
            Self::OpenReadClose => "open+read+close",
            Self::Setattr => "setattr",
            Self::Rename => "rename",
            Self::Remove => "remove",
            Self::Rmdir => "rmdir",
        }
    }
}

/// The next request for an item. All steps but the first belong to phases with several requests for each item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    First,
    Write(Open),
    Access,
    Read(Open),
    Close(Stateid),
}

impl Step {
    /// Returns the step that ends the use of a file.
    fn close(open: Open) -> Self {
        open.map_or(Step::First, Step::Close)
    }
}

/// A client in one phase over its tree.
pub(crate) struct Meta {
    tree: Arc<Tree>,
    phase: MetaPhase,
    issued: u32,
    total: u32,
    /// The item of each slot, and the next request for it.
    slots: Vec<(u32, Step)>,
}

impl Meta {
    /// Makes a client for one phase of the tree. Only the client that owns the directories makes and removes them.
    pub(crate) fn new(tree: Arc<Tree>, phase: MetaPhase, depth: u16) -> Self {
        let total = match phase {
            MetaPhase::Mkdir | MetaPhase::Rmdir if tree.owns_dirs => tree.dirs.len() as u32,
            MetaPhase::Mkdir | MetaPhase::Rmdir => 0,
            _ => tree.items,
        };
        Self { tree, phase, issued: 0, total, slots: vec![(0, Step::First); depth.into()] }
    }

    /// Sets the promised state of an item of this phase.
    fn note(&self, item: u32, fate: Fate) {
        let Some((files, dirs)) = &self.tree.names else { return };
        let of_dirs = matches!(self.phase, MetaPhase::Mkdir | MetaPhase::Rmdir);
        if of_dirs { dirs } else { files }.set(item.into(), fate);
    }

    /// Stores the handle of an object that was just made.
    fn keep(&self, place: &OnceLock<Handle>, made: &Made, answer: &Answer<'_>, name: Name) -> Result<()> {
        match made.handle {
            Some(handle) => drop(place.set(handle)),
            None => bail!(
                "{} of {name} returned no handle; this pattern cannot measure such a server",
                answer.operation().name()
            ),
        }
        Ok(())
    }

    /// Handles the reply to the first request for an item. Returns the next step.
    fn first_reply(&self, item: u32, answer: &Answer<'_>) -> Result<(Step, u64)> {
        let (tree, name) = (&self.tree, self.tree.name(item));
        let what = || name.to_string();
        match self.phase {
            MetaPhase::Mkdir => {
                let name = tree.dir_name(item);
                let made = answer.named(answer.made(), || name.to_string())?;
                self.keep(&tree.dirs[item as usize], &made, answer, name)?;
                self.note(item, Fate::There);
            }
            MetaPhase::Create => {
                let made = answer.named(answer.made(), what)?;
                self.keep(tree.made(item), &made, answer, name)?;
                self.note(item, Fate::There);
                let fills = tree.item_size > 0;
                return Ok((if fills { Step::Write(made.open) } else { Step::close(made.open) }, 0));
            }
            MetaPhase::Stat | MetaPhase::OpenReadClose => {
                let found = answer.named(answer.found(), what)?;
                if found.handle != Some(tree.handle(item)) {
                    bail!("{} of {name} returned another handle than CREATE", answer.operation().name());
                }
                if self.phase == MetaPhase::OpenReadClose {
                    return Ok((found.open.map_or(Step::Access, |open| Step::Read(Some(open))), 0));
                }
            }
            MetaPhase::Read => return self.read_reply(item, None, answer),
            MetaPhase::Setattr => answer.named(answer.done(), what)?,
            MetaPhase::Rename => {
                answer.named(answer.done(), what)?;
                tree.renamed(item);
            }
            MetaPhase::Remove => {
                answer.named(answer.done(), what)?;
                self.note(item, Fate::Gone);
            }
            MetaPhase::Rmdir => {
                answer.named(answer.done(), || tree.dir_name(item).to_string())?;
                self.note(item, Fate::Gone);
            }
        }
        Ok((Step::First, 0))
    }

    /// Checks the bytes of a small file. Returns the next step, which closes an open, and the number of bytes.
    fn read_reply(&self, item: u32, open: Open, answer: &Answer<'_>) -> Result<(Step, u64)> {
        let (tree, name) = (&self.tree, self.tree.name(item));
        let data = answer.named(answer.data(), || name.to_string())?;
        if data.len() != tree.item_size as usize {
            bail!("READ of {name} returned {} of {} bytes", data.len(), tree.item_size);
        }
        check_small(data, tree.content_id(item)).with_context(|| format!("{name} is wrong"))?;
        Ok((Step::close(open), data.len() as u64))
    }

    /// Checks that a WRITE to a small file is complete. Returns the next step, which closes an open, and the number
    /// of bytes.
    fn write_reply(&self, item: u32, open: Open, answer: &Answer<'_>) -> Result<(Step, u64)> {
        let (tree, name) = (&self.tree, self.tree.name(item));
        let written = answer.named(answer.written(), || name.to_string())?;
        if written.count != tree.item_size {
            bail!("WRITE of {name} wrote {} of {} bytes", written.count, tree.item_size);
        }
        if written.committed != StableHow::Unstable {
            self.note(item, Fate::Filled);
        }
        Ok((Step::close(open), written.count.into()))
    }

    /// Appends the first request for an item.
    fn send_first(&self, item: u32, call: &mut Call<'_>) {
        let tree = &self.tree;
        let (name, dir_name, new_name) = (tree.name(item), tree.dir_name(item), tree.new_name(item));
        let (name, dir_name, to) = (name.as_bytes(), dir_name.as_bytes(), new_name.as_bytes());
        let dir = tree.dir_of(item);
        call.start(&match self.phase {
            MetaPhase::Mkdir => Request::Mkdir { dir: tree.base, name: dir_name, mode: 0o777 },
            MetaPhase::Create => Request::Create { dir, name, mode: 0o644, exclusive: true },
            MetaPhase::Stat => Request::Lookup { dir, name },
            MetaPhase::Read => self.read(item, None),
            MetaPhase::OpenReadClose => Request::Open { dir, name },
            MetaPhase::Setattr => Request::SetMode { object: tree.handle(item), mode: 0o600 },
            MetaPhase::Rename => Request::Rename { dir, from: name, to },
            MetaPhase::Remove => Request::Remove { dir, name },
            MetaPhase::Rmdir => Request::Rmdir { dir: tree.base, name: dir_name },
        });
    }

    fn read(&self, item: u32, open: Open) -> Request<'static> {
        Request::Read { file: self.tree.handle(item), open, offset: 0, count: self.tree.item_size }
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
        if self.slots[slot].1 != Step::First {
            return Next::GoOn;
        }
        if stopping || self.issued == self.total {
            return Next::Finished;
        }
        match self.phase {
            MetaPhase::Mkdir | MetaPhase::Create => self.note(self.issued, Fate::Making),
            MetaPhase::Remove | MetaPhase::Rmdir => self.note(self.issued, Fate::Removing),
            MetaPhase::Stat | MetaPhase::Read | MetaPhase::OpenReadClose => {}
            MetaPhase::Setattr | MetaPhase::Rename => {}
        }
        self.slots[slot].0 = self.issued;
        self.issued += 1;
        Next::Begin
    }

    fn send(&self, slot: usize, call: &mut Call<'_>) {
        let (item, step) = self.slots[slot];
        let tree = &self.tree;
        let file = tree.handle(item);
        match step {
            Step::First => self.send_first(item, call),
            Step::Write(open) => {
                let (count, stable) = (tree.item_size, tree.stable);
                let out = call.start(&Request::Write { file, open, offset: 0, count, stable });
                append_small(out, tree.content_id(item), tree.item_size);
            }
            Step::Access => _ = call.start(&Request::Access { object: file }),
            Step::Read(open) => _ = call.start(&self.read(item, open)),
            Step::Close(open) => _ = call.start(&Request::Close { file, open }),
        }
    }

    fn reply(&mut self, slot: usize, answer: &Answer<'_>) -> Result<Progress> {
        let (item, step) = self.slots[slot];
        let what = || self.tree.name(item).to_string();
        let (next, bytes) = match step {
            Step::First => self.first_reply(item, answer)?,
            Step::Write(open) => self.write_reply(item, open, answer)?,
            Step::Access => {
                answer.named(answer.done(), what)?;
                (Step::Read(None), 0)
            }
            Step::Read(open) => self.read_reply(item, open, answer)?,
            Step::Close(_) => {
                answer.named(answer.done(), what)?;
                (Step::First, 0)
            }
        };
        self.slots[slot].1 = next;
        let progress = if next == Step::First { Progress::COMPLETE } else { Progress::CONTINUE };
        Ok(progress.with_bytes(bytes))
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
