//! A list of values that are kept for reuse, which knows how many of them nobody needed.

/// The values of one kind that are kept for reuse.
pub(crate) struct Free<T> {
    items: Vec<T>,
    /// The smallest number of free values since the last trim; as many values were not needed.
    unneeded: usize,
}

impl<T> Default for Free<T> {
    fn default() -> Self {
        Self { items: Vec::new(), unneeded: 0 }
    }
}

impl<T> Free<T> {
    /// Takes a kept value, and notes how many were left: as many are not needed.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let item = self.items.pop();
        self.unneeded = self.unneeded.min(self.items.len());
        item
    }

    pub(crate) fn push(&mut self, item: T) {
        self.items.push(item);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Takes the values that were not needed since the last call.
    pub(crate) fn trim(&mut self) -> Vec<T> {
        let unneeded = self.items.drain(..self.unneeded).collect();
        self.unneeded = self.items.len();
        unneeded
    }
}
