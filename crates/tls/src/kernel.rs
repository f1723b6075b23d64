//! The keys of a session in the form in which the kernel takes them (`struct tls12_crypto_info_...` of linux/tls.h).

use std::fmt;

use rustls::{CipherSuite, ConnectionTrafficSecrets};
use zeroize::Zeroizing;

/// The version of TLS 1.3 in the kernel's structures.
const TLS_1_3: u16 = 0x0304;
/// Bytes of a nonce in TLS 1.3 (RFC 8446 section 5.3).
const NONCE: usize = 12;
/// Bytes of the nonce that the kernel calls salt, for AES-GCM.
const SALT: usize = 4;

/// A cipher of TLS 1.3 that a session may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cipher {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
}

impl Cipher {
    /// Every cipher.
    pub const ALL: [Self; 3] = [Self::Aes128Gcm, Self::Aes256Gcm, Self::ChaCha20Poly1305];

    /// Returns the cipher of a suite; none if the kernel's TLS knows no such cipher.
    pub(crate) fn of(suite: CipherSuite) -> Option<Self> {
        match suite {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => Some(Self::Aes128Gcm),
            CipherSuite::TLS13_AES_256_GCM_SHA384 => Some(Self::Aes256Gcm),
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Some(Self::ChaCha20Poly1305),
            _ => None,
        }
    }

    /// Returns the size of a key in bytes.
    pub fn key_len(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }

    /// Returns the kernel's number of the cipher (`TLS_CIPHER_...`).
    fn number(self) -> u16 {
        match self {
            Self::Aes128Gcm => 51,
            Self::Aes256Gcm => 52,
            Self::ChaCha20Poly1305 => 54,
        }
    }
}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aes128Gcm => "AES-128-GCM",
            Self::Aes256Gcm => "AES-256-GCM",
            Self::ChaCha20Poly1305 => "ChaCha20-Poly1305",
        })
    }
}

/// The key of one direction as the value of a socket option. The bytes are overwritten when the value is dropped.
pub struct CryptoInfo(Zeroizing<Vec<u8>>);

impl CryptoInfo {
    /// Encodes a key of [`Cipher::key_len`] bytes, the nonce before it is combined with a sequence number, and the
    /// sequence number of the next record. Returns none if the key or the nonce has another length.
    pub fn new(cipher: Cipher, key: &[u8], nonce: &[u8], sequence: u64) -> Option<Self> {
        if key.len() != cipher.key_len() || nonce.len() != NONCE {
            return None;
        }
        // The kernel's structure has the salt behind the key.
        let (salt, iv) = nonce.split_at(if cipher == Cipher::ChaCha20Poly1305 { 0 } else { SALT });
        let mut info = Zeroizing::new(Vec::with_capacity(4 + NONCE + key.len() + 8));
        info.extend_from_slice(&TLS_1_3.to_ne_bytes());
        info.extend_from_slice(&cipher.number().to_ne_bytes());
        for part in [iv, key, salt, &sequence.to_be_bytes()] {
            info.extend_from_slice(part);
        }
        Some(Self(info))
    }

    /// Encodes the secrets of a direction.
    pub(crate) fn of(secrets: &ConnectionTrafficSecrets, sequence: u64) -> Option<Self> {
        let (cipher, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Cipher::Aes128Gcm, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Cipher::Aes256Gcm, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (Cipher::ChaCha20Poly1305, key, iv),
            _ => return None,
        };
        Self::new(cipher, key.as_ref(), iv.as_ref(), sequence)
    }

    /// Returns the value for `setsockopt`.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The keys of a session, which the kernel may take over.
pub struct KernelKeys {
    /// For records to the peer.
    pub send: CryptoInfo,
    /// For records from the peer.
    pub receive: CryptoInfo,
    /// The number of records that may still be sent with the key. Beyond it the cipher loses its strength (RFC 8446
    /// section 5.5).
    pub records: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns `len` bytes that count from `first` on.
    fn bytes(first: u8, len: u8) -> Vec<u8> {
        (first..first + len).collect()
    }

    #[test]
    fn keys_have_the_layout_of_the_kernel() {
        let nonce = bytes(0xa0, 12);
        let sequence = 0x0102_0304_0506_0708;
        let sequence_bytes = bytes(1, 8);
        let encoded =
            |cipher, key: &[u8]| CryptoInfo::new(cipher, key, &nonce, sequence).unwrap().as_bytes().to_vec();
        let head = |number: u8| {
            let head = if cfg!(target_endian = "little") { [4, 3, number, 0] } else { [3, 4, 0, number] };
            head.to_vec()
        };
        for (cipher, number, len) in [(Cipher::Aes128Gcm, 51, 16), (Cipher::Aes256Gcm, 52, 32)] {
            let key = bytes(0x40, len);
            // iv, key, salt, rec_seq
            let expected = [&head(number), &nonce[4..], &key, &nonce[..4], &sequence_bytes].concat();
            assert_eq!(encoded(cipher, &key), expected, "{cipher}");
        }
        let key = bytes(0x40, 32);
        let expected = [&head(54), &nonce[..], &key, &sequence_bytes].concat();
        assert_eq!(encoded(Cipher::ChaCha20Poly1305, &key), expected);
    }

    #[test]
    fn keys_have_the_sizes_of_the_kernel() {
        let sizes = Cipher::ALL.map(|cipher| {
            CryptoInfo::new(cipher, &vec![0; cipher.key_len()], &[0; 12], 0).unwrap().as_bytes().len()
        });
        // The sizes of the structures for AES-GCM-128, AES-GCM-256 and ChaCha20-Poly1305.
        assert_eq!(sizes, [40, 56, 56]);
    }

    #[test]
    fn keys_of_another_length_are_refused() {
        for cipher in Cipher::ALL {
            assert!(CryptoInfo::new(cipher, &vec![0; cipher.key_len() - 1], &[0; 12], 0).is_none());
            assert!(CryptoInfo::new(cipher, &vec![0; cipher.key_len()], &[0; 8], 0).is_none());
        }
    }
}
