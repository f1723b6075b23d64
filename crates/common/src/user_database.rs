//! The users and groups of this host's user database. A lookup waits for the database, which may ask another host.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;

use libc::{c_char, c_int};

/// The first size of the buffer for the strings of an entry in bytes. The buffer is doubled until the entry fits.
const FIRST: usize = 1 << 10;
/// The largest size of the buffer in bytes, enough for the names of half a million members of a group. The lookup of a
/// larger entry fails.
const LARGEST: usize = 16 << 20;

/// A user of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name.
    pub name: CString,
    /// The number.
    pub number: u32,
    /// The number of the first group.
    pub group: u32,
}

/// Returns the user with a number (getpwuid_r(3)), or `None` if there is no such user.
///
/// # Errors
/// The database does not answer.
pub fn user_numbered(number: u32) -> io::Result<Option<User>> {
    // SAFETY: `entry` passes pointers that are valid for writes of their lengths.
    let ask =
        |entry, strings, len, found: &mut _| unsafe { libc::getpwuid_r(number, entry, strings, len, found) };
    entry(ask, user)
}

/// Returns the user with a name (getpwnam_r(3)), or `None` if there is no such user.
///
/// # Errors
/// The database does not answer.
pub fn user_called(name: &str) -> io::Result<Option<User>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    // SAFETY: `entry` passes pointers that are valid for writes of their lengths, and the name is a C string.
    let ask = |entry, strings, len, found: &mut _| unsafe {
        libc::getpwnam_r(name.as_ptr(), entry, strings, len, found)
    };
    entry(ask, user)
}

/// Returns the number of the group with a name (getgrnam_r(3)), or `None` if there is no such group.
///
/// # Errors
/// The database does not answer, or the group has more members than 16 MiB have room for.
pub fn group_called(name: &str) -> io::Result<Option<u32>> {
    let Ok(name) = CString::new(name) else { return Ok(None) };
    // SAFETY: `entry` passes pointers that are valid for writes of their lengths, and the name is a C string.
    let ask = |entry, strings, len, found: &mut _| unsafe {
        libc::getgrnam_r(name.as_ptr(), entry, strings, len, found)
    };
    entry(ask, |group: &libc::group| group.gr_gid)
}

/// Returns the name of the group with a number (getgrgid_r(3)), or `None` if there is no such group.
///
/// # Errors
/// The database does not answer, or the group has more members than 16 MiB have room for.
pub fn group_numbered(number: u32) -> io::Result<Option<CString>> {
    // SAFETY: `entry` passes pointers that are valid for writes of their lengths.
    let ask =
        |entry, strings, len, found: &mut _| unsafe { libc::getgrgid_r(number, entry, strings, len, found) };
    // SAFETY: the database has filled in the entry, whose name is a C string in the buffer.
    entry(ask, |group: &libc::group| unsafe { CStr::from_ptr(group.gr_name) }.to_owned())
}

/// Copies an entry whose strings are still in their buffer.
fn user(entry: &libc::passwd) -> User {
    // SAFETY: the database has filled in the entry, whose name is a C string in the buffer.
    let name = unsafe { CStr::from_ptr(entry.pw_name) };
    User { name: name.to_owned(), number: entry.pw_uid, group: entry.pw_gid }
}

/// Returns what `take` makes of an entry while its strings are in the buffer, or `None` if there is no such entry.
/// `ask` is the function of libc for one kind of entry.
fn entry<E, T>(
    ask: impl Fn(*mut E, *mut c_char, usize, &mut *mut E) -> c_int,
    take: impl FnOnce(&E) -> T,
) -> io::Result<Option<T>> {
    let mut strings = vec![0u8; FIRST];
    loop {
        let mut entry = MaybeUninit::<E>::uninit();
        let mut found = std::ptr::null_mut();
        match ask(entry.as_mut_ptr(), strings.as_mut_ptr().cast(), strings.len(), &mut found) {
            0 if found.is_null() => return Ok(None),
            // SAFETY: without an error, a result that is not null says that the entry is filled in.
            0 => return Ok(Some(take(unsafe { entry.assume_init_ref() }))),
            libc::ERANGE if strings.len() < LARGEST => strings.resize(2 * strings.len(), 0),
            libc::ENOENT | libc::ESRCH => return Ok(None),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks up an entry that needs `size` bytes, and is the number 7.
    fn of_size(size: usize) -> io::Result<Option<u32>> {
        let ask = |entry: *mut u32, _, len, found: &mut *mut u32| {
            if len < size {
                return libc::ERANGE;
            }
            // SAFETY: `entry` of this module passes a pointer that is valid for writes.
            unsafe { entry.write(7) };
            *found = entry;
            0
        };
        entry(ask, |entry| *entry)
    }

    #[test]
    fn an_entry_of_any_size_is_found_and_a_larger_one_is_an_error() {
        for size in [1, FIRST, FIRST + 1, 300 << 10, LARGEST] {
            assert_eq!(of_size(size).unwrap(), Some(7), "{size}");
        }
        assert_eq!(of_size(LARGEST + 1).unwrap_err().raw_os_error(), Some(libc::ERANGE));
    }

    #[test]
    fn an_unknown_name_is_no_error_and_a_failing_database_is() {
        let answer = |error: c_int| entry(move |_: *mut u32, _, _, _: &mut _| error, |entry| *entry);
        for unknown in [0, libc::ENOENT, libc::ESRCH] {
            assert_eq!(answer(unknown).unwrap(), None);
        }
        assert_eq!(answer(libc::EIO).unwrap_err().raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn users_and_groups_are_those_of_this_host() {
        let root = User { name: c"root".to_owned(), number: 0, group: 0 };
        assert_eq!(user_called("root").unwrap().as_ref(), Some(&root));
        assert_eq!(user_numbered(0).unwrap(), Some(root));
        assert_eq!(group_called("root").unwrap(), Some(0));
        assert_eq!(group_numbered(0).unwrap().as_deref(), Some(c"root"));
        assert_eq!(group_numbered(4_000_000_000).unwrap(), None, "no group has this number");
        for name in ["no-such-name", "ro\0ot"] {
            assert_eq!((user_called(name).unwrap(), group_called(name).unwrap()), (None, None));
        }
        assert_eq!(user_numbered(4_000_000_000).unwrap(), None, "nobody has this number");
    }
}
