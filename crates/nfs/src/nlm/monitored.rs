//! The hosts with locks, in a file of the state directory: a server that starts tells them that it has started.
//!
//! The file has a line `state N` and a line `host NAME ADDRESS` for each host, with the name in hexadecimal digits.
//! The line is `logged NAME ADDRESS` if the locks of the host are in the log of the cache. Such a host is told only if
//! a server starts without that log. The state number is odd while the server is up, and grows with each start.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;

use forebay_common::lock::Mutex;
use forebay_common::state_file;

/// Hosts. At the bound hosts without locks are forgotten, and then a further host gets no lock.
const MAX_HOSTS: usize = 20_000;
/// Hosts at one address: a client may call itself by any number of names.
const MAX_HOSTS_AT_ADDRESS: usize = 64;

/// The result of adding a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// The host is in the list, durably if it is monitored.
    Known,
    /// There are too many hosts.
    Full,
}

/// The list.
pub(super) struct Monitored {
    path: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    state: i32,
    /// The hosts of this start: by address and name, true if the host is monitored.
    hosts: BTreeMap<(IpAddr, Vec<u8>), bool>,
    /// The hosts of earlier starts that have not been told yet.
    before: BTreeSet<(IpAddr, Vec<u8>)>,
    /// The hosts of the last start whose locks were in a log, until this start knows whether it has that log.
    logged: BTreeSet<(IpAddr, Vec<u8>)>,
    /// True if the locks of this start are in a log.
    logs: bool,
}

impl Monitored {
    /// Reads the file and advances the state number durably.
    pub(super) fn open(path: PathBuf) -> io::Result<Self> {
        let text = state_file::read(&path)?.unwrap_or_default();
        let mut inner = Inner::parse(&text);
        inner.state = next_state(inner.state);
        state_file::replace(&path, inner.text())?;
        Ok(Monitored { path, inner: Mutex::new(inner) })
    }

    /// Returns the state number of this start.
    pub(super) fn state(&self) -> i32 {
        self.inner.lock().state
    }

    /// Adds a host. A monitored one is in the file when this returns. After an error nothing has changed.
    pub(super) fn add(&self, address: IpAddr, name: &[u8], is_monitored: bool) -> io::Result<Added> {
        let mut inner = self.inner.lock();
        let key = (address, name.to_vec());
        let known = inner.hosts.get(&key).copied();
        if known.is_some_and(|known| known || !is_monitored) {
            return Ok(Added::Known);
        }
        if known.is_none()
            && (inner.hosts.len() >= MAX_HOSTS || inner.names(address).count() >= MAX_HOSTS_AT_ADDRESS)
        {
            return Ok(Added::Full);
        }
        inner.hosts.insert(key.clone(), is_monitored);
        if is_monitored && let Err(error) = state_file::replace(&self.path, inner.text()) {
            match known {
                Some(before) => _ = inner.hosts.insert(key, before),
                None => _ = inner.hosts.remove(&key),
            }
            return Err(error);
        }
        Ok(Added::Known)
    }

    /// Begins a start that has the log with the locks of the last one. The hosts for which `has_locks` is true are
    /// those of this start.
    pub(super) fn begin_with_log(&self, has_locks: impl Fn(IpAddr, &[u8]) -> bool) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let logged = std::mem::take(&mut inner.logged);
        inner
            .hosts
            .extend(logged.into_iter().filter(|(at, name)| has_locks(*at, name)).map(|key| (key, true)));
        inner.logs = true;
        state_file::replace(&self.path, inner.text())
    }

    /// Begins a start without the locks of the last one: all its hosts are told. `logs` says if the locks of this start
    /// are in a log.
    pub(super) fn begin_without_log(&self, logs: bool) -> io::Result<()> {
        let mut inner = self.inner.lock();
        let logged = std::mem::take(&mut inner.logged);
        inner.before.extend(logged);
        inner.logs = logs;
        state_file::replace(&self.path, inner.text())
    }

    /// Forgets the hosts for which `is_kept` is false.
    pub(super) fn retain(&self, is_kept: impl Fn(IpAddr, &[u8]) -> bool) {
        self.inner.lock().hosts.retain(|(address, name), _| is_kept(*address, name));
    }

    /// Returns the names of the hosts at an address.
    pub(super) fn at(&self, address: IpAddr) -> Vec<Vec<u8>> {
        self.inner.lock().names(address).cloned().collect()
    }

    /// Returns the addresses of the hosts that have to be told.
    pub(super) fn to_notify(&self) -> BTreeSet<IpAddr> {
        self.inner.lock().before.iter().map(|(address, _)| *address).collect()
    }

    /// Forgets the hosts of earlier starts at an address.
    pub(super) fn notified(&self, told: IpAddr) -> io::Result<()> {
        let mut inner = self.inner.lock();
        inner.before.retain(|(address, _)| *address != told);
        state_file::replace(&self.path, inner.text())
    }
}

impl Inner {
    /// Iterates over the names of the hosts of this start at an address.
    fn names(&self, address: IpAddr) -> impl Iterator<Item = &Vec<u8>> {
        let from = (address, Vec::new());
        self.hosts.range(from..).map(|(key, _)| key).take_while(move |key| key.0 == address).map(|key| &key.1)
    }

    /// Reads the text of the file. Lines that cannot be read are ignored: the host is not told.
    fn parse(text: &str) -> Self {
        let mut inner = Inner::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["state", number] => inner.state = number.parse().unwrap_or_default(),
                [word @ ("host" | "logged"), name, address] => {
                    let hosts = if word == "host" { &mut inner.before } else { &mut inner.logged };
                    if let (Some(name), Ok(address)) = (from_hex(name), address.parse()) {
                        hosts.insert((address, name));
                    }
                }
                _ => {}
            }
        }
        inner
    }

    /// Returns the text of the file: the state number, the monitored hosts, and hosts of earlier starts that have not
    /// been notified.
    fn text(&self) -> String {
        let now = self.hosts.iter().filter(|(_, is_monitored)| **is_monitored).map(|(key, _)| key);
        let (mut told, mut logged): (BTreeSet<_>, BTreeSet<_>) =
            (self.before.iter().collect(), self.logged.iter().collect());
        if self.logs { &mut logged } else { &mut told }.extend(now);
        let mut text = format!("state {}\n", self.state);
        let lines = told.into_iter().map(|key| ("host", key));
        for (word, (address, name)) in lines.chain(logged.into_iter().map(|key| ("logged", key))) {
            let _ = write!(text, "{word} ");
            name.iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
            let _ = writeln!(text, " {address}");
        }
        text
    }
}

/// Returns the next odd number. After the largest one the numbers begin again.
fn next_state(state: i32) -> i32 {
    let next = state.max(0).checked_add(1).map(|next| next | 1);
    next.unwrap_or(1)
}

/// Returns the bytes that pairs of hexadecimal digits stand for, or `None` if the text has anything else.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    if digits.len().is_multiple_of(2) { digits.chunks(2).map(byte).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn hosts_are_told_once_after_each_start() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("nlm-hosts");
        let one = Monitored::open(path.clone()).unwrap();
        assert_eq!((one.state(), one.to_notify().len()), (1, 0));
        let (four, six) = (address("192.0.2.7"), address("2001:db8::7"));
        for _ in 0..2 {
            assert_eq!(one.add(four, b"a name\n", true).unwrap(), Added::Known);
            assert_eq!(one.add(six, b"", true).unwrap(), Added::Known);
        }
        one.add(address("192.0.2.8"), b"unmonitored", false).unwrap();
        assert_eq!(one.at(four), [b"a name\n"]);
        let two = Monitored::open(path.clone()).unwrap();
        assert_eq!(two.state(), 3);
        assert_eq!(two.to_notify(), [four, six].into());
        // A host that was not told is told after the next start.
        two.notified(six).unwrap();
        let three = Monitored::open(path.clone()).unwrap();
        assert_eq!((three.state(), three.to_notify()), (5, [four].into()));
        three.add(four, b"a name\n", true).unwrap();
        three.notified(four).unwrap();
        let four_again = Monitored::open(path).unwrap();
        assert_eq!(four_again.to_notify(), [four].into(), "the host has locks again");
    }

    #[test]
    fn hosts_whose_locks_are_in_a_log_are_told_of_a_start_without_it_only() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("nlm-hosts");
        let (four, other) = (address("192.0.2.7"), address("192.0.2.8"));
        let open = || Monitored::open(path.clone()).unwrap();
        let first = open();
        first.begin_without_log(true).unwrap();
        first.add(four, b"a", true).unwrap();
        first.add(other, b"b", true).unwrap();
        // A start that ends before it knows its log forgets nobody.
        assert!(open().to_notify().is_empty());
        let with_log = open();
        with_log.begin_with_log(|at, _| at == four).unwrap();
        assert!(
            with_log.to_notify().is_empty() && with_log.at(four) == [b"a"] && with_log.at(other).is_empty()
        );
        let without = open();
        without.begin_without_log(true).unwrap();
        assert_eq!(without.to_notify(), [four].into());
        // The host has new locks in the log of this start, and is to be told of the old ones.
        without.add(four, b"a", true).unwrap();
        let again = open();
        again.begin_with_log(|_, _| true).unwrap();
        assert_eq!((again.to_notify(), again.at(four)), ([four].into(), vec![b"a".to_vec()]));
    }

    #[test]
    fn the_number_of_hosts_is_bounded() {
        let home = tempfile::tempdir().unwrap();
        let list = Monitored::open(home.path().join("nlm-hosts")).unwrap();
        let at = address("192.0.2.7");
        for number in 0..MAX_HOSTS_AT_ADDRESS as u8 {
            assert_eq!(list.add(at, &[number], false).unwrap(), Added::Known);
        }
        assert_eq!(list.add(at, b"one more", false).unwrap(), Added::Full);
        assert_eq!(list.add(address("192.0.2.8"), b"one more", true).unwrap(), Added::Known);
        list.retain(|_, name| name != [3]);
        assert_eq!(list.add(at, b"one more", false).unwrap(), Added::Known);
    }

    #[test]
    fn a_list_that_cannot_be_written_refuses_the_host() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("dir");
        std::fs::create_dir(&dir).unwrap();
        let list = Monitored::open(dir.join("nlm-hosts")).unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        assert!(list.add(address("192.0.2.7"), b"a", true).is_err());
        assert!(list.add(address("192.0.2.7"), b"a", true).is_err(), "and does not know it afterwards");
        // A host that is not monitored has locks, which its notice ends.
        list.add(address("192.0.2.8"), b"b", false).unwrap();
        assert!(list.add(address("192.0.2.8"), b"b", true).is_err());
        assert_eq!(list.at(address("192.0.2.8")), [b"b"]);
    }

    #[test]
    fn the_state_number_is_odd_and_grows() {
        for (now, next) in [(0, 1), (1, 3), (2, 3), (3, 5), (-7, 1), (i32::MAX, 1), (i32::MAX - 2, i32::MAX)]
        {
            assert_eq!(next_state(now), next, "{now}");
        }
    }
}
