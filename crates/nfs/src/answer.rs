//! Replies as the cache's log keeps them over a crash: see docs/on-disk-format.md.

use std::net::IpAddr;

use forebay_vfs::LoggedReply;

use crate::reply_cache::RequestKey;

/// A reply, and the request that it is kept under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer<'a> {
    pub(crate) client: IpAddr,
    pub(crate) key: RequestKey,
    pub(crate) reply: &'a [u8],
}

impl<'a> Answer<'a> {
    /// Returns the bytes that the cache's log keeps for this answer: client, request key, reply. [`Answer::decode`]
    /// reads them after a crash.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let RequestKey { xid, procedure, user, hash } = self.key;
        let mut out = Vec::with_capacity(48 + self.reply.len());
        match self.client {
            IpAddr::V4(address) => {
                out.push(4);
                out.extend_from_slice(&address.octets());
            }
            IpAddr::V6(address) => {
                out.push(6);
                out.extend_from_slice(&address.octets());
            }
        }
        out.extend_from_slice(&xid.to_le_bytes());
        out.extend_from_slice(&procedure.to_le_bytes());
        out.extend_from_slice(&hash.to_le_bytes());
        out.push(u8::from(user.is_some()));
        if let Some((uid, gid)) = user {
            out.extend_from_slice(&uid.to_le_bytes());
            out.extend_from_slice(&gid.to_le_bytes());
        }
        out.extend_from_slice(self.reply);
        out
    }

    /// Returns the answer to keep for a change that is about to be carried out.
    pub(crate) fn logged_reply(&self) -> LoggedReply {
        let answer = self.encode();
        LoggedReply { key: answer.len() - self.reply.len(), answer }
    }

    /// Decodes an answer. Returns `None` if the bytes are no answer: then no reply is kept.
    pub(crate) fn decode(mut bytes: &'a [u8]) -> Option<Self> {
        let input = &mut bytes;
        let client = match take(input)? {
            [4] => IpAddr::from(take::<4>(input)?),
            [6] => IpAddr::from(take::<16>(input)?),
            _ => return None,
        };
        let mut number = || take(input).map(u32::from_le_bytes);
        let (xid, procedure) = (number()?, number()?);
        let hash = u64::from_le_bytes(take(input)?);
        let user = match take(input)? {
            [0] => None,
            [1] => Some((u32::from_le_bytes(take(input)?), u32::from_le_bytes(take(input)?))),
            _ => return None,
        };
        Some(Answer { client, key: RequestKey { xid, procedure, user, hash }, reply: bytes })
    }
}

/// Takes `N` bytes from the front of `input`. Returns `None`, and leaves `input` as it was, if fewer are left.
fn take<const N: usize>(input: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = input.split_first_chunk()?;
    *input = rest;
    Some(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_they_were_written() {
        let clients = ["192.0.2.7", "2001:db8::7"].map(|address| address.parse().unwrap());
        for (client, user) in clients.into_iter().zip([None, Some((1000, u32::MAX))]) {
            let key = RequestKey { xid: 0x0102_0304, procedure: 8, user, hash: u64::MAX - 1 };
            for reply in [&b""[..], b"a reply"] {
                let answer = Answer { client, key, reply };
                let bytes = answer.encode();
                assert_eq!(Answer::decode(&bytes), Some(answer));
                let head = bytes.len() - reply.len();
                assert!((0..head).all(|len| Answer::decode(&bytes[..len]).is_none()));
            }
        }
        assert_eq!(Answer::decode(&[5; 60]), None);
    }
}
