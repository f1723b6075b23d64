//! Evaluators of both kinds of ACLs, written from acl(5) and RFC 8881, section 6.2.1, without the code of the mapping.

use crate::nfs4::kind;
use crate::{Ace, Permissions, PosixAcl, Who};

/// A file's owner and group, and a user.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    pub(crate) owner: u32,
    pub(crate) group: u32,
    pub(crate) uid: u32,
    /// Bit n: the user is in group n.
    pub(crate) gids: u32,
}

impl Identity {
    fn is_in(self, gid: u32) -> bool {
        self.gids >> gid & 1 != 0
    }
}

/// Returns every identity of three users and three groups.
pub(crate) fn identities() -> impl Iterator<Item = Identity> {
    (0..3 * 3 * 3 * 8).map(|n| Identity { owner: n % 3, group: n / 3 % 3, uid: n / 9 % 3, gids: n / 27 })
}

/// The access check algorithm of acl(5).
pub(crate) fn posix_permits(acl: &PosixAcl, user: Identity, wanted: Permissions) -> bool {
    let entries = acl.entries();
    let mask = entries.mask.unwrap_or(Permissions::ALL);
    if user.uid == user.owner {
        return entries.user_obj.contains(wanted);
    }
    if let Some(one) = entries.users.iter().find(|one| one.id == user.uid) {
        return (one.permissions & mask).contains(wanted);
    }
    let own = user.is_in(user.group).then_some(entries.group_obj);
    let named = entries.groups.iter().filter(|one| user.is_in(one.id)).map(|one| one.permissions);
    let matching: Vec<_> = own.into_iter().chain(named).collect();
    if matching.is_empty() {
        return entries.other.contains(wanted);
    }
    matching.into_iter().any(|permissions| (permissions & mask).contains(wanted))
}

/// Entries are processed in order until every wanted bit is allowed, or one is denied (RFC 8881, section 6.2.1).
pub(crate) fn nfs4_permits(aces: &[Ace], user: Identity, wanted: u32) -> bool {
    let mut missing = wanted;
    for ace in aces {
        let fits = match ace.who {
            Who::Owner => user.uid == user.owner,
            Who::OwningGroup => user.is_in(user.group),
            Who::Everyone => true,
            Who::User(uid) => uid == user.uid,
            Who::Group(gid) => user.is_in(gid),
        };
        if !fits {
            continue;
        }
        if ace.kind == kind::DENY && ace.mask & missing != 0 {
            return false;
        }
        if ace.kind == kind::ALLOW {
            missing &= !ace.mask;
        }
    }
    missing == 0
}
