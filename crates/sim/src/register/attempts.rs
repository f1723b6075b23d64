//! Operations that failed, folded into sets of values.

use super::{Change, Register, Value};

/// Returns each of the values once.
fn distinct<V: PartialEq>(values: Vec<V>) -> Vec<V> {
    let mut once = Vec::new();
    for value in values {
        if !once.contains(&value) {
            once.push(value);
        }
    }
    once
}

impl<V: Value, C: Change<V>> Register<V, C> {
    /// Lets every known value be with the change or without it.
    pub fn attempt(&mut self, change: &C) {
        let mut values: Vec<V> = Vec::new();
        for mut value in std::mem::take(&mut self.base) {
            if !change.attempt(&mut value) {
                values.push(value.clone());
                change.apply(&mut value);
            }
            values.push(value);
        }
        self.base = distinct(values);
    }

    /// Returns the values after all operations, of which the durable ones have happened and the others may have. None
    /// is running. Returns `None` if sets of values cannot say this.
    pub(super) fn attempted(&self) -> Option<Vec<V>> {
        let order = self.order()?;
        let mut values = self.base.clone();
        for value in &mut values {
            for (at, certain) in &order {
                let change = &self.operations[*at].change;
                if *certain {
                    change.apply(value);
                } else if !change.attempt(value) {
                    return None;
                }
            }
        }
        Some(distinct(values))
    }

    /// Returns the operations in an order whose parts are all the possible orders: a part has every certain step, and
    /// any others. An operation at several places counts at the last one, since it overwrites its own effect.
    ///
    /// An operation may take effect at any time from its begin to its end. Between two begins, every order of the
    /// operations in progress is possible.
    fn order(&self) -> Option<Vec<(usize, bool)>> {
        let mut order = Vec::new();
        let precedes = |first: usize, next: usize| {
            self.operations[next].after & 1 << first != 0 || self.operations[first].before & 1 << next != 0
        };
        for (at, operation) in self.operations.iter().enumerate() {
            let later = at + 1..self.operations.len();
            // Some later operation needs this one, which may have failed: its attempts are not independent.
            if !operation.durable && later.clone().any(|next| self.operations[next].after & 1 << at != 0) {
                return None;
            }
            if later
                .clone()
                .any(|next| (next..later.end).any(|then| precedes(at, next) && !precedes(at, then)))
            {
                return None;
            }
            order.push((at, operation.durable));
            let running: Vec<usize> = (0..=at).filter(|first| !precedes(*first, at)).collect();
            if running.len() > 1 {
                let again = running.iter().map(|one| (*one, false));
                order.extend(running.iter().flat_map(|_| again.clone()));
            }
        }
        Some(order)
    }

    /// Returns the values after all operations as sets, if they can say it, and as a list.
    #[cfg(test)]
    pub(crate) fn both_folds(&self) -> (Option<Vec<V>>, Vec<V>) {
        (self.attempted(), self.possible(self.mask(|operation| operation.durable)))
    }
}
