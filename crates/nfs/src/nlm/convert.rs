//! Conversions between NLM and the state of clients.

use std::net::IpAddr;

use forebay_clientstate::{
    Address, Conflict, HostKey, HostName, LockKind, LockOwner, NlmAnswer, NlmOwner, OwnerName, Range,
};
use forebay_wire::Opaque;
use forebay_wire::nfs3::Nfsstat3;
use forebay_wire::nlm4::{Holder, Lock, Stats, TestReply};

use crate::result::Stop;

/// Returns the host that calls itself `name` at `address`.
pub(super) fn host(name: &[u8], address: IpAddr) -> Option<HostKey> {
    Some(HostKey { name: HostName::new(name)?, address: state_address(address)? })
}

/// Returns an address as the state of clients has it: 4 or 16 bytes.
fn state_address(address: IpAddr) -> Option<Address> {
    match address {
        IpAddr::V4(address) => Address::new(&address.octets()),
        IpAddr::V6(address) => Address::new(&address.octets()),
    }
}

/// Returns the address of a host.
pub(super) fn ip_address(host: &HostKey) -> Option<IpAddr> {
    let bytes = host.address.as_bytes();
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// Returns the owner that a request names.
pub(super) fn owner(lock: &Lock<'_>, address: IpAddr) -> Option<NlmOwner> {
    let host = host(lock.caller_name.0, address)?;
    Some(NlmOwner { host, opaque: OwnerName::new(lock.oh.0)?, svid: lock.svid })
}

pub(super) fn range(lock: &Lock<'_>) -> Range {
    Range::nlm(lock.offset, lock.length)
}

pub(super) fn kind(is_exclusive: bool) -> LockKind {
    if is_exclusive { LockKind::Write } else { LockKind::Read }
}

/// Returns the status for an answer of the clients' state.
///
/// While a delegation is recalled, the client gets the status of a grace period: it waits and repeats the request.
pub(super) fn stat(answer: &NlmAnswer) -> Stats {
    match answer {
        NlmAnswer::Granted => Stats::Granted,
        NlmAnswer::Denied(_) => Stats::Denied,
        NlmAnswer::DeniedNoLocks => Stats::DeniedNolocks,
        NlmAnswer::Blocked => Stats::Blocked,
        NlmAnswer::DeniedGrace | NlmAnswer::Retry => Stats::DeniedGracePeriod,
        NlmAnswer::Deadlock => Stats::Deadlck,
    }
}

/// Returns the status for a request that did not reach the clients' state.
///
/// | reason | status |
/// |---|---|
/// | the handle names no file | NLM4_STALE_FH |
/// | an exclusive lock on a read-only export | NLM4_ROFS |
/// | the server is busy | NLM4_DENIED_GRACE_PERIOD: the client repeats the request |
/// | no rule of the export admits the client | NLM4_FAILED |
/// | the caller may not read the file, the handle is no regular file, any other reason | NLM4_FAILED |
pub(super) fn stopped(stop: Stop) -> Stats {
    match stop {
        Stop::Later | Stop::Fail(Nfsstat3::Jukebox) => Stats::DeniedGracePeriod,
        Stop::Fail(Nfsstat3::Stale | Nfsstat3::Badhandle) => Stats::StaleFh,
        Stop::Fail(Nfsstat3::Rofs) => Stats::Rofs,
        Stop::Garbage | Stop::Fail(_) => Stats::Failed,
    }
}

/// Returns the result of TEST without a holder.
pub(super) fn test_reply(stat: Stats) -> TestReply<'static> {
    match stat {
        Stats::Granted => TestReply::Granted,
        Stats::DeniedNolocks => TestReply::DeniedNolocks,
        Stats::Blocked => TestReply::Blocked,
        Stats::DeniedGracePeriod => TestReply::DeniedGracePeriod,
        Stats::Deadlck => TestReply::Deadlck,
        Stats::Rofs => TestReply::Rofs,
        Stats::StaleFh => TestReply::StaleFh,
        Stats::Fbig => TestReply::Fbig,
        Stats::Denied | Stats::Failed => TestReply::Failed,
    }
}

/// Returns the lock that is in the way, for the client. An NFSv4 owner has no process number.
pub(super) fn holder(conflict: &Conflict) -> Holder<'_> {
    let (offset, length) = conflict.range.to_nlm();
    let (svid, oh) = match &conflict.owner {
        LockOwner::V4(_, name) => (0, Opaque(name.as_bytes())),
        LockOwner::Nlm(owner) => (owner.svid, Opaque(owner.opaque.as_bytes())),
    };
    Holder { exclusive: conflict.kind == LockKind::Write, svid, oh, offset, length }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_requests_that_do_not_reach_the_state() {
        for (stop, stat) in [
            (Stop::Later, Stats::DeniedGracePeriod),
            (Stop::Fail(Nfsstat3::Jukebox), Stats::DeniedGracePeriod),
            (Stop::Fail(Nfsstat3::Stale), Stats::StaleFh),
            (Stop::Fail(Nfsstat3::Badhandle), Stats::StaleFh),
            (Stop::Fail(Nfsstat3::Rofs), Stats::Rofs),
            (Stop::Fail(Nfsstat3::Acces), Stats::Failed),
            (Stop::Fail(Nfsstat3::Inval), Stats::Failed),
        ] {
            assert_eq!(stopped(stop), stat, "{stop:?}");
        }
    }

    #[test]
    fn statuses_of_answers() {
        for (answer, expected) in [
            (NlmAnswer::Granted, Stats::Granted),
            (NlmAnswer::Denied(None), Stats::Denied),
            (NlmAnswer::DeniedNoLocks, Stats::DeniedNolocks),
            (NlmAnswer::Blocked, Stats::Blocked),
            (NlmAnswer::DeniedGrace, Stats::DeniedGracePeriod),
            (NlmAnswer::Retry, Stats::DeniedGracePeriod),
            (NlmAnswer::Deadlock, Stats::Deadlck),
        ] {
            assert_eq!(stat(&answer), expected, "{answer:?}");
        }
    }

    #[test]
    fn an_address_survives_the_state() {
        for text in ["192.0.2.7", "2001:db8::7"] {
            let address: IpAddr = text.parse().unwrap();
            assert_eq!(ip_address(&host(b"name", address).unwrap()), Some(address));
        }
    }
}
