//! MKDIR, SYMLINK and MKNOD.

use forebay_oplog::New;
use rustix::fs::{FileType, Mode};

use crate::attr::SetAttr;
use crate::cred::Cred;
use crate::durability::request_journal::LoggedReply;
use crate::error::Result;
use crate::export::Target;
use crate::export::vfs::Vfs;
use crate::oplog;
use crate::ops::change::Changed;
use crate::ops::new_name::{Creation, Made, Wanted, journaled_request};

/// An inode to create that is not a regular file.
#[derive(Clone, Copy, Debug)]
pub enum Special<'a> {
    /// A directory.
    Directory,
    /// A symbolic link with this text.
    Symlink(&'a [u8]),
    /// A named pipe.
    Fifo,
    /// A local socket.
    Socket,
    /// A character device, major and minor.
    Character(u32, u32),
    /// A block device, major and minor.
    Block(u32, u32),
}

impl Vfs {
    /// Makes anything but a regular file.
    pub fn make(
        &self,
        dir: &Target,
        name: &[u8],
        special: Special<'_>,
        set: &SetAttr,
        cred: &Cred,
        asked: Option<&LoggedReply>,
    ) -> Changed<Made> {
        let new = match special {
            Special::Symlink(text) => New::Link(text.into()),
            Special::Character(major, minor) | Special::Block(major, minor) => New::Device(major, minor),
            Special::Directory | Special::Fifo | Special::Socket => New::Plain,
        };
        let unrecorded = match special {
            Special::Symlink(text) => Some(text.len()).filter(|len| *len > oplog::TEXT_MAX),
            _ => None,
        };
        let asked = asked.map(|asked| journaled_request(set, asked));
        self.make_name(dir, name, Wanted { cred, size: None, unrecorded, asked }, |vfs, begun| {
            let without_size = SetAttr { size: None, ..*set };
            if let Some(made) = vfs.go_on(dir, name, begun, without_size, cred)? {
                return Ok(Creation::of(made, Some(new)));
            }
            {
                let _acting = vfs.act_as(cred)?;
                make_special(dir, name, special, set.mode.unwrap_or(0) & 0o7777)?;
            }
            let mut seen = None;
            let mut finish = || {
                let fs = &dir.export.fs;
                let (object, attr) = match special {
                    Special::Directory => fs.new_directory(&dir.object, name)?,
                    _ => fs.child(&dir.object, name, false)?,
                };
                seen = Some(object.clone());
                // mkdir(2) ignores set-uid and set-gid; a symbolic link has no mode of its own.
                let again =
                    matches!(special, Special::Directory) && set.mode.is_some_and(|mode| mode & 0o6000 != 0);
                let set = SetAttr { mode: set.mode.filter(|_| again), size: None, ..*set };
                vfs.finish(Target { export: dir.export.clone(), object }, attr, set, cred)
            };
            let made = finish().inspect_err(|_| {
                let seen = seen.and_then(|object| rustix::fs::fstat(object.path()).ok());
                vfs.take_back(dir, name, seen.map(|stat| stat.st_ino));
            })?;
            Ok(Creation::of(made, Some(new)))
        })
    }
}

/// Makes a directory, a link, or a special file.
fn make_special(dir: &Target, name: &[u8], special: Special<'_>, mode: u32) -> Result<()> {
    let at = dir.object.path();
    let mode = Mode::from_raw_mode(mode);
    let node = |kind, device| rustix::fs::mknodat(at, name, kind, mode, device);
    let made = match special {
        Special::Directory => rustix::fs::mkdirat(at, name, mode),
        Special::Symlink(text) => rustix::fs::symlinkat(text, at, name),
        Special::Fifo => node(FileType::Fifo, 0),
        Special::Socket => node(FileType::Socket, 0),
        Special::Character(major, minor) => {
            node(FileType::CharacterDevice, rustix::fs::makedev(major, minor))
        }
        Special::Block(major, minor) => node(FileType::BlockDevice, rustix::fs::makedev(major, minor)),
    };
    Ok(made?)
}
