//! Changes of an object's size that wait until no other task works on its backing file.

/// The waiting changes of size of one object.
#[derive(Debug, Default)]
pub(crate) struct WaitingCuts {
    /// Number of changes of size that have begun to wait.
    begun: u64,
    /// The numbers of the changes that still wait, in order.
    waiting: Vec<u64>,
}

impl WaitingCuts {
    /// Records that a change of size begins to wait. Returns its number.
    pub(crate) fn begin(&mut self) -> u64 {
        self.begun += 1;
        self.waiting.push(self.begun);
        self.begun
    }

    /// Records that a change of size does not wait any more.
    pub(crate) fn end(&mut self, number: u64) {
        self.waiting.retain(|waiting| *waiting != number);
    }

    /// Returns the number of the last change of size that has begun to wait.
    pub(crate) fn last(&self) -> u64 {
        self.begun
    }

    /// Returns true if a change of size waits whose number is at most `last`.
    pub(crate) fn waits_until(&self, last: u64) -> bool {
        self.waiting.first().is_some_and(|first| *first <= last)
    }

    /// Returns true if any change of size waits.
    pub(crate) fn waits(&self) -> bool {
        !self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_change_of_size_holds_nothing_up_that_came_before_it() {
        let mut cuts = WaitingCuts::default();
        assert!(!cuts.waits() && !cuts.waits_until(cuts.last()));
        let (first, second) = (cuts.begin(), cuts.begin());
        let last = cuts.last();
        let third = cuts.begin();
        cuts.end(first);
        assert!(cuts.waits_until(last));
        cuts.end(second);
        assert!(cuts.waits() && !cuts.waits_until(last) && cuts.waits_until(cuts.last()));
        cuts.end(third);
        assert!(!cuts.waits());
    }
}
