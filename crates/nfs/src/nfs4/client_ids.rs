//! Client ids on the wire. A principal may make a session of another one's client if it names the id (RFC 8881, section
//! 18.36.3, with SP4_NONE). So the ids, which count up, are encrypted: nobody can guess another client's.

use forebay_clientstate::ClientId;
use forebay_vfs::{HandleKey, Vfs};

/// Rounds of the Feistel network. Four of a keyed hash make a strong pseudorandom permutation (Luby and Rackoff, 1988).
const ROUNDS: u8 = 4;

/// The key of client ids, equal after every restart.
pub(crate) struct ClientIds(HandleKey);

impl ClientIds {
    pub(crate) fn new(vfs: &Vfs) -> Self {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&vfs.derive(b"NFSv4 client ids, 1").to_le_bytes());
        key[8..].copy_from_slice(&vfs.derive(b"NFSv4 client ids, 2").to_le_bytes());
        ClientIds(HandleKey::new(&key))
    }

    /// Returns the id that a client gets.
    pub(crate) fn seal(&self, id: ClientId) -> u64 {
        let (left, right) =
            (0..ROUNDS).fold(halves(id.0), |(left, right), round| (right, left ^ self.hash(round, right)));
        u64::from(left) << 32 | u64::from(right)
    }

    /// Returns the client that has an id. Each number is some client's; most of them were never made.
    pub(crate) fn open(&self, sealed: u64) -> ClientId {
        let (left, right) = (0..ROUNDS)
            .rev()
            .fold(halves(sealed), |(left, right), round| (right ^ self.hash(round, left), left));
        ClientId(u64::from(left) << 32 | u64::from(right))
    }

    fn hash(&self, round: u8, half: u32) -> u32 {
        let [a, b, c, d] = half.to_le_bytes();
        self.0.derive(&[round, a, b, c, d]) as u32
    }
}

fn halves(id: u64) -> (u32, u32) {
    ((id >> 32) as u32, id as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_id_is_opened_and_tells_nothing_of_the_next_one() {
        let ids = ClientIds(HandleKey::new(&[7; 16]));
        let mut changed = 0;
        for n in 0..1000 {
            let (one, two) = (ids.seal(ClientId(n)), ids.seal(ClientId(n + 1)));
            assert_eq!(ids.open(one), ClientId(n));
            changed += (one ^ two).count_ones();
        }
        assert!((28_000..36_000).contains(&changed), "half of the bits change: {changed}");
        assert_eq!(ids.open(ids.seal(ClientId(u64::MAX))), ClientId(u64::MAX));
        assert_ne!(ClientIds(HandleKey::new(&[8; 16])).seal(ClientId(1)), ids.seal(ClientId(1)));
    }
}
