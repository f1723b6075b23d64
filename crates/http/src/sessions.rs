//! Invitations and sessions of administrators.
//!
//! `forebay web` gets an invitation over the control socket. The invitation opens one session, within two minutes. A
//! session is known by a cookie, and ends after twelve hours or with the server.

use std::time::{Duration, Instant};

use forebay_common::lock::Mutex;
use subtle::ConstantTimeEq;

/// Time within which an invitation must be used.
const INVITED: Duration = Duration::from_secs(120);
/// Length of a session.
const SESSION: Duration = Duration::from_secs(12 * 3600);
/// Most invitations, and most sessions. Above that, the oldest ends.
const MOST: usize = 16;

/// An administrator with a session.
#[derive(Debug, Clone)]
pub(crate) struct Administrator {
    /// Name that the administrator's user gave.
    pub(crate) who: String,
    /// Key that each action must bear, besides the cookie. Other sites cannot read it.
    pub(crate) key: String,
}

#[derive(Debug)]
struct Entry {
    secret: String,
    until: Instant,
    administrator: Administrator,
}

/// All invitations and sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions(Mutex<(Vec<Entry>, Vec<Entry>)>);

impl Sessions {
    /// Makes an invitation. Returns its secret.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub(crate) fn invite(&self, who: &str) -> Result<String, String> {
        let administrator = Administrator { who: who.to_owned(), key: random()? };
        let entry = Entry { secret: random()?, until: Instant::now() + INVITED, administrator };
        let secret = entry.secret.clone();
        add(&mut self.0.lock().0, entry);
        Ok(secret)
    }

    /// Uses an invitation up. Returns the secret of its session; `None` if there is no such invitation.
    pub(crate) fn enter(&self, invitation: &str) -> Option<String> {
        let secret = random().ok()?;
        let (invitations, sessions) = &mut *self.0.lock();
        let at = position(invitations, invitation)?;
        let Entry { administrator, .. } = invitations.remove(at);
        add(sessions, Entry { secret: secret.clone(), until: Instant::now() + SESSION, administrator });
        Some(secret)
    }

    /// Returns the administrator of a session.
    pub(crate) fn of(&self, secret: &str) -> Option<Administrator> {
        let (_, sessions) = &mut *self.0.lock();
        position(sessions, secret).map(|at| sessions[at].administrator.clone())
    }

    /// Ends a session.
    pub(crate) fn leave(&self, secret: &str) {
        let (_, sessions) = &mut *self.0.lock();
        if let Some(at) = position(sessions, secret) {
            sessions.remove(at);
        }
    }
}

/// Adds an entry. At `MOST` entries the oldest one leaves.
fn add(entries: &mut Vec<Entry>, entry: Entry) {
    if entries.len() == MOST {
        entries.remove(0);
    }
    entries.push(entry);
}

/// Returns the place of a secret. Drops the entries that have ended.
fn position(entries: &mut Vec<Entry>, secret: &str) -> Option<usize> {
    let now = Instant::now();
    entries.retain(|entry| entry.until > now);
    entries.iter().position(|entry| is_equal(&entry.secret, secret))
}

/// Compares two secrets in a time that does not depend on where they differ.
pub(crate) fn is_equal(one: &str, other: &str) -> bool {
    one.as_bytes().ct_eq(other.as_bytes()).into()
}

/// Returns 256 random bits in hexadecimal digits.
fn random() -> Result<String, String> {
    let mut bytes = [0_u8; 32];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    match filled {
        Ok(32) => Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        _ => Err("the system gives no random bytes; see whether getrandom(2) is allowed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invitation_opens_one_session() {
        let sessions = Sessions::default();
        let invitation = sessions.invite("jo").unwrap();
        assert!(sessions.enter("x").is_none() && sessions.of(&invitation).is_none());
        let session = sessions.enter(&invitation).unwrap();
        assert!(sessions.enter(&invitation).is_none(), "it is used up");
        let administrator = sessions.of(&session).unwrap();
        assert_eq!((&*administrator.who, administrator.key.len()), ("jo", 64));
        sessions.leave(&session);
        assert!(sessions.of(&session).is_none());
    }

    #[test]
    fn old_entries_make_room() {
        let sessions = Sessions::default();
        let secrets: Vec<_> = (0..=MOST).map(|_| sessions.invite("jo").unwrap()).collect();
        assert!(sessions.enter(&secrets[0]).is_none());
        assert!(secrets[1..].iter().all(|secret| sessions.enter(secret).is_some()));
        sessions.0.lock().1.iter_mut().for_each(|entry| entry.until = Instant::now());
        assert!(sessions.of("").is_none() && sessions.0.lock().1.is_empty());
    }
}
