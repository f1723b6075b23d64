//! From an NFSv4 ACL to POSIX ACLs.
//!
//! The entries are read in order. For each principal of the POSIX ACL, a [`Verdict`] collects the operations that are
//! allowed or denied; the first entry to name an operation decides it (RFC 8881, section 6.2.1). An entry counts for
//! these principals:
//!
//! | entry for | allows | denies |
//! |---|---|---|
//! | `OWNER@` | owner | owner |
//! | a user | that user | that user, owner |
//! | `GROUP@` | file's group | file's group, owner, every user and group that is or will be named |
//! | a group | that group | that group, file's group, owner, every user and group that is or will be named |
//! | `EVERYONE@` | all | all |
//!
//! A user who is denied may be the owner, and a member of a denied group may be any user. An entry that denies counts
//! for all of them, so that the POSIX ACL never grants more than the NFSv4 ACL. It counts only for operations that
//! no earlier entry has allowed to the denied principal.

use std::collections::BTreeMap;

use super::{Acls, MAX_ACES, Object, Refusal, permissions};
use crate::nfs4::{flag, kind};
use crate::{Ace, Entries, Invalid, Named, PosixAcl, Who};

/// Flags that make an entry a part of the default ACL. If a client sets one of the two, both are taken as set.
const INHERITABLE: u32 = flag::FILE_INHERIT | flag::DIRECTORY_INHERIT;
/// All flags that are accepted.
const SUPPORTED: u32 = INHERITABLE | flag::INHERIT_ONLY | flag::IDENTIFIER_GROUP;

/// Returns the POSIX ACLs that grant as much of `aces` as POSIX ACLs can express, and nothing else. Without inheritable
/// entries there is no default ACL. Without other entries, the access ACL grants nothing.
///
/// A default ACL needs entries for the owner, the file's group and other users. If the list has no inheritable entry
/// for one of these, it gets the permissions in the access ACL (setfacl(1) does this), except the denied ones.
///
/// # Errors
/// [`Refusal`] for an ACL that POSIX ACLs cannot express.
pub fn from_nfs4(aces: &[Ace], object: Object) -> Result<Acls, Refusal> {
    if aces.len() > MAX_ACES {
        return Err(Refusal::TooMany(aces.len()));
    }
    let mut access = State::default();
    let mut default = State::default();
    for ace in aces {
        check(ace, object)?;
        if ace.flags & flag::INHERIT_ONLY == 0 {
            access.apply(ace);
        }
        if ace.flags & INHERITABLE != 0 {
            default.apply(ace);
        }
    }
    let default = default.completed(&access).map(|state| state.acl(object)).transpose()?;
    Ok(Acls { access: access.acl(object)?, default })
}

/// Refuses an entry that POSIX ACLs cannot express.
fn check(ace: &Ace, object: Object) -> Result<(), Refusal> {
    if !matches!(ace.kind, kind::ALLOW | kind::DENY) {
        return Err(Refusal::Kind(ace.kind));
    }
    if ace.flags & !SUPPORTED != 0 {
        return Err(Refusal::Flags(ace.flags & !SUPPORTED));
    }
    match (ace.flags & INHERITABLE != 0, object) {
        (true, Object::File) => Err(Refusal::InheritableOnFile),
        (false, _) if ace.flags & flag::INHERIT_ONLY != 0 => Err(Refusal::InheritOnly),
        _ => Ok(()),
    }
}

/// The operations that are decided for a principal. No operation is in both sets.
#[derive(Debug, Clone, Copy, Default)]
struct Verdict {
    allowed: u32,
    denied: u32,
}

impl Verdict {
    /// Decides the operations of an entry that are still undecided.
    fn decide(&mut self, kind: u32, mask: u32) {
        match kind {
            kind::ALLOW => self.allowed |= mask & !self.denied,
            _ => self.denied |= mask & !self.allowed,
        }
    }
}

/// The verdicts for all principals of a POSIX ACL.
#[derive(Debug, Clone, Default)]
struct State {
    owner: Verdict,
    group: Verdict,
    /// Users that no entry names and that are in no group of the ACL.
    other: Verdict,
    /// The first verdict for a user or group that an entry names later.
    unnamed: Verdict,
    users: BTreeMap<u32, Verdict>,
    groups: BTreeMap<u32, Verdict>,
    /// The principals that entries have named. The default ACL is completed for the missing ones.
    names: Names,
}

/// The principals that occur in an ACL.
#[derive(Debug, Clone, Copy, Default)]
struct Names {
    any: bool,
    owner: bool,
    group: bool,
    everyone: bool,
}

impl State {
    /// Applies an entry to the subject that it names, and to all subjects that it includes.
    fn apply(&mut self, &Ace { kind, mask, who, .. }: &Ace) {
        self.names.any = true;
        let unnamed = self.unnamed;
        let own = match who {
            Who::Owner => {
                self.names.owner = true;
                &mut self.owner
            }
            Who::OwningGroup => {
                self.names.group = true;
                &mut self.group
            }
            Who::Everyone => {
                self.names.everyone = true;
                return self.everyone().for_each(|verdict| verdict.decide(kind, mask));
            }
            Who::User(uid) => self.users.entry(uid).or_insert(unnamed),
            Who::Group(gid) => self.groups.entry(gid).or_insert(unnamed),
        };
        own.decide(kind, mask);
        if kind == kind::DENY {
            let denied = mask & own.denied;
            self.deny_overlapping(who, denied);
        }
    }

    /// Denies operations to all principals that a denied user or a member of a denied group may be.
    fn deny_overlapping(&mut self, who: Who, denied: u32) {
        let deny = |verdict: &mut Verdict| verdict.decide(kind::DENY, denied);
        match who {
            Who::Owner | Who::Everyone => {}
            Who::User(_) => deny(&mut self.owner),
            Who::OwningGroup | Who::Group(_) => {
                [&mut self.owner, &mut self.group, &mut self.unnamed].into_iter().for_each(deny);
                self.users.values_mut().chain(self.groups.values_mut()).for_each(deny);
            }
        }
    }

    /// Returns the verdict for every principal.
    fn everyone(&mut self) -> impl Iterator<Item = &mut Verdict> {
        let single = [&mut self.owner, &mut self.group, &mut self.other, &mut self.unnamed];
        single.into_iter().chain(self.users.values_mut()).chain(self.groups.values_mut())
    }

    /// Completes a default ACL from the access ACL. Returns `None` if no entry is inheritable.
    fn completed(mut self, access: &Self) -> Option<Self> {
        let Names { any, owner, group, everyone } = self.names;
        for (is_named, verdict, of_access) in [
            (owner, &mut self.owner, access.owner),
            (group, &mut self.group, access.group),
            (everyone, &mut self.other, access.other),
        ] {
            if !is_named {
                verdict.allowed = of_access.allowed & !verdict.denied;
            }
        }
        any.then_some(self)
    }

    /// Returns the POSIX ACL with these verdicts. If a mask is needed, it is the union of the entries it applies to.
    fn acl(&self, object: Object) -> Result<PosixAcl, Invalid> {
        let granted = |verdict: &Verdict| permissions(verdict.allowed, object);
        let named = |verdicts: &BTreeMap<u32, Verdict>| -> Vec<Named> {
            verdicts.iter().map(|(&id, verdict)| Named { id, permissions: granted(verdict) }).collect()
        };
        let entries = Entries {
            user_obj: granted(&self.owner),
            users: named(&self.users),
            group_obj: granted(&self.group),
            groups: named(&self.groups),
            mask: Some(crate::Permissions::ALL),
            other: granted(&self.other),
        };
        PosixAcl::new(entries).map(|acl| acl.effective())
    }
}
