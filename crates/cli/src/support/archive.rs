//! The archive: its files, and the README that lists them.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;

use super::Piece;
use super::redact::Redactor;

/// Makes the file of the archive, which only its owner can read. An existing file is an error.
pub(super) fn create(path: &Path) -> io::Result<File> {
    File::options().write(true).create_new(true).mode(0o600).open(path)
}

/// Writes the archive: `folder` with README.txt and the pieces.
pub(super) fn write(
    file: File,
    folder: &str,
    pieces: &[Piece],
    redactor: Option<&Redactor>,
) -> io::Result<()> {
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    add(&mut archive, folder, "README.txt", &readme(pieces, redactor))?;
    for piece in pieces {
        if let Ok(text) = &piece.text {
            add(&mut archive, folder, piece.name, text)?;
        }
    }
    let mut file = archive.into_inner()?.finish()?;
    file.flush()?;
    file.sync_all()
}

/// Adds a file with this text to the archive. Only its owner may read the file when it is unpacked.
fn add(archive: &mut tar::Builder<impl Write>, folder: &str, name: &str, text: &str) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(text.len() as u64);
    header.set_mode(0o600);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    header.set_mtime(now.as_secs());
    archive.append_data(&mut header, format!("{folder}/{name}"), text.as_bytes())
}

/// Returns the text of README.txt.
fn readme(pieces: &[Piece], redactor: Option<&Redactor>) -> String {
    let mut text = format!(
        "Made by `forebay support`, forebay {}, for somebody who looks into a problem of this server.\n\
         No file has contents of served files, keys, certificates or tokens.\n",
        env!("CARGO_PKG_VERSION")
    );
    match redactor {
        Some(redactor) => {
            text.push_str(
                "Addresses of other hosts, the name of this host, and names of users and of served files are pseudonyms.\n",
            );
            text.push_str(redactor.about_paths());
        }
        None => text.push_str(
            "Names of files, users and hosts are as they are: `forebay support --redact` replaces them.\n",
        ),
    }
    text.push('\n');
    for piece in pieces {
        match &piece.text {
            Ok(_) => text.push_str(&format!("{:<20} {}\n", piece.name, piece.about)),
            Err(reason) => {
                text.push_str(&format!("{:<20} MISSING: {} ({reason})\n", piece.name, piece.about))
            }
        }
    }
    text
}
