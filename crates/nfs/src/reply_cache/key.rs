//! The key under which a reply is found again.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::request::Call;

/// The key of a request: transaction, procedure, user, and a hash of the arguments, the machine's name and the groups.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RequestKey {
    pub(crate) xid: u32,
    pub(crate) procedure: u32,
    /// Uid and gid of AUTH_SYS as the client sent them; none for AUTH_NONE.
    pub(crate) user: Option<(u32, u32)>,
    pub(crate) hash: u64,
}

/// The seed of the hash of a principal. The name of a machine is hashed with 0, so that none is like a principal.
const GSS_SEED: u64 = 6;

/// The bytes of the arguments that are hashed. Only large writes exceed this: hashing a MiB would cost a tenth of such
/// a write.
pub(super) const HASHED: usize = 64 << 10;

/// Returns the hash of a call's arguments. Of longer ones, hashes the first half of [`HASHED`] bytes, and as many at
/// the end.
pub(crate) fn hash(args: &[u8], seed: u64) -> u64 {
    if args.len() <= HASHED {
        return xxh3_64_with_seed(args, seed);
    }
    let first = xxh3_64_with_seed(&args[..HASHED / 2], seed ^ args.len() as u64);
    xxh3_64_with_seed(&args[args.len() - HASHED / 2..], first)
}

impl RequestKey {
    /// Returns the key of a call.
    pub(crate) fn of(call: &Call<'_>) -> Self {
        // The hash leaves out the stamp of AUTH_SYS: a client may change the stamp when it retransmits.
        let (user, seed) = match &call.head.user {
            Some(user) => {
                let groups = |seed, gid: &u32| xxh3_64_with_seed(&gid.to_le_bytes(), seed);
                let machine = xxh3_64(call.machine_name(user));
                (Some((user.uid, user.gid)), user.gids.as_slice().iter().fold(machine, groups))
            }
            None => (None, 0),
        };
        // A reply to a principal is for that principal: another one may have the same user.
        let seed = call.head.gss.as_ref().map_or(seed, |gss| xxh3_64_with_seed(&gss.principal, GSS_SEED));
        // The hash is in the cache's log. A version with another hash does not find the replies of this version.
        let hash = hash(call.rest(), seed);
        RequestKey { xid: call.xid(), procedure: call.head.procedure, user, hash }
    }
}
