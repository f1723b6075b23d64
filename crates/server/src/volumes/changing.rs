//! The volumes that an administrator's command changes now. Each volume has one change at a time. A change may wait for
//! a silent device, and holds up no change of another volume.

use std::collections::BTreeSet;
use std::time::Duration;

use forebay_common::lock::{Condvar, Mutex};

use super::patience::PATIENCE;

/// The names of the volumes that are being changed.
#[derive(Default)]
pub(super) struct Changing {
    names: Mutex<BTreeSet<String>>,
    ended: Condvar,
}

/// A change in progress. It ends when the value is dropped.
pub(super) struct Change<'a> {
    changing: &'a Changing,
    name: String,
}

impl Changing {
    /// Begins a change of the volume `name`. Waits up to [`PATIENCE`] for the end of another change of it.
    ///
    /// # Errors
    /// A sentence: the other change has not ended.
    pub(super) fn begin(&self, name: &str) -> Result<Change<'_>, String> {
        self.begin_within(name, PATIENCE).ok_or_else(|| {
            format!(
                "volume {name} is being changed by another command, which has not ended within {} seconds; end that command, \
                 or see whether the backing device answers",
                PATIENCE.as_secs()
            )
        })
    }

    /// Begins a change of a volume if no other change of it is in progress.
    pub(super) fn try_begin(&self, name: &str) -> Option<Change<'_>> {
        self.begin_within(name, Duration::ZERO)
    }

    fn begin_within(&self, name: &str, patience: Duration) -> Option<Change<'_>> {
        let is_taken = |names: &mut BTreeSet<String>| names.contains(name);
        let mut names = self.ended.wait_while_for(self.names.lock(), patience, is_taken);
        names.insert(name.to_owned()).then(|| Change { changing: self, name: name.to_owned() })
    }

    /// Waits until no change is in progress, but not longer than `patience`.
    pub(super) fn wait_for_end(&self, patience: Duration) {
        drop(self.ended.wait_while_for(self.names.lock(), patience, |names| !names.is_empty()));
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.changing.names.lock().remove(&self.name);
        self.changing.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_one_change_at_a_time_and_others_do_not_wait_for_it() {
        let changing = Changing::default();
        let first = changing.try_begin("one").unwrap();
        assert!(changing.try_begin("one").is_none());
        assert!(changing.try_begin("other").is_some());
        std::thread::scope(|scope| {
            let second = scope.spawn(|| changing.begin("one").map(drop));
            drop(first);
            second.join().unwrap().unwrap();
        });
        changing.wait_for_end(PATIENCE);
        assert!(changing.names.lock().is_empty());
    }
}
