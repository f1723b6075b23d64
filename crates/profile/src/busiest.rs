//! Counters of many keys in bounded memory: the busiest keys keep their own, the rest is summed.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;

use crate::counters::Counters;

/// The counters of keys. At most twice `keep` keys have counters of their own. When one more comes, the half that did
/// least lately is added to `others`. So the sum over all keys and the others is exact. A key that was added to the
/// others begins at 0 when it comes again.
pub(crate) struct Busiest<K, V> {
    known: HashMap<K, Box<Known<V>>, foldhash::fast::RandomState>,
    keep: usize,
    others: Counters,
}

/// A key with counters of its own.
#[derive(Default)]
pub(crate) struct Known<V> {
    counters: Counters,
    /// Operations, halved each time that keys are added to the others.
    recent: u64,
    pub(crate) about: V,
}

impl<K: Copy + Eq + Hash, V: Clone + Default> Busiest<K, V> {
    pub(crate) fn new(keep: usize) -> Self {
        Busiest { known: HashMap::default(), keep, others: Counters::default() }
    }

    /// Lets `add` count for a key. Returns the key's entry.
    pub(crate) fn count(&mut self, key: K, add: impl FnOnce(&mut Counters)) -> &mut Known<V> {
        if self.known.len() >= 2 * self.keep && !self.known.contains_key(&key) {
            self.prune();
        }
        let known = self.known.entry(key).or_default();
        let before = known.counters.total();
        add(&mut known.counters);
        known.recent += known.counters.total() - before;
        known
    }

    /// Adds the keys that did least lately to the others, all but the `keep` busiest.
    fn prune(&mut self) {
        let mut recent: Vec<(u64, K)> = self.known.iter().map(|(key, known)| (known.recent, *key)).collect();
        let kept = self.keep.min(recent.len());
        recent.sort_unstable_by_key(|(recent, _)| Reverse(*recent));
        for (_, key) in recent.split_off(kept) {
            if let Some(dropped) = self.known.remove(&key) {
                self.others.add(&dropped.counters);
            }
        }
        self.known.values_mut().for_each(|known| known.recent /= 2);
    }

    /// Returns the `top` keys with the most operations, most first, and the sum of all other keys.
    pub(crate) fn most(&self, top: usize) -> (Vec<(K, Counters, V)>, Counters) {
        let mut known: Vec<_> = self.known.iter().collect();
        known.sort_unstable_by_key(|(_, known)| Reverse(known.counters.total()));
        let rest = known.split_off(top.min(known.len()));
        let mut others = self.others.clone();
        rest.iter().for_each(|(_, known)| others.add(&known.counters));
        let shown = known.into_iter().map(|(key, known)| (*key, known.counters.clone(), known.about.clone()));
        (shown.collect(), others)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::Kind;

    #[test]
    fn the_busiest_are_exact_and_the_sum_is_too() {
        let mut busiest = Busiest::<u64, ()>::new(8);
        let one = |counters: &mut Counters| counters.count(Kind::Read, false, None, 1);
        for round in 0..1000_u64 {
            // Three keys come every time, and a thousand others once.
            for key in [1, 2, 3] {
                busiest.count(key, one);
            }
            busiest.count(1, one);
            busiest.count(100 + round, one);
            assert!(busiest.len() <= 16);
        }
        let (most, others) = busiest.most(3);
        let shown: Vec<_> = most.iter().map(|(key, counters, ())| (*key, counters.total())).collect();
        assert_eq!(shown[0], (1, 2000));
        assert!(shown.contains(&(2, 1000)) && shown.contains(&(3, 1000)), "{shown:?}");
        assert_eq!(others.total(), 1000);
        assert!(busiest.most(0).0.is_empty());
        assert_eq!(busiest.most(0).1.total(), 5000);
    }

    #[test]
    fn a_key_that_was_busy_long_ago_makes_room() {
        let mut busiest = Busiest::<u64, ()>::new(4);
        busiest.count(0, |counters| counters.count(Kind::Read, false, None, 100));
        for key in 1..200 {
            busiest.count(key, |counters| counters.count(Kind::Write, false, None, 10));
        }
        let (most, others) = busiest.most(100);
        assert!(most.iter().all(|(key, ..)| *key != 0), "{most:?}");
        assert_eq!(others.of(Kind::Read), 100);
    }
}
