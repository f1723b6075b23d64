//! Users and groups, given by number or by a name that this host knows.

use std::ffi::CString;

/// Parses a user: a number, or a name that this host knows.
///
/// # Errors
/// One sentence. The number 4294967295 is refused: it means "no change" in system calls and belongs to no user.
pub fn parse_user(text: &str) -> Result<u32, String> {
    parse(text, "user", user_called)
}

/// Parses a group: a number, or a name that this host knows.
///
/// # Errors
/// One sentence. The number 4294967295 is refused: it means "no change" in system calls and belongs to no group.
pub fn parse_group(text: &str) -> Result<u32, String> {
    parse(text, "group", group_called)
}

/// Parses the number of a user or group, or looks its name up with `called`. `what` is the word for the message.
fn parse(text: &str, what: &str, called: fn(&CString) -> Option<u32>) -> Result<u32, String> {
    let number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let found = match number {
        true => text.parse().ok(),
        false => CString::new(text).ok().and_then(|name| called(&name)),
    };
    found.filter(|id| *id != u32::MAX).ok_or_else(|| {
        format!(
            "`{text}` is no {what}; write the name of a {what} that this host knows, or a number from 0 to {}",
            u32::MAX - 1
        )
    })
}

/// Size in bytes of the buffer for an entry of the host's user database. No known entry is as large; a larger one
/// counts as absent.
const ENTRY: usize = 64 << 10;

/// Returns the number of a user from the host's user database, or `None` if there is no such user. May wait for a
/// server that the host asks.
fn user_called(name: &CString) -> Option<u32> {
    let mut buffer = vec![0; ENTRY];
    let mut entry = std::mem::MaybeUninit::<libc::passwd>::uninit();
    let mut found = std::ptr::null_mut();
    // SAFETY: the name ends with a zero byte, and entry, buffer (of the length given) and result live over the call.
    let failed = unsafe {
        libc::getpwnam_r(name.as_ptr(), entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &mut found)
    };
    // SAFETY: without an error, a result that is not null points to the entry, which is filled then.
    (failed == 0 && !found.is_null()).then(|| unsafe { (*found).pw_uid })
}

/// Returns the number of a group from the host's user database, or `None` if there is no such group. An entry longer
/// than `ENTRY` bytes counts as absent.
fn group_called(name: &CString) -> Option<u32> {
    let mut buffer = vec![0; ENTRY];
    let mut entry = std::mem::MaybeUninit::<libc::group>::uninit();
    let mut found = std::ptr::null_mut();
    // SAFETY: the name ends with a zero byte, and entry, buffer (of the length given) and result live over the call.
    let failed = unsafe {
        libc::getgrnam_r(name.as_ptr(), entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &mut found)
    };
    // SAFETY: without an error, a result that is not null points to the entry, which is filled then.
    (failed == 0 && !found.is_null()).then(|| unsafe { (*found).gr_gid })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_are_numbers_or_names() {
        assert_eq!((parse_user("root"), parse_group("root")), (Ok(0), Ok(0)));
        assert_eq!((parse_user("65534"), parse_group("0")), (Ok(65_534), Ok(0)));
        for text in ["", "4294967295", "4294967296", "-1", "no such user", "a\0b"] {
            assert!(parse_user(text).unwrap_err().contains("is no user; write the name"), "{text}");
            assert!(parse_group(text).unwrap_err().contains("is no group"), "{text}");
        }
    }
}
