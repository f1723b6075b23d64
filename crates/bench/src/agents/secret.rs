//! The shared token, and the proof that a side has it, which does not reveal the token.
//!
//! Each side sends a random number. Each side then proves itself with an HMAC-SHA-256 (RFC 2104) of both numbers
//! under the token. A word that names the side comes first, so that no proof can be sent back to its source. Keys are
//! derived in this way as well, one for each direction. Every message carries its number and an HMAC under the key of
//! its direction.
//!
//! The scheme keeps out a host without the token and detects changed messages. Messages are not encrypted.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Bytes of a random number and of a proof.
pub(crate) const LEN: usize = 32;
/// Shortest token in bytes; a shorter one could be guessed.
const SHORTEST: usize = 16;
const LONGEST: u64 = 4096;

/// The random numbers of one conversation: the controller's, then the agent's.
pub(crate) type Nonces = ([u8; LEN], [u8; LEN]);

/// The token that controller and agents share.
#[derive(Clone)]
pub(crate) struct Token(Vec<u8>);

/// The side that a proof or a key belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Controller,
    Agent,
}

impl Side {
    /// Returns the word that names the side in proofs and keys. The two words must differ.
    const fn word(self) -> &'static [u8] {
        match self {
            Self::Controller => b"controller",
            Self::Agent => b"agent",
        }
    }
}

impl Token {
    /// Reads a token file. The token has at least 16 bytes without surrounding white space. Only the file's owner may
    /// have access.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        let shown = path.display();
        let what = || format!("the token file {shown} cannot be read");
        let mut file = File::open(path).with_context(what)?;
        let mode = file.metadata().with_context(what)?.permissions().mode();
        if mode & 0o077 != 0 {
            bail!(
                "the token file {shown} is accessible to users other than its owner; run chmod 600 {shown}"
            );
        }
        let mut text = Vec::new();
        file.by_ref().take(LONGEST).read_to_end(&mut text).with_context(what)?;
        let token = text.trim_ascii();
        if token.len() < SHORTEST {
            bail!(
                "the token in {shown} has fewer than {SHORTEST} bytes; make one with: head -c 32 /dev/urandom | base64 > {shown}"
            );
        }
        Ok(Self(token.to_vec()))
    }

    /// Returns the proof that `side` has the token.
    pub(crate) fn proof(&self, side: Side, nonces: &Nonces) -> [u8; LEN] {
        self.derived(b"forebay-bench proof ", side, nonces).finalize().into_bytes().into()
    }

    /// Returns true if a proof is right. The time does not depend on the position of a wrong byte.
    pub(crate) fn proves(&self, side: Side, nonces: &Nonces, proof: &[u8]) -> bool {
        self.derived(b"forebay-bench proof ", side, nonces).verify_slice(proof).is_ok()
    }

    /// Returns the key of the messages that `side` sends.
    pub(crate) fn key(&self, side: Side, nonces: &Nonces) -> Key {
        Key(self.derived(b"forebay-bench key ", side, nonces).finalize().into_bytes().into())
    }

    /// Returns a MAC over the purpose, the side and both random numbers, under the token. Proofs and keys have
    /// different purposes.
    fn derived(&self, purpose: &[u8], side: Side, (controller, agent): &Nonces) -> Hmac<Sha256> {
        let mut mac = keyed(&self.0);
        for part in [purpose, side.word(), controller, agent] {
            mac.update(part);
        }
        mac
    }
}

/// The key of one direction of one conversation.
pub(crate) struct Key([u8; LEN]);

impl Key {
    /// Returns the seal of message number `number`.
    pub(crate) fn seal(&self, number: u64, message: &[u8]) -> [u8; LEN] {
        self.mac(number, message).finalize().into_bytes().into()
    }

    /// Returns true if a message was sent as number `number` and has not changed.
    pub(crate) fn is_sealed(&self, number: u64, message: &[u8], seal: &[u8]) -> bool {
        self.mac(number, message).verify_slice(seal).is_ok()
    }

    /// Returns the seal of message `number` in one direction. The number keeps an old message from being sent again.
    fn mac(&self, number: u64, message: &[u8]) -> Hmac<Sha256> {
        let mut mac = keyed(&self.0);
        mac.update(&number.to_be_bytes());
        mac.update(message);
        mac
    }
}

fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"))
}

/// Returns an unpredictable random number.
pub(crate) fn random() -> [u8; LEN] {
    rand::random()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn token(text: &str) -> Token {
        Token(text.as_bytes().to_vec())
    }

    #[test]
    fn a_proof_holds_for_its_token_side_and_numbers_only() {
        let (one, nonces) = (token("correct horse battery"), ([1; LEN], [2; LEN]));
        let proof = one.proof(Side::Agent, &nonces);
        assert!(one.proves(Side::Agent, &nonces, &proof));
        assert!(!one.proves(Side::Controller, &nonces, &proof), "reflected");
        assert!(!one.proves(Side::Agent, &([2; LEN], [1; LEN]), &proof), "replayed");
        assert!(!token("wrong horse battery").proves(Side::Agent, &nonces, &proof));
        assert!(!one.proves(Side::Agent, &nonces, &proof[..31]) && !one.proves(Side::Agent, &nonces, &[]));
    }

    #[test]
    fn a_seal_holds_for_its_message_and_number_only() {
        let (token, nonces) = (token("correct horse battery"), ([1; LEN], [2; LEN]));
        let key = token.key(Side::Agent, &nonces);
        let seal = key.seal(0, b"go");
        assert!(key.is_sealed(0, b"go", &seal));
        assert!(!key.is_sealed(1, b"go", &seal) && !key.is_sealed(0, b"no", &seal));
        assert!(!token.key(Side::Controller, &nonces).is_sealed(0, b"go", &seal));
    }

    #[test]
    fn token_files_are_private_and_long_enough() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let load = |text: &str, mode: u32| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Token::load(&path).map_err(|error| error.to_string())
        };
        assert_eq!(load("  0123456789abcdef\n", 0o600).unwrap().0, b"0123456789abcdef");
        assert!(load("0123456789abcdef", 0o640).err().unwrap().contains("chmod 600"));
        assert!(load("short\n", 0o600).err().unwrap().contains("fewer than 16"));
    }
}
