//! One attempt to notify one target.

mod http;
mod program;
mod socket;

use std::io::Read;
use std::path::Path;

use forebay_common::named_file;
use forebay_config::{Notify, NotifyWay};
use forebay_control::Event;

/// The size of the largest file with a URL or a token, in bytes.
const LONGEST_SECRET: u64 = 4096;

/// The reason why a target did not take a notification.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// One sentence, without secrets.
    pub(crate) message: String,
    /// True if another attempt would fail as well.
    pub(crate) is_lasting: bool,
}

impl Trouble {
    fn passing(message: impl Into<String>) -> Self {
        Trouble { message: message.into(), is_lasting: false }
    }

    fn lasting(message: impl Into<String>) -> Self {
        Trouble { message: message.into(), is_lasting: true }
    }
}

/// Notifies a target of an event. Returns when the target has taken the notification, after its timeout at the latest.
///
/// # Errors
/// The target did not take the notification.
pub(crate) fn attempt(target: &Notify, event: &Event, host: &str) -> Result<(), Trouble> {
    match target.kind.way() {
        NotifyWay::Program => program::run(target, event, host),
        NotifyWay::Http => http::post(target, event, host),
        NotifyWay::Socket => socket::send(target, event),
    }
}

/// Returns what is wrong with a target, as far as that can be found without a notification: a sentence that names the
/// target.
pub fn check(target: &Notify) -> Option<String> {
    let checked = match target.kind.way() {
        NotifyWay::Program => program::check(target),
        NotifyWay::Http => http::check(target),
        // The socket may come later than the server.
        NotifyWay::Socket => Ok(()),
    };
    let failing =
        |trouble: Trouble| format!("notifications to {} will fail: {}", target.name, trouble.message);
    checked.err().map(failing)
}

/// Returns the first line of a file that has a secret, without blanks around it.
fn secret(path: &Path) -> Result<String, Trouble> {
    let shown = path.display();
    let failed =
        |error| Trouble::passing(format!("{shown} cannot be read: {error}; correct its path or its rights"));
    let mut text = String::new();
    let file = named_file::open(path).map_err(failed)?;
    file.take(LONGEST_SECRET).read_to_string(&mut text).map_err(failed)?;
    match text.lines().map(str::trim).find(|line| !line.is_empty()) {
        Some(line) => Ok(line.to_owned()),
        None => Err(Trouble::lasting(format!("{shown} is empty; write one line to it"))),
    }
}
