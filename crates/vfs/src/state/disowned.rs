//! Notes about the parts of a pool that no longer count. They are in the state directory while no cache device of the
//! pool can hold them. A later start may see the devices again.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use forebay_common::lock::Mutex;
use forebay_engine::io::{Disowned as What, Key, Time};

/// The notes, one file for each pool. Each note is a line with a full stop, so that a torn line counts for nothing.
pub(crate) struct Disowned {
    state_dir: PathBuf,
    /// One writer at a time.
    writing: Mutex<()>,
}

impl Disowned {
    pub(crate) fn new(state_dir: &Path) -> Self {
        Disowned { state_dir: state_dir.to_owned(), writing: Mutex::new(()) }
    }

    fn path(&self, pool: u128) -> PathBuf {
        self.state_dir.join(format!("disowned-{pool:032x}"))
    }

    /// Adds a note, durably.
    pub(crate) fn add(&self, pool: u128, object: &Key, what: &What) -> io::Result<()> {
        let _one = self.writing.lock();
        let mut file =
            File::options().read(true).append(true).create(true).mode(0o600).open(self.path(pool))?;
        let len = file.seek(SeekFrom::End(0))?;
        if len == 0 {
            File::open(&self.state_dir)?.sync_all()?;
        }
        // The rest of an earlier write that failed half-way becomes a line of its own.
        match what {
            What::Blocks(blocks) => writeln!(file, "\n{object:?} {} {}.", blocks.start, blocks.end)?,
            What::Copies(blocks) => writeln!(file, "\n{object:?} copies {} {}.", blocks.start, blocks.end)?,
            What::Cut { size, mtime: Time { sec, nsec } } => {
                writeln!(file, "\n{object:?} cut {size} {sec} {nsec}.")?;
            }
        }
        file.sync_data()
    }

    /// Returns the notes about the pool.
    pub(crate) fn all(&self, pool: u128) -> io::Result<Vec<(Key, What)>> {
        let mut text = String::new();
        match File::open(self.path(pool)) {
            Ok(mut file) => file.read_to_string(&mut text)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        Ok(text.lines().filter_map(parse).collect())
    }

    /// Removes the notes about a pool, durably.
    pub(crate) fn forget(&self, pool: u128) -> io::Result<()> {
        match std::fs::remove_file(self.path(pool)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => File::open(&self.state_dir)?.sync_all(),
        }
    }
}

/// Returns the record in a line; `None` if the line was cut short.
fn parse(line: &str) -> Option<(Key, What)> {
    let (key, what) = line.strip_suffix('.')?.split_once(' ')?;
    let digits = key.as_bytes().chunks(2).map(std::str::from_utf8);
    let bytes: Option<Vec<u8>> = digits.map(|digits| u8::from_str_radix(digits.ok()?, 16).ok()).collect();
    let words: Vec<_> = what.split(' ').collect();
    let what = match words[..] {
        ["cut", size, sec, nsec] => {
            let mtime = Time { sec: sec.parse().ok()?, nsec: nsec.parse().ok()? };
            What::Cut { size: size.parse().ok()?, mtime }
        }
        ["copies", start, end] => What::Copies(start.parse().ok()?..end.parse().ok()?),
        [start, end] => What::Blocks(start.parse().ok()?..end.parse().ok()?),
        _ => return None,
    };
    Some((Key::new(&bytes?)?, what))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_noted_is_there_again_but_for_torn_lines_and_other_pools() {
        let dir = tempfile::tempdir().unwrap();
        let disowned = Disowned::new(dir.path());
        assert_eq!(disowned.all(1).unwrap(), []);
        let (long, short) = (Key::new(&[0xfe; 64]).unwrap(), Key::new(&[0]).unwrap());
        let cut = What::Cut { size: 5, mtime: Time { sec: -1, nsec: 999_999_999 } };
        disowned.add(1, &long, &What::Blocks(0..u64::MAX)).unwrap();
        disowned.add(1, &short, &cut).unwrap();
        let mut file = File::options().append(true).open(disowned.path(1)).unwrap();
        write!(file, "\n0001 12 3").unwrap();
        disowned.add(1, &short, &What::Blocks(3..4)).unwrap();
        disowned.add(1, &short, &What::Copies(7..9)).unwrap();
        disowned.add(2, &short, &What::Blocks(5..6)).unwrap();
        let again = Disowned::new(dir.path());
        assert_eq!(
            again.all(1).unwrap(),
            [
                (long, What::Blocks(0..u64::MAX)),
                (short.clone(), cut),
                (short.clone(), What::Blocks(3..4)),
                (short.clone(), What::Copies(7..9)),
            ]
        );
        again.forget(1).unwrap();
        again.forget(1).unwrap();
        assert_eq!(again.all(1).unwrap(), []);
        assert_eq!(again.all(2).unwrap(), [(short, What::Blocks(5..6))]);
    }
}
