//! Owners and groups as `NAME@DOMAIN`, which clients with Kerberos send in place of numbers (RFC 8881 section 5.9).

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use forebay_wire::nfs4::Nfsstat4;

use crate::groups::user_called;

/// Lookups in flight at once. A database that does not answer keeps at most as many workers.
const AT_ONCE: usize = 4;
/// The largest size of the buffer for a group's members in bytes. A larger group is not found.
const LARGEST: usize = 16 << 20;

/// The kind of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    User,
    Group,
}

/// The domains whose users and groups are those of this host.
#[derive(Default)]
pub(crate) struct Owners {
    domains: OnceLock<Vec<String>>,
    asking: AtomicUsize,
}

impl Owners {
    /// Sets the domains, once. Before that no name is known.
    pub(crate) fn know(&self, domains: Vec<String>) {
        let _ = self.domains.set(domains);
    }

    /// Returns the number of a user or group. May wait for the host's database. Fails with NFS4ERR_BADOWNER for names
    /// of other domains and unknown names, and with NFS4ERR_DELAY while the database fails or is slow.
    pub(crate) fn id(&self, name: &str, whose: Whose) -> Result<u32, Nfsstat4> {
        let (name, domain) = name.rsplit_once('@').ok_or(Nfsstat4::Badowner)?;
        let is_known = |known: &String| known.eq_ignore_ascii_case(domain);
        if !self.domains.get().is_some_and(|domains| domains.iter().any(is_known)) {
            return Err(Nfsstat4::Badowner);
        }
        let asks = self.asking.fetch_add(1, Relaxed) < AT_ONCE;
        let found = asks.then(|| match whose {
            Whose::User => Ok(user_called(name)?.map(|(user, _)| user)),
            Whose::Group => group_called(name),
        });
        self.asking.fetch_sub(1, Relaxed);
        match found {
            Some(Ok(id)) => id.ok_or(Nfsstat4::Badowner),
            Some(Err(_)) | None => Err(Nfsstat4::Delay),
        }
    }
}

/// Asks the database for the number of the group with a name (getgrnam_r(3)); may take long.
fn group_called(name: &str) -> io::Result<Option<u32>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    let mut strings = vec![0u8; 1024];
    loop {
        let mut entry = MaybeUninit::<libc::group>::uninit();
        let mut found = std::ptr::null_mut();
        // SAFETY: the name is a C string, and the other pointers are valid for writes of their lengths.
        let error = unsafe {
            let (buffer, len) = (strings.as_mut_ptr().cast(), strings.len());
            libc::getgrnam_r(name.as_ptr(), entry.as_mut_ptr(), buffer, len, &mut found)
        };
        match error {
            0 if found.is_null() => return Ok(None),
            // SAFETY: the call has filled in the entry.
            0 => return Ok(Some(unsafe { entry.assume_init_ref() }.gr_gid)),
            libc::ERANGE if strings.len() < LARGEST => strings.resize(2 * strings.len(), 0),
            libc::ENOENT | libc::ESRCH => return Ok(None),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_known_domains_are_those_of_this_host() {
        let owners = Owners::default();
        assert_eq!(owners.id("root@example.org", Whose::User), Err(Nfsstat4::Badowner), "no domain is known");
        owners.know(vec!["EXAMPLE.ORG".into()]);
        for name in ["root@example.org", "root@EXAMPLE.ORG"] {
            assert_eq!([Whose::User, Whose::Group].map(|whose| owners.id(name, whose)), [Ok(0); 2], "{name}");
        }
        for name in [
            "root",
            "root@",
            "root@other.org",
            "@example.org",
            "no such user@example.org",
            "root\0@example.org",
        ] {
            let found = [Whose::User, Whose::Group].map(|whose| owners.id(name, whose));
            assert_eq!(found, [Err(Nfsstat4::Badowner); 2], "{name}");
        }
        owners.asking.store(AT_ONCE, Relaxed);
        assert_eq!(owners.id("root@example.org", Whose::User), Err(Nfsstat4::Delay));
    }
}
