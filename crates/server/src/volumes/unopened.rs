//! The sentences about backing devices that cannot be opened: what happened, to which device, and what to do.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use forebay_common::hidden::Hidden;
use rustix::io::Errno;

use super::identity::{sys_of, text};

/// Returns the sentence about a device that cannot be opened, examined or read.
pub(crate) fn unopened(path: &Path, error: &io::Error) -> String {
    if let Some(refusal) = Hidden::of_this_process().refusal(path) {
        return refusal;
    }
    let shown = path.display();
    let errno = Errno::from_io_error(error);
    match errno {
        // Drivers answer with any of these.
        Some(Errno::ROFS | Errno::ACCESS | Errno::PERM) if is_write_protected(path) => write_protected(path),
        Some(Errno::ROFS) => format!(
            "{shown} cannot be written: its file system is read-only; make that writable, or serve the volume with \
             --read-only"
        ),
        Some(Errno::NOENT | Errno::NOTDIR) => {
            format!("{shown} does not exist; name a block device or file that does")
        }
        Some(Errno::ACCESS) => format!(
            "{shown} cannot be opened: the user of the server has no access to it, or to a directory above it; change its \
             owner or mode"
        ),
        Some(Errno::PERM) => format!(
            "{shown} cannot be opened: the system forbids it; of a file remove the attribute immutable or append-only \
             (chattr), of a device let the service or container have it (DeviceAllow=)"
        ),
        Some(Errno::BUSY | Errno::TXTBSY | Errno::WOULDBLOCK) => in_use(path),
        Some(Errno::NXIO | Errno::NODEV | Errno::NOMEDIUM) => {
            format!("{shown} has no device behind it; connect the device, or name another one")
        }
        Some(Errno::IO) => {
            format!("{shown} cannot be read ({error}); see the kernel's log, and replace the disk")
        }
        _ => format!("{shown} cannot be opened: {error}; mend that, or name another device"),
    }
}

/// Returns the sentence about a device that another program has.
pub(crate) fn in_use(path: &Path) -> String {
    format!("{} is in use, by a mount or another program; end that use", path.display())
}

/// Returns the sentence about a device that takes no writes.
pub(crate) fn write_protected(path: &Path) -> String {
    format!(
        "{} is a read-only device; end that (`blockdev --setrw`), or serve the volume with --read-only",
        path.display()
    )
}

/// Returns true if a block device takes no writes. Many drivers let a program open it for writing nevertheless.
pub(crate) fn is_write_protected(path: &Path) -> bool {
    let meta = std::fs::metadata(path).ok().filter(|meta| meta.file_type().is_block_device());
    meta.is_some_and(|meta| text(&sys_of(meta.rdev()).join("ro")).as_deref() == Some("1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sentence_names_the_device_and_what_to_do() {
        let path = Path::new("/dev/somewhere");
        let errors = [
            Errno::NOENT,
            Errno::NOTDIR,
            Errno::ACCESS,
            Errno::PERM,
            Errno::ROFS,
            Errno::BUSY,
            Errno::TXTBSY,
            Errno::WOULDBLOCK,
            Errno::NXIO,
            Errno::NOMEDIUM,
            Errno::IO,
            Errno::MFILE,
        ];
        for errno in errors {
            let told = unopened(path, &errno.into());
            assert!(told.starts_with("/dev/somewhere ") && told.contains("; "), "{told}");
        }
    }
}
