//! Users and groups, given by number or by a name that this host knows.

use std::io;

use forebay_common::user_database::{group_called, user_called};

/// Parses a user: a number, or a name that this host knows.
///
/// # Errors
/// One sentence. The number 4294967295 is refused: it means "no change" in system calls and belongs to no user.
pub fn parse_user(text: &str) -> Result<u32, String> {
    parse(text, "user", |name| Ok(user_called(name)?.map(|user| user.number)))
}

/// Parses a group: a number, or a name that this host knows.
///
/// # Errors
/// One sentence. The number 4294967295 is refused: it means "no change" in system calls and belongs to no group.
pub fn parse_group(text: &str) -> Result<u32, String> {
    parse(text, "group", group_called)
}

/// Parses the number of a user or group, or looks its name up with `called`. `what` is the word for the message.
fn parse(
    text: &str,
    what: &str,
    called: impl FnOnce(&str) -> io::Result<Option<u32>>,
) -> Result<u32, String> {
    let number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let found = match number {
        true => text.parse().ok(),
        false => called(text).map_err(|error| {
            format!("the {what} `{text}` cannot be looked up on this host: {error}; write its number")
        })?,
    };
    found.filter(|id| *id != u32::MAX).ok_or_else(|| {
        format!(
            "`{text}` is no {what}; write the name of a {what} that this host knows, or a number from 0 to {}",
            u32::MAX - 1
        )
    })
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

    #[test]
    fn a_database_that_fails_is_not_taken_for_an_unknown_name() {
        let fails = |_: &str| Err(io::ErrorKind::TimedOut.into());
        let told = parse("staff", "group", fails).unwrap_err();
        assert!(told.starts_with("the group `staff` cannot be looked up"), "{told}");
        assert_eq!(parse("7", "group", fails), Ok(7), "a number needs no database");
    }
}
