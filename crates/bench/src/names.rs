//! The small files and directories that were made and removed, and the promise for each, for a check after a crash.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::workload::Name;

/// The promised state of a name. A change that was sent but not answered may or may not have happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fate {
    /// The name was never made.
    Unsent,
    /// CREATE or MKDIR was sent.
    Making,
    /// The name exists; a file may lack its content.
    There,
    /// The file exists with its content.
    Filled,
    /// REMOVE or RMDIR was sent.
    Removing,
    /// The name was removed.
    Gone,
}

/// The location of names.
#[derive(Debug)]
pub(crate) struct Place {
    /// Path below the directory of all runs.
    pub(crate) base: String,
    /// The client whose directories hold the names, and the number of names in each directory. `None` if the names
    /// are in the base.
    pub(crate) dirs: Option<(u32, u32)>,
}

/// The names that one client makes in one place, by their numbers.
#[derive(Debug)]
pub(crate) struct Names {
    place: Place,
    letter: char,
    client: u32,
    /// Bytes of each file; `None` for directories.
    size: Option<u32>,
    fates: Mutex<Vec<Fate>>,
}

/// The promised state of one name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Promise {
    /// Path of the name's directory below the directory of all runs.
    pub(crate) dir: String,
    pub(crate) name: String,
    /// Number that the content of the file contains.
    pub(crate) content: u64,
    /// Bytes of the file; `None` for a directory.
    pub(crate) size: Option<u32>,
    pub(crate) fate: Fate,
}

/// Returns the number that the content of a small file contains. Data files have other numbers.
pub(crate) fn content_id(client: u32, number: u64) -> u64 {
    1 << 47 | u64::from(client) << 32 | number & u64::from(u32::MAX)
}

impl Names {
    /// Returns names of a letter, a client and a number. No name has been made yet.
    pub(crate) fn new(place: Place, letter: char, client: u32, size: Option<u32>) -> Self {
        Self { place, letter, client, size, fates: Mutex::default() }
    }

    fn fates(&self) -> MutexGuard<'_, Vec<Fate>> {
        self.fates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the promised state of a name.
    pub(crate) fn set(&self, number: u64, fate: Fate) {
        let (mut fates, number) = (self.fates(), number as usize);
        if fates.len() <= number {
            fates.resize(number + 1, Fate::Unsent);
        }
        fates[number] = fate;
    }

    /// Returns the promise for each name that was sent.
    pub(crate) fn promises(&self) -> Vec<Promise> {
        let promise = |(number, fate): (u64, &Fate)| Promise {
            dir: match self.place.dirs {
                Some((owner, per_dir)) => {
                    format!("{}/{}", self.place.base, Name::new('d', owner, number / u64::from(per_dir)))
                }
                None => self.place.base.clone(),
            },
            name: Name::new(self.letter, self.client, number).to_string(),
            content: content_id(self.client, number),
            size: self.size,
            fate: *fate,
        };
        let fates = self.fates();
        (0..).zip(fates.iter()).filter(|(_, fate)| **fate != Fate::Unsent).map(promise).collect()
    }
}

impl Promise {
    /// Returns the violation of the promise, if any, given whether the name exists.
    pub(crate) fn broken(&self, is_there: bool) -> Option<&'static str> {
        match (self.fate, is_there) {
            (Fate::There | Fate::Filled, false) => Some("is lost"),
            (Fate::Gone, true) => Some("is back, though it was removed"),
            (Fate::Unsent, true) => Some("exists, though no client made it"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_answered_is_promised() {
        let place = Place { base: "tree-1/client-2".to_owned(), dirs: Some((2, 10)) };
        let names = Names::new(place, 'f', 2, Some(4096));
        names.set(12, Fate::Filled);
        names.set(3, Fate::Making);
        let promises = names.promises();
        let shown: Vec<String> =
            promises.iter().map(|one| format!("{}/{} {:?}", one.dir, one.name, one.fate)).collect();
        assert_eq!(shown, ["tree-1/client-2/d2-0/f2-3 Making", "tree-1/client-2/d2-1/f2-12 Filled"]);
        assert_eq!((promises[0].broken(true), promises[0].broken(false)), (None, None));
        assert_eq!((promises[1].broken(true), promises[1].broken(false)), (None, Some("is lost")));
        names.set(12, Fate::Gone);
        assert!(names.promises()[1].broken(true).is_some() && names.promises()[1].broken(false).is_none());
    }
}
