//! The groups of a user from this host's user database, in place of the sixteen that AUTH_SYS can carry (`manage_gids`,
//! as of rpc.mountd).

use std::collections::HashMap;
use std::ffi::CStr;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;
use forebay_common::user_database::user_numbered;
use forebay_vfs::Wait;
use forebay_wire::nfs3::Nfsstat3;

use crate::result::Stop;

/// The time for which an answer of the database is valid.
const COUNTS: Duration = Duration::from_secs(300);
/// The number of users remembered.
const MOST: usize = 4096;
/// The time in which at most one message about a failing database is logged.
const WARN_EVERY: Duration = Duration::from_secs(10);
/// Lookups in flight at once. A database that does not answer keeps at most as many workers. An address gets a further
/// one while it has fewer than there is room for.
const AT_ONCE: usize = 8;

/// A function that asks the database for a user's groups. An unknown user has none.
type Lookup = fn(u32) -> io::Result<Vec<u32>>;

/// The groups of a user, and the time until which they are valid.
pub(crate) type UserGroups = (Arc<[u32]>, Instant);

/// A user that was looked up.
struct Known {
    groups: UserGroups,
    /// The address that asked.
    by: IpAddr,
}

/// The users that were looked up lately.
pub(crate) struct Groups {
    lookup: Lookup,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: HashMap<u32, Known>,
    /// The users whose lookups are in flight, with the addresses that asked for them.
    asking: HashMap<u32, IpAddr>,
    /// The time of the last message that the database fails.
    warned: Option<Instant>,
}

impl Default for Groups {
    fn default() -> Self {
        Self { lookup, state: Mutex::default() }
    }
}

impl Groups {
    /// Returns the groups of a user, for a client at an address. Without permission to wait, returns [`Stop::Later`]
    /// unless they are cached. Returns NFS3ERR_JUKEBOX while the database fails or is slow: the client tries again.
    pub(crate) fn of(&self, user: u32, by: IpAddr, wait: Wait) -> Result<UserGroups, Stop> {
        let mut state = self.state.lock();
        if let Some(found) = state.known.get(&user).filter(|known| Instant::now() < known.groups.1) {
            return Ok(found.groups.clone());
        }
        if wait == Wait::No {
            return Err(Stop::Later);
        }
        let own = state.asking.values().filter(|address| **address == by).count();
        if own >= AT_ONCE - state.asking.len() || state.asking.contains_key(&user) {
            return Err(Stop::Fail(Nfsstat3::Jukebox));
        }
        state.asking.insert(user, by);
        drop(state);
        let answer = (self.lookup)(user);
        let mut state = self.state.lock();
        state.asking.remove(&user);
        let now = Instant::now();
        let groups = answer.map_err(|error| {
            // Clients decide how many users are looked up, so the number of messages is limited.
            if state.warned.is_none_or(|at| now.duration_since(at) >= WARN_EVERY) {
                state.warned = Some(now);
                tracing::warn!(user, %error, "the user database does not tell the groups of a user");
            }
            Stop::Fail(Nfsstat3::Jukebox)
        })?;
        if state.known.len() >= MOST {
            state.make_room();
        }
        let groups: UserGroups = (Arc::from(groups), now + COUNTS);
        state.known.insert(user, Known { groups: groups.clone(), by });
        Ok(groups)
    }
}

impl State {
    /// Forgets the oldest user of the address that asked for most users.
    fn make_room(&mut self) {
        let mut users: HashMap<IpAddr, usize> = HashMap::new();
        self.known.values().for_each(|known| *users.entry(known.by).or_default() += 1);
        let busiest = users.into_iter().max_by_key(|(_, users)| *users).map(|(address, _)| address);
        let of_busiest = self.known.iter().filter(|(_, known)| Some(known.by) == busiest);
        let oldest = of_busiest.min_by_key(|(_, known)| known.groups.1).map(|(user, _)| *user);
        oldest.iter().for_each(|user| drop(self.known.remove(user)));
    }
}

/// The number of groups requested at first.
const SOME: usize = 64;

/// Asks the database for a user and its groups; may take long. An unknown user has none.
fn lookup(user: u32) -> io::Result<Vec<u32>> {
    let user = user_numbered(user)?;
    Ok(user.map(|user| groups_of(&user.name, user.group)).unwrap_or_default())
}

/// Returns the groups of a user from the host's user database, `group` among them. Waits for the database, which may
/// ask a server.
fn groups_of(name: &CStr, group: u32) -> Vec<u32> {
    let mut groups = vec![0u32; SOME];
    loop {
        let mut count = groups.len() as libc::c_int;
        // SAFETY: the name is a C string; groups is valid for writes of `count` numbers.
        let fits = unsafe { libc::getgrouplist(name.as_ptr(), group, groups.as_mut_ptr(), &mut count) } >= 0;
        let count = count.max(0) as usize;
        if fits || count <= groups.len() {
            groups.truncate(count);
            return groups;
        }
        groups.resize(count, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn address(last: u8) -> IpAddr {
        [127, 0, 0, last].into()
    }

    #[test]
    fn the_database_is_asked_once_and_never_on_an_event_loop() {
        let groups = Groups { lookup: |user| Ok((user..user + 40).collect()), state: Mutex::default() };
        assert_eq!(groups.of(7, address(1), Wait::No).unwrap_err(), Stop::Later);
        let (found, _) = groups.of(7, address(1), Wait::Yes).unwrap();
        assert_eq!(found.len(), 40, "more than AUTH_SYS carries");
        assert_eq!(groups.of(7, address(2), Wait::No).unwrap().0, found);
        for user in 1000..1000 + 2 * MOST as u32 {
            groups.of(user, address(2), Wait::Yes).unwrap();
        }
        assert_eq!(groups.state.lock().known.len(), MOST);
        assert_eq!(
            groups.of(7, address(1), Wait::No).unwrap().0,
            found,
            "another client's users take no room of it"
        );
    }

    #[test]
    fn a_database_that_fails_grants_nothing() {
        let groups = Groups { lookup: |_| Err(io::ErrorKind::TimedOut.into()), state: Mutex::default() };
        assert_eq!(groups.of(7, address(1), Wait::Yes).unwrap_err(), Stop::Fail(Nfsstat3::Jukebox));
    }

    #[test]
    fn lookups_that_take_long_hold_up_their_own_client() {
        let groups = Groups { lookup: |_| Ok(Vec::new()), state: Mutex::default() };
        let slow = |count: u32| groups.state.lock().asking.extend((0..count).map(|user| (user, address(1))));
        slow(AT_ONCE as u32 / 2 - 1);
        groups.of(7, address(1), Wait::Yes).unwrap();
        slow(AT_ONCE as u32 / 2);
        assert_eq!(groups.of(8, address(1), Wait::Yes).unwrap_err(), Stop::Fail(Nfsstat3::Jukebox));
        groups.of(8, address(2), Wait::Yes).unwrap();
        slow(AT_ONCE as u32);
        assert_eq!(
            groups.of(9, address(2), Wait::Yes).unwrap_err(),
            Stop::Fail(Nfsstat3::Jukebox),
            "no room"
        );
    }

    #[test]
    fn groups_are_those_of_this_host() {
        for user in [0, 1, 65534] {
            let output = Command::new("id").args(["-G", &user.to_string()]).output().unwrap();
            if !output.status.success() {
                continue;
            }
            let text = String::from_utf8(output.stdout).unwrap();
            let mut told: Vec<u32> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
            let mut found = lookup(user).unwrap();
            told.sort_unstable();
            found.sort_unstable();
            assert_eq!(found, told, "user {user}");
        }
        assert_eq!(lookup(4_000_000_000).unwrap(), [0u32; 0], "nobody has this number");
    }
}
