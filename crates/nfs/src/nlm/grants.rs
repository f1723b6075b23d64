//! GRANTED: the call for a blocked lock that is free now, and the judgement of its answer.

use std::net::IpAddr;
use std::sync::Weak;
use std::time::Duration;

use forebay_clientstate::{Effects, Granted, LockKind};
use forebay_wire::Opaque;
use forebay_wire::nlm4::{self, Lock, Procedure, Res, Stats, TestArgs};
use forebay_wire::xdr::{Decode, Reader};

use super::calls::{Attempts, Job, Judge, Purpose, Then};
use super::convert::ip_address;
use super::dial::Failure;
use super::encoded;
use crate::shared::Shared;

/// The time after which GRANTED is not repeated any more. A client that still waits asks again by itself.
const GRANT_LIMIT: Duration = Duration::from_secs(90);
/// The time after which SM_NOTIFY is not repeated any more.
const NOTIFY_LIMIT: Duration = Duration::from_secs(900);

/// Returns the call for a grant. `own_name` is the name of this host.
pub(super) fn job(granted: &Granted, own_name: &[u8]) -> Option<Job> {
    let (offset, length) = granted.range.to_nlm();
    let alock = Lock {
        caller_name: Opaque(own_name),
        fh: Opaque(granted.file.handle()),
        oh: Opaque(granted.owner.opaque.as_bytes()),
        svid: granted.owner.svid,
        offset,
        length,
    };
    let exclusive = granted.kind == LockKind::Write;
    let args = TestArgs { cookie: Opaque(granted.cookie.as_bytes()), exclusive, alock };
    Some(Job {
        to: ip_address(&granted.owner.host)?,
        program: nlm4::PROGRAM,
        version: nlm4::VERSION,
        procedure: Procedure::Granted as u32,
        args: encoded(&args).ok()?,
        purpose: Purpose::Granted(granted.ticket),
    })
}

/// The judgement of an attempt at GRANTED.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judgement {
    /// The client has the lock.
    Accepted,
    /// The client does not want the lock: it is freed.
    Refused,
    /// The client is asked again.
    Again,
}

/// Judges an attempt at GRANTED.
///
/// | answer | an earlier attempt may have arrived | judgement |
/// |---|---|---|
/// | NLM4_GRANTED | | accepted |
/// | NLM4_DENIED_GRACE_PERIOD | | again |
/// | any other status | no | refused |
/// | any other status | yes | accepted: the client may have taken the lock when its answer got lost |
/// | none, within the limit | | again |
/// | none, after the limit | no, nor this one | refused |
/// | none, after the limit | yes, or this one | accepted: the host may hold the lock until it restarts |
fn judge(attempts: Attempts, age: Duration, answer: Result<Option<Stats>, Failure>) -> Judgement {
    let mut may_have_it = attempts.may_have_arrived;
    let answer = match answer {
        Ok(answer) => answer,
        Err(failure) => {
            may_have_it |= failure == Failure::Unanswered;
            if age < GRANT_LIMIT {
                return Judgement::Again;
            }
            None
        }
    };
    match answer {
        Some(Stats::Granted) => Judgement::Accepted,
        Some(Stats::DeniedGracePeriod) if age < GRANT_LIMIT => Judgement::Again,
        _ if may_have_it => Judgement::Accepted,
        _ => Judgement::Refused,
    }
}

impl Judge for Weak<Shared> {
    fn is_wanted(&self, purpose: Purpose) -> bool {
        let Some(shared) = self.upgrade() else { return false };
        match purpose {
            Purpose::Answer | Purpose::Notify | Purpose::EndOfGrace => true,
            Purpose::Granted(ticket) => {
                let Some(server) = &shared.nfs4 else { return false };
                if server.has_revocations() {
                    // The lock may have been granted by the passage of time, and the log may not have it yet.
                    server.log_and_wait(&shared.vfs, &mut Effects::default());
                }
                server.state().nlm_is_granting(ticket)
            }
        }
    }

    fn judge(&self, job: &Job, attempts: Attempts, result: Result<Vec<u8>, Failure>) -> Then {
        let Some(shared) = self.upgrade() else { return Then::Done };
        let age = attempts.since.elapsed();
        match job.purpose {
            Purpose::Answer | Purpose::EndOfGrace => Then::Done,
            Purpose::Notify if result.is_err() && age < NOTIFY_LIMIT => Then::Again,
            Purpose::Notify => {
                let server = shared.nfs4.as_ref();
                // If a kill comes before the host has its locks again, the next server tells it once more.
                match server.and_then(|server| server.state().grace_left(server.now())) {
                    Some(left) => Then::EndOfGraceIn(Duration::from_nanos(left)),
                    None => {
                        shared.notified(job.to);
                        Then::Done
                    }
                }
            }
            Purpose::Granted(ticket) => {
                let stat = |bytes: Vec<u8>| Res::decode(&mut Reader::new(&bytes)).ok().map(|res| res.stat);
                let is_accepted = match judge(attempts, age, result.map(stat)) {
                    Judgement::Again => return Then::Again,
                    Judgement::Accepted => true,
                    Judgement::Refused => false,
                };
                let _ = shared.change_state(|state, now, fx| state.nlm_granted(ticket, is_accepted, now, fx));
                Then::Done
            }
        }
    }

    fn end_of_grace(&self, to: IpAddr) {
        if let Some(shared) = self.upgrade() {
            shared.notified(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn answers_to_granted_case_by_case() {
        use Judgement::{Accepted, Again, Refused};
        let (soon, late) = (Duration::from_secs(1), GRANT_LIMIT);
        for (answer, may_have_arrived, age, expected) in [
            (Ok(Some(Stats::Granted)), false, soon, Accepted),
            (Ok(Some(Stats::Granted)), true, late, Accepted),
            (Ok(Some(Stats::DeniedGracePeriod)), false, soon, Again),
            (Ok(Some(Stats::DeniedGracePeriod)), false, late, Refused),
            (Ok(Some(Stats::Denied)), false, soon, Refused),
            (Ok(Some(Stats::Denied)), true, soon, Accepted),
            (Ok(None), false, soon, Refused),
            (Err(Failure::Unsent), false, soon, Again),
            (Err(Failure::Unanswered), false, soon, Again),
            (Err(Failure::Unsent), false, late, Refused),
            (Err(Failure::Unsent), true, late, Accepted),
            (Err(Failure::Unanswered), false, late, Accepted),
        ] {
            let attempts = Attempts { since: Instant::now(), made: 3, may_have_arrived };
            assert_eq!(judge(attempts, age, answer), expected, "{answer:?} {may_have_arrived} {age:?}");
        }
    }
}
