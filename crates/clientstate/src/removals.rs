//! Files that lose their last name while clients have them open (RFC 8881 section 18.25.4).
//!
//! The server of files asks [`State::begin_removal`] before it removes a name, and says [`State::end_removal`] after.
//! A file that is held stays without a name ([`State::keep_removed`]) until [`Action::FileUnused`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::state::State;
use crate::{Action, Effects, FileKey, Now, planted_bugs};

/// The most kept files that one [`State::tick`] looks at. The next one goes on behind them.
const LOOKED_AT: usize = 1024;

/// Files that are losing their last name, and files without one.
#[derive(Debug, Default)]
pub(crate) struct Removals {
    /// Files that nobody may open, with the number of removals in progress.
    going: BTreeMap<FileKey, u32>,
    /// Files without a name that are kept for their opens and delegations.
    kept: BTreeSet<FileKey>,
    /// The last file that [`State::tick`] has looked at.
    looked_at: Option<FileKey>,
}

impl Removals {
    pub(crate) fn is_going(&self, file: &FileKey) -> bool {
        self.going.contains_key(file)
    }

    fn begin(&mut self, file: &FileKey) {
        *self.going.entry(file.clone()).or_default() += 1;
    }

    /// Returns the next files of the round, at most [`LOOKED_AT`].
    fn next(&mut self) -> Vec<FileKey> {
        let after = self.looked_at.take().map_or(Bound::Unbounded, Bound::Excluded);
        let files: Vec<_> = self.kept.range((after, Bound::Unbounded)).take(LOOKED_AT).cloned().collect();
        self.looked_at = files.last().filter(|_| files.len() == LOOKED_AT).cloned();
        files
    }
}

impl State {
    /// Begins the removal of a name of a file.
    ///
    /// | the file | result |
    /// |---|---|
    /// | is open or delegated to a client whose lease has not expired | true: its contents must stay |
    /// | else | false: nobody can open it until [`State::end_removal`], an OPEN gets `Delay` |
    ///
    /// Locks and shares of NLM hosts do not keep a file: NFSv3 has no open.
    pub fn begin_removal(&mut self, file: &FileKey, now: Now) -> bool {
        if self.is_held(file, now) {
            return true;
        }
        self.removals.begin(file);
        false
    }

    /// Ends a removal for which [`State::begin_removal`] returned false, or for which [`Action::FileUnused`] asked. If
    /// the file is gone, an OPEN that follows has to find that out by itself.
    pub fn end_removal(&mut self, file: &FileKey) {
        let Some(count) = self.removals.going.get_mut(file) else { return };
        *count -= 1;
        if *count == 0 {
            self.removals.going.remove(file);
        }
    }

    /// Notes that a file has lost its last name and is kept for its clients. The server says this after the removal,
    /// and at its start of each file that it has kept. [`Action::FileUnused`] follows when the last client's open or
    /// delegation has ended: at once if it ended during the removal.
    pub fn keep_removed(&mut self, file: &FileKey, now: Now, fx: &mut Effects) {
        self.removals.kept.insert(file.clone());
        self.release(file, now, fx);
    }

    /// Ends a removal that [`Action::FileUnused`] has asked for, and that has failed. A later [`State::tick`] asks for
    /// it again.
    pub fn put_off_removal(&mut self, file: &FileKey) {
        self.removals.kept.insert(file.clone());
        self.end_removal(file);
    }

    /// Asks the server to remove a kept file if no client holds it any more. Nobody can open it then.
    pub(crate) fn release(&mut self, file: &FileKey, now: Now, fx: &mut Effects) {
        let too_early = planted_bugs::active("a removed file goes with any of its opens");
        if !self.removals.kept.contains(file) || self.is_held(file, now) && !too_early {
            return;
        }
        self.removals.kept.remove(file);
        self.removals.begin(file);
        fx.act(Action::FileUnused(file.clone()));
    }

    /// Releases kept files whose clients have expired, or whose removal has failed.
    pub(crate) fn release_unheld(&mut self, now: Now, fx: &mut Effects) {
        self.removals.next().iter().for_each(|file| self.release(file, now, fx));
    }

    /// Returns true if a client whose lease has not expired has an open or a delegation of a file.
    fn is_held(&self, file: &FileKey, now: Now) -> bool {
        let Some(number) = self.files.find(file) else { return false };
        let mut opens = self.open_index.range((number, 0)..=(number, u32::MAX)).map(|(_, open)| *open);
        let is_open = opens.any(|open| {
            let open = &self.opens[open as usize];
            !open.is_revoked && !self.is_courtesy(open.client, now)
        });
        is_open
            || self.delegations_of(number).any(|(holder, at)| {
                !self.delegations[at as usize].is_revoked && !self.is_courtesy(holder, now)
            })
    }
}
