//! The groups of a user from this host's user database, in place of the sixteen that AUTH_SYS can carry (`manage_gids`,
//! as of rpc.mountd).

use std::ffi::CStr;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use forebay_common::user_database::user_numbered;
use forebay_vfs::Wait;
use forebay_wire::nfs3::Nfsstat3;

use crate::lookups::{Lookups, Unanswered};
use crate::result::Stop;

/// The groups of a user, and the time until which they are valid.
pub(crate) type UserGroups = (Arc<[u32]>, Instant);

/// The groups of users that were looked up lately.
pub(crate) struct Groups(Lookups<u32, Arc<[u32]>>);

impl Default for Groups {
    fn default() -> Self {
        Self(Lookups::new(|user| lookup(*user).map(Arc::from), "the groups of a user"))
    }
}

impl Groups {
    /// Returns the groups of a user, for a client at an address. Without permission to wait, returns [`Stop::Later`]
    /// unless they are cached. Returns NFS3ERR_JUKEBOX while the database fails or is slow: the client tries again.
    pub(crate) fn of(&self, user: u32, by: IpAddr, wait: Wait) -> Result<UserGroups, Stop> {
        self.0.of(&user, by, wait).map_err(|why| match why {
            Unanswered::Later => Stop::Later,
            Unanswered::Busy | Unanswered::Failed => Stop::Fail(Nfsstat3::Jukebox),
        })
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

    #[test]
    fn a_database_that_fails_grants_nothing() {
        let failing = Groups(Lookups::new(|_| Err(io::ErrorKind::TimedOut.into()), "the groups of a user"));
        let address = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(failing.of(7, address, Wait::Yes).unwrap_err(), Stop::Fail(Nfsstat3::Jukebox));
        assert_eq!(failing.of(7, address, Wait::No).unwrap_err(), Stop::Later);
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
