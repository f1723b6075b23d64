//! Questions to this host's user database, which may ask another host. Answers are remembered, and no client takes all
//! questions or all remembered answers.

use std::collections::HashMap;
use std::fmt::Debug;
use std::hash::Hash;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;
use forebay_vfs::Wait;

/// The time for which an answer of the database is valid.
const COUNTS: Duration = Duration::from_secs(300);
/// The number of answers remembered.
const MOST: usize = 4096;
/// The time in which at most one message about a failing database is logged.
const WARN_EVERY: Duration = Duration::from_secs(10);
/// Lookups in flight at once. A database that does not answer keeps at most as many workers. An address gets a further
/// one while it has fewer than there is room for.
const AT_ONCE: usize = 8;
/// A lookup that takes longer shows that the database is in trouble.
const LONG: Duration = Duration::from_secs(1);
/// The time for which a failed lookup, or a long one, counts as trouble.
const TROUBLED: Duration = Duration::from_secs(10);

/// The reason why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// The database has to be asked, and the caller may not wait.
    Later,
    /// Another request asks this question, or too many questions wait for answers.
    Busy,
    /// The database has failed.
    Failed,
}

/// An answer that was looked up.
struct Known<V> {
    answer: V,
    until: Instant,
    /// The address that asked.
    by: IpAddr,
}

/// Questions of one kind with their answers.
pub(crate) struct Lookups<K, V> {
    lookup: fn(&K) -> io::Result<V>,
    /// The thing that is asked for, in a message.
    what: &'static str,
    state: Mutex<State<K, V>>,
}

struct State<K, V> {
    known: HashMap<K, Known<V>>,
    /// The questions in flight: the addresses that asked, and the times.
    asking: HashMap<K, (IpAddr, Instant)>,
    /// The time of the last message that the database fails.
    warned: Option<Instant>,
    /// The end of the last lookup that failed or was long.
    troubled: Option<Instant>,
}

impl<K: Hash + Eq + Clone + Debug, V: Clone> Lookups<K, V> {
    /// `lookup` asks the database. `what` names the answer in a message.
    pub(crate) fn new(lookup: fn(&K) -> io::Result<V>, what: &'static str) -> Self {
        let (known, asking) = (HashMap::new(), HashMap::new());
        Lookups { lookup, what, state: Mutex::new(State { known, asking, warned: None, troubled: None }) }
    }

    /// Returns an answer and the time until which it is valid, for a client at an address. Without permission to wait,
    /// returns [`Unanswered::Later`] unless the answer is remembered.
    pub(crate) fn of(&self, key: &K, by: IpAddr, wait: Wait) -> Result<(V, Instant), Unanswered> {
        let mut state = self.state.lock();
        let begun = Instant::now();
        if let Some(found) = state.known.get(key).filter(|known| begun < known.until) {
            return Ok((found.answer.clone(), found.until));
        }
        if wait == Wait::No {
            return Err(Unanswered::Later);
        }
        let own = state.asking.values().filter(|(address, _)| *address == by).count();
        if own >= AT_ONCE.saturating_sub(state.asking.len()) || state.asking.contains_key(key) {
            return Err(Unanswered::Busy);
        }
        state.asking.insert(key.clone(), (by, begun));
        drop(state);
        let answer = (self.lookup)(key);
        let mut state = self.state.lock();
        state.asking.remove(key);
        let now = Instant::now();
        if answer.is_err() || now.duration_since(begun) > LONG {
            state.troubled = Some(now);
        }
        let answer = answer.map_err(|error| {
            // Clients decide how many answers are looked up, so the number of messages is limited.
            if state.warned.is_none_or(|at| now.duration_since(at) >= WARN_EVERY) {
                state.warned = Some(now);
                tracing::warn!(?key, %error, "the user database does not tell {}", self.what);
            }
            Unanswered::Failed
        })?;
        if state.known.len() >= MOST {
            state.make_room();
        }
        let until = now + COUNTS;
        state.known.insert(key.clone(), Known { answer: answer.clone(), until, by });
        Ok((answer, until))
    }

    /// Returns true if the database has failed or was slow lately, or owes an answer for longer than a second.
    pub(crate) fn is_troubled(&self) -> bool {
        let state = self.state.lock();
        state.troubled.is_some_and(|at| at.elapsed() < TROUBLED)
            || state.asking.values().any(|(_, since)| since.elapsed() > LONG)
    }

    /// Adds questions in flight.
    #[cfg(test)]
    pub(crate) fn ask(&self, keys: impl IntoIterator<Item = K>, by: IpAddr, since: Instant) {
        self.state.lock().asking.extend(keys.into_iter().map(|key| (key, (by, since))));
    }
}

impl<K: Hash + Eq + Clone, V> State<K, V> {
    /// Forgets the oldest answer of the address that asked for most answers.
    fn make_room(&mut self) {
        let mut answers: HashMap<IpAddr, usize> = HashMap::new();
        self.known.values().for_each(|known| *answers.entry(known.by).or_default() += 1);
        let busiest = answers.into_iter().max_by_key(|(_, answers)| *answers).map(|(address, _)| address);
        let of_busiest = self.known.iter().filter(|(_, known)| Some(known.by) == busiest);
        let oldest = of_busiest.min_by_key(|(_, known)| known.until).map(|(key, _)| key.clone());
        oldest.iter().for_each(|key| drop(self.known.remove(key)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [127, 0, 0, last].into()
    }

    #[test]
    fn the_database_is_asked_once_and_never_on_an_event_loop() {
        let doubled = Lookups::new(|key: &u32| Ok(2 * key), "a number");
        assert_eq!(doubled.of(&7, address(1), Wait::No), Err(Unanswered::Later));
        let found = doubled.of(&7, address(1), Wait::Yes).unwrap();
        assert_eq!(found.0, 14);
        assert_eq!(doubled.of(&7, address(2), Wait::No), Ok(found));
        for key in 1000..1000 + 2 * MOST as u32 {
            doubled.of(&key, address(2), Wait::Yes).unwrap();
        }
        assert_eq!(doubled.state.lock().known.len(), MOST);
        let again = doubled.of(&7, address(1), Wait::No);
        assert_eq!(again, Ok(found), "another client's questions take no room of it");
    }

    #[test]
    fn a_database_that_fails_is_in_trouble() {
        let failing = Lookups::new(|_: &u32| Err::<u32, _>(io::ErrorKind::TimedOut.into()), "a number");
        assert!(!failing.is_troubled());
        assert_eq!(failing.of(&7, address(1), Wait::Yes), Err(Unanswered::Failed));
        assert!(failing.is_troubled());
    }

    #[test]
    fn lookups_that_take_long_hold_up_their_own_client() {
        let some = Lookups::new(|key: &u32| Ok(*key), "a number");
        let slow = |count: u32| some.ask(0..count, address(1), Instant::now());
        slow(AT_ONCE as u32 / 2 - 1);
        some.of(&7, address(1), Wait::Yes).unwrap();
        slow(AT_ONCE as u32 / 2);
        assert_eq!(some.of(&8, address(1), Wait::Yes), Err(Unanswered::Busy));
        some.of(&8, address(2), Wait::Yes).unwrap();
        slow(AT_ONCE as u32);
        assert_eq!(some.of(&9, address(2), Wait::Yes), Err(Unanswered::Busy), "no room");
        assert!(!some.is_troubled());
        some.ask([0], address(1), Instant::now() - 2 * LONG);
        assert!(some.is_troubled());
    }
}
