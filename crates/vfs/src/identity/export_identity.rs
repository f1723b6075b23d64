//! The identity of one export.

use std::fmt;
use std::hash::Hasher;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxAttributes, StatxFlags};
use siphasher::sip::SipHasher24;

use crate::error::Result;
use crate::identity::fs_type::{is_local, type_name};
use crate::identity::mounts::{self, Mounted};
use crate::identity::uuid;
use crate::sys;

/// The directory of an export and its file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportIdentity {
    /// The type, as statfs(2) has it.
    pub(crate) magic: u32,
    /// The file system's own UUID; zeros where it has none, or none that survives a mount.
    pub(crate) uuid: [u8; 16],
    /// The number that tells trees of one UUID apart: the subvolume of a btrfs; the f_fsid of a ZFS; else 0.
    pub(crate) part: u64,
    /// A hash of the directory's kernel handle, with its generation; 0 where handles do not survive a mount.
    pub(crate) root: u64,
    /// True if the directory is a mount point. For people: a bind mount is as good.
    pub(crate) mount_root: bool,
    /// The mounted device, such as "/dev/sdb1". For people: device nodes change their names.
    pub(crate) source: String,
    /// The mount point, for people.
    pub(crate) mounted_at: String,
}

impl ExportIdentity {
    /// Looks at the directory at `path`. Nothing is written.
    ///
    /// # Errors
    /// It is no directory that can be opened, or the file system does not tell in an unexpected way.
    pub fn at(path: &Path) -> Result<Self> {
        Self::of(open_root(path)?)
    }

    /// Looks at an open directory. Nothing is written.
    pub(crate) fn of(root: impl AsFd) -> Result<Self> {
        let stat = rustix::fs::fstatfs(&root)?;
        let magic = stat.f_type;
        let looked = rustix::fs::statx(&root, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        let (uuid, part) = match is_local(magic) && type_name(magic) != "tmpfs" {
            true => (uuid::uuid(&root, magic)?, uuid::part(&root, magic)?),
            // The kernel makes a new one up at each mount; a file system of another kind may do as well.
            false => ([0; 16], 0),
        };
        let Mounted { source, at } = mounts::of(&root).unwrap_or_default();
        Ok(ExportIdentity {
            magic: magic as u32,
            uuid,
            part,
            root: if is_local(magic) { root_hash(&root) } else { 0 },
            mount_root: looked.stx_attributes.contains(StatxAttributes::MOUNT_ROOT),
            source,
            mounted_at: at,
        })
    }

    /// Returns true if both are one file system, wherever it is mounted.
    pub fn is_filesystem_of(&self, other: &Self) -> bool {
        (self.magic, self.uuid, self.part) == (other.magic, other.uuid, other.part)
    }

    /// Returns true if both are one directory of one file system, wherever that is mounted.
    pub fn is(&self, other: &Self) -> bool {
        self.is_filesystem_of(other) && self.root == other.root
    }

    /// Returns the type, for people.
    pub fn fs_type(&self) -> &'static str {
        type_name(i64::from(self.magic))
    }

    /// Returns the device as it was called, for people; may be empty.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the mount point of its file system, for people, if that is known.
    pub fn mounted_at(&self) -> Option<&str> {
        Some(&*self.mounted_at).filter(|at| !at.is_empty())
    }

    /// Returns true if the directory is a mount point.
    pub fn is_mount(&self) -> bool {
        self.mount_root
    }

    /// Returns the subvolume's id, of a btrfs.
    pub fn subvolume(&self) -> Option<u64> {
        (self.fs_type() == "btrfs").then_some(self.part)
    }

    /// Returns the UUID as it is written, if there is one.
    pub fn uuid(&self) -> Option<String> {
        let hex: String = self.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let written = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-");
        (self.uuid != [0; 16]).then_some(written)
    }
}

impl fmt::Display for ExportIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.fs_type())?;
        if let Some(uuid) = self.uuid() {
            write!(f, " with UUID {uuid}")?;
        }
        if let Some(subvolume) = self.subvolume() {
            write!(f, ", subvolume {subvolume}")?;
        }
        match (&*self.source, &*self.mounted_at) {
            ("", _) => Ok(()),
            (source, "") => write!(f, " ({source})"),
            (source, at) => write!(f, " ({source}, mounted at {at})"),
        }
    }
}

/// Opens a directory to be exported.
pub(crate) fn open_root(path: &std::path::Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

/// Returns a hash of the handle that the kernel gives the directory; 0 if it gives none.
fn root_hash(root: impl AsFd) -> u64 {
    let Ok(handle) = sys::name_to_handle(root, c"") else { return 0 };
    let mut hasher = SipHasher24::new();
    hasher.write_i32(handle.kind);
    hasher.write(handle.as_slice());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_itself_wherever_it_is_and_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let (a, b) = (home.path().join("a"), home.path().join("b"));
        std::fs::create_dir(&a).unwrap();
        std::fs::create_dir(&b).unwrap();
        let [first, other] = [&a, &b].map(|path| ExportIdentity::at(path).unwrap());
        assert!(first.is(&ExportIdentity::at(&a).unwrap()));
        assert!(first.is_filesystem_of(&other));
        std::fs::rename(&a, home.path().join("moved")).unwrap();
        let moved = ExportIdentity::at(&home.path().join("moved")).unwrap();
        assert!(first.is(&moved), "a directory that was moved");
        assert!(!first.is_filesystem_of(&ExportIdentity::at(Path::new("/proc")).unwrap()));
        if first.root != 0 {
            assert!(!first.is(&other));
        }
    }
}
