//! Small files that an administrator names, such as certificates and tokens. A mistaken name may lead to a pipe, which
//! would hold up its reader until somebody writes, or to a device without an end.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// The most bytes of such a file.
const MOST: u64 = 4 << 20;

/// Opens a regular file for reading, without waiting.
///
/// # Errors
/// The system's error; or the path leads to something other than a regular file, and the error says to what.
pub fn open(path: &Path) -> io::Result<File> {
    // The kind is known before the open, because an open may have effects on a device.
    regular(std::fs::metadata(path)?.file_type())?;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    regular(file.metadata()?.file_type())?;
    Ok(file)
}

/// Reads a regular file of at most 4 MiB.
///
/// # Errors
/// As [`open`]; or the file is larger.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(MOST + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > MOST {
        true => Err(io::Error::other(format!("it has more than {} MiB", MOST >> 20))),
        false => Ok(bytes),
    }
}

/// Reads a regular file of at most 4 MiB of text.
///
/// # Errors
/// As [`read`]; or the file is not UTF-8 text.
pub fn read_text(path: &Path) -> io::Result<String> {
    String::from_utf8(read(path)?).map_err(|_| io::Error::other("it is not UTF-8 text"))
}

/// Returns an error unless the file is a regular one.
fn regular(kind: std::fs::FileType) -> io::Result<()> {
    let what = match kind {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_dir() => "directory",
        kind if kind.is_fifo() => "pipe",
        kind if kind.is_socket() => "socket",
        _ => "device",
    };
    Err(io::Error::other(format!("it is a {what}, and not a regular file")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_of_a_bounded_size_is_read() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        std::fs::write(path("file"), "text").unwrap();
        assert_eq!(read_text(&path("file")).unwrap(), "text");
        let pipe = std::process::Command::new("mkfifo").arg(path("pipe")).status().unwrap();
        assert!(pipe.success());
        let _socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
        std::fs::write(path("bytes"), [0xff]).unwrap();
        File::create(path("large")).unwrap().set_len(MOST + 1).unwrap();
        let told = |path: &Path| read_text(path).unwrap_err().to_string();
        for name in ["pipe", "socket"] {
            assert_eq!(told(&path(name)), format!("it is a {name}, and not a regular file"));
        }
        assert!(told(home.path()).contains("directory") && told(Path::new("/dev/zero")).contains("device"));
        assert!(told(&path("bytes")).contains("UTF-8") && told(&path("large")).contains("4 MiB"));
        assert_eq!(read(&path("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
