//! The ciphers of the kernel's TLS, found out once in a process with a connection to itself.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::OnceLock;
use std::time::Duration;

use forebay_tls::{Cipher, CryptoInfo};

use super::{attach, install_one};

/// The time for a byte to pass, which takes microseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// The byte that passes, and the record in which it is sealed: a header of five bytes, the byte, its type, and the tag.
const BYTE: u8 = b'?';
const SEALED: usize = 5 + 1 + 1 + 16;
/// The first bytes of each sealed record: type, and version (RFC 8446 section 5.2).
const HEADER: [u8; 3] = [23, 3, 3];

/// Returns true if the kernel seals and opens records of this cipher.
pub(super) fn supports(cipher: Cipher) -> bool {
    found().contains(&cipher)
}

/// Finds the ciphers of the kernel now, and logs them. Otherwise the first connection with TLS has to wait.
pub(crate) fn announce() {
    found();
}

fn found() -> &'static [Cipher] {
    static FOUND: OnceLock<Vec<Cipher>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let tried = Cipher::ALL.map(|cipher| (cipher, try_cipher(cipher)));
        let found: Vec<_> =
            tried.iter().filter(|(_, tried)| tried.is_ok()).map(|(cipher, _)| *cipher).collect();
        match &tried {
            _ if !found.is_empty() => {
                let names: Vec<_> = found.iter().map(ToString::to_string).collect();
                tracing::info!("the kernel encrypts connections with TLS ({})", names.join(", "));
            }
            [(_, Err(error)), ..] => tracing::info!(
                "connections with TLS are encrypted in user space, because the kernel does not do it ({error}); \
                 `modprobe tls` before the start of the server may change that"
            ),
            _ => {}
        }
        found
    })
}

/// Sends a byte through the kernel's TLS of this cipher, in both directions.
fn try_cipher(cipher: Cipher) -> io::Result<()> {
    let (mut socket, mut wire) = pair()?;
    let key = || CryptoInfo::new(cipher, &vec![7; cipher.key_len()], &[9; 12], 0);
    let (Some(send), Some(receive)) = (key(), key()) else { return Err(io::ErrorKind::InvalidInput.into()) };
    attach(socket.as_fd())?;
    install_one(socket.as_fd(), libc::TLS_TX, &send)?;
    install_one(socket.as_fd(), libc::TLS_RX, &receive)?;
    socket.write_all(&[BYTE])?;
    let mut sealed = [0; SEALED];
    wire.read_exact(&mut sealed)?;
    // The key is the same in both directions, so the record can come back.
    wire.write_all(&sealed)?;
    let mut opened = [0];
    socket.read_exact(&mut opened)?;
    let is_sealed = sealed.starts_with(&HEADER) && opened == [BYTE];
    if is_sealed { Ok(()) } else { Err(io::Error::other("the byte did not pass as a sealed record")) }
}

/// Returns the two ends of a connection of this process with itself.
fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let places = [SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), SocketAddr::from((Ipv6Addr::LOCALHOST, 0))];
    let listener = TcpListener::bind(&places[..])?;
    let wire = TcpStream::connect(listener.local_addr()?)?;
    let (socket, from) = listener.accept()?;
    if from != wire.local_addr()? {
        return Err(io::Error::other("another process has connected"));
    }
    for end in [&socket, &wire] {
        end.set_read_timeout(Some(PATIENCE))?;
        end.set_write_timeout(Some(PATIENCE))?;
    }
    Ok((socket, wire))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_to_itself_carries_bytes() {
        let (mut one, mut other) = pair().unwrap();
        one.write_all(b"x").unwrap();
        let mut byte = [0];
        other.read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
    }
}
