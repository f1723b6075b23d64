//! Handshakes without a socket.

mod authority;

use forebay_tls::{Opened, Session, SessionError};
use rustls::ClientConnection;

pub(crate) use authority::*;

/// Passes bytes between client and session until both are done. Returns the first error.
pub(crate) fn shake_hands(client: &mut ClientConnection, session: &mut Session) -> Result<(), String> {
    for _ in 0..10 {
        let mut flight = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut flight).unwrap();
        }
        let mut answer = Vec::new();
        let opened = session.open(&mut flight, &mut Vec::new(), &mut answer);
        let mut answer = &answer[..];
        while !answer.is_empty() {
            client.read_tls(&mut answer).unwrap();
            client.process_new_packets().map_err(|error| format!("client: {error}"))?;
        }
        opened.map_err(|error| error.to_string())?;
        if !client.is_handshaking() && !session.is_handshaking() {
            return Ok(());
        }
    }
    Err("the handshake does not end".to_owned())
}

/// Opens bytes at the session; expects no answer.
pub(crate) fn open(session: &mut Session, bytes: &mut [u8]) -> Result<(Opened, Vec<u8>), SessionError> {
    let (mut plain, mut answer) = (Vec::new(), Vec::new());
    let opened = session.open(bytes, &mut plain, &mut answer)?;
    assert!(answer.is_empty());
    Ok((opened, plain))
}
