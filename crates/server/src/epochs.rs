//! The epochs in use of pools, in a file of the state directory. The file has two slots of one size, each a text with a
//! checksum, and is written in place: that needs no room, so a full state directory does not stop it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_common::state_file;
use forebay_engine::io::Noted;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of a slot.
const SLOT: usize = 4096;
/// Pools that are kept, those used last: their lines fit a slot.
const POOLS: usize = 50;
const MAGIC: &str = "forebay-epochs";

/// The file and its contents.
#[derive(Debug)]
pub(crate) struct Epochs {
    path: PathBuf,
    /// `None` until the first epoch is recorded.
    file: Option<File>,
    generation: u64,
    /// UUIDs of pools with their recorded epochs; the pool used last is at the end.
    pools: Vec<(String, Noted)>,
}

impl Epochs {
    /// Reads the file, if it is there.
    ///
    /// # Errors
    /// The file cannot be read, or neither slot is whole. Which epochs are in use is not known then.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let Some(file) = state_file::existing(open(path))? else {
            return Ok(Epochs { path: path.to_owned(), file: None, generation: 0, pools: Vec::new() });
        };
        let slot = |number: u64| {
            let mut bytes = [0; SLOT];
            file.read_exact_at(&mut bytes, number * SLOT as u64).ok()?;
            decode(&bytes)
        };
        let newest = [slot(0), slot(1)].into_iter().flatten().max_by_key(|(generation, _)| *generation);
        let damaged =
            || forebay_common::state_file::damaged(path, "if all devices of the cache are there, remove it");
        let (generation, pools) = newest.ok_or_else(damaged)?;
        Ok(Epochs { path: path.to_owned(), file: Some(file), generation, pools })
    }

    /// Returns the recorded epochs of a pool.
    pub(crate) fn of(&self, pool: &str) -> Noted {
        self.pools.iter().find(|(known, _)| known == pool).map_or_else(Noted::default, |(_, noted)| *noted)
    }

    /// Records the epoch in use of a pool, which never decreases. Durable in both slots.
    ///
    /// # Errors
    /// The system's error. A later reader may find either epoch.
    pub(crate) fn set(&mut self, pool: &str, epoch: u64) -> io::Result<()> {
        let before = self.of(pool);
        self.note(pool, Noted { in_use: before.in_use.max(epoch), given: before.given.max(epoch) })
    }

    /// Records that an epoch of a pool is given out. Durable in both slots.
    ///
    /// # Errors
    /// The system's error. The epoch may be recorded or not.
    pub(crate) fn give(&mut self, pool: &str, epoch: u64) -> io::Result<()> {
        let before = self.of(pool);
        self.note(pool, Noted { given: before.given.max(epoch), ..before })
    }

    /// Replaces the epochs of a pool, durably. The pools used least recently are dropped beyond `POOLS`.
    fn note(&mut self, pool: &str, noted: Noted) -> io::Result<()> {
        self.pools.retain(|(known, _)| known != pool);
        self.pools.push((pool.to_owned(), noted));
        let surplus = self.pools.len().saturating_sub(POOLS);
        self.pools.drain(..surplus);
        self.write()
    }

    /// Forgets a pool that never held anything.
    pub(crate) fn forget(&mut self, pool: &str) -> io::Result<()> {
        self.pools.retain(|(known, _)| known != pool);
        self.write()
    }

    /// Writes both slots, durably. The first call makes the file. After an error one slot may have the old contents.
    fn write(&mut self) -> io::Result<()> {
        self.generation += 1;
        let bytes = encode(self.generation, &self.pools)?;
        let Some(file) = &self.file else {
            state_file::replace(&self.path, [&bytes[..], &bytes].concat())?;
            self.file = Some(open(&self.path)?);
            return Ok(());
        };
        // The slots are written one after the other, so one of the two is always whole.
        for slot in 0..2 {
            file.write_all_at(&bytes, slot * SLOT as u64)?;
            file.sync_data()?;
        }
        Ok(())
    }
}

/// Opens the file for reading and writing.
fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Returns the contents of a slot: a checksum, the generation, and a line for each pool. The line has the pool's UUID,
/// the epoch in use, and the epoch given out if that one is higher. Fails if they are longer than a slot.
fn encode(generation: u64, pools: &[(String, Noted)]) -> io::Result<Vec<u8>> {
    let line = |(pool, noted): &(String, Noted)| match noted.given > noted.in_use {
        true => format!("{pool} {} {}\n", noted.in_use, noted.given),
        false => format!("{pool} {}\n", noted.in_use),
    };
    let lines: String = pools.iter().map(line).collect();
    let body = format!("{generation}\n{lines}");
    let mut bytes = format!("{MAGIC} {:016x}\n{body}", xxh3_64(body.as_bytes())).into_bytes();
    if bytes.len() > SLOT {
        return Err(io::Error::other("the epochs of the pools do not fit their file"));
    }
    bytes.resize(SLOT, 0);
    Ok(bytes)
}

/// Decodes a slot into its generation and pools. Returns `None` if the checksum or a line is wrong.
fn decode(bytes: &[u8]) -> Option<(u64, Vec<(String, Noted)>)> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (head, body) = std::str::from_utf8(&bytes[..end]).ok()?.split_once('\n')?;
    let sum = u64::from_str_radix(head.strip_prefix(MAGIC)?.trim(), 16).ok()?;
    if sum != xxh3_64(body.as_bytes()) {
        return None;
    }
    let mut lines = body.lines();
    let generation = lines.next()?.parse().ok()?;
    let pool = |line: &str| {
        let mut words = line.split(' ');
        let (pool, in_use) = (words.next()?, words.next()?.parse().ok()?);
        let given = words.next().map_or(Ok(in_use), str::parse).ok()?;
        Some((pool.to_owned(), Noted { in_use, given }))
    };
    Some((generation, lines.map(pool).collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_found_again_also_with_a_slot_torn() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("cache-epochs");
        let mut epochs = Epochs::open(&path).unwrap();
        assert_eq!(epochs.of("a"), Noted::default());
        epochs.give("b", 9).unwrap();
        epochs.set("a", 3).unwrap();
        epochs.set("b", 7).unwrap();
        epochs.set("a", 2).unwrap();
        let whole = std::fs::read(&path).unwrap();
        assert_eq!(whole.len(), 2 * SLOT, "it is written in place");
        for torn in [0, SLOT] {
            let mut bytes = whole.clone();
            bytes[torn + 34] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            let epochs = Epochs::open(&path).unwrap();
            let of = |pool| (epochs.of(pool).in_use, epochs.of(pool).given);
            assert_eq!([of("a"), of("b"), of("c")], [(3, 3), (7, 9), (0, 0)]);
        }
    }

    #[test]
    fn a_file_without_a_whole_slot_is_an_error() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("cache-epochs");
        Epochs::open(&path).unwrap().set("a", 3).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        (bytes[34], bytes[SLOT + 34]) = (b'x', b'x');
        std::fs::write(&path, bytes).unwrap();
        assert!(Epochs::open(&path).unwrap_err().to_string().contains("damaged"));
    }

    #[test]
    fn the_pools_used_last_are_kept() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("cache-epochs");
        let mut epochs = Epochs::open(&path).unwrap();
        let name = |number: u64| format!("{number:036}");
        let noted = |number: u64| Noted { in_use: u64::MAX - number - 1, given: u64::MAX - number };
        for number in 0..100 {
            epochs.set(&name(number), noted(number).in_use).unwrap();
            epochs.give(&name(number), noted(number).given).unwrap();
        }
        let epochs = Epochs::open(&path).unwrap();
        assert_eq!([99, 55].map(|number| epochs.of(&name(number))), [noted(99), noted(55)]);
        assert_eq!(epochs.of(&name(39)), Noted::default());
    }
}
