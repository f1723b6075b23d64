//! From POSIX ACLs to an NFSv4 ACL.
//!
//! A POSIX ACL chooses the first class of entries that fits the user. An NFSv4 ACL looks at all entries that fit, one
//! after the other. So an entry that allows too little must be joined by an entry that denies the rest, but only the
//! permissions that a later entry grants.
//!
//! | POSIX entry | entries, in this order | denied: the permissions that the entry lacks, and that are granted to |
//! |---|---|---|
//! | owner | deny, allow | named users, file's group, named groups, other users |
//! | each named user | deny, allow | file's group, named groups, other users |
//! | file's group, each named group | all allow entries, then all deny entries | other users |
//! | other users | allow for `EVERYONE@` | nothing follows |
//!
//! The groups' allow entries come first, because a user in two groups has the permissions of both. The mask is applied
//! to all entries before that.

use super::{Acls, Object, operations};
use crate::nfs4::{flag, kind, mask};
use crate::{Ace, Entries, Named, Permissions, PosixAcl, Who};

/// Operations that every principal is allowed.
const ALWAYS: u32 = mask::READ_ATTRIBUTES | mask::READ_ACL | mask::SYNCHRONIZE;
/// Operations that the owner is allowed in addition.
const OWNER: u32 = mask::WRITE_ATTRIBUTES | mask::WRITE_ACL;
/// Flags of the entries of a default ACL.
const DEFAULT: u32 = flag::FILE_INHERIT | flag::DIRECTORY_INHERIT | flag::INHERIT_ONLY;

/// Returns the NFSv4 ACL that means `acls`. The entries of the default ACL come last; a file's default ACL is ignored.
#[must_use]
pub fn to_nfs4(acls: &Acls, object: Object) -> Vec<Ace> {
    let mut out = Output { aces: Vec::new(), flags: 0, object };
    out.acl(&acls.access);
    if let (Some(default), Object::Directory) = (&acls.default, object) {
        out.flags = DEFAULT;
        out.acl(default);
    }
    out.aces
}

/// The entries so far.
struct Output {
    aces: Vec<Ace>,
    /// The flags of each further entry.
    flags: u32,
    object: Object,
}

impl Output {
    /// Appends the entries of a list. Each subject is denied what later entries would allow it.
    fn acl(&mut self, acl: &PosixAcl) {
        let acl = acl.effective();
        let Entries { user_obj, users, group_obj, groups, other, .. } = acl.entries();
        let union = |named: &[Named]| named.iter().fold(Permissions::NONE, |set, one| set | one.permissions);
        let after_users = *group_obj | union(groups) | *other;

        self.deny(Who::Owner, !*user_obj & (union(users) | after_users));
        self.allow(Who::Owner, *user_obj);
        for &Named { id, permissions } in users {
            self.deny(Who::User(id), !permissions & after_users);
            self.allow(Who::User(id), permissions);
        }
        let named = groups.iter().map(|one| (Who::Group(one.id), one.permissions));
        let groups: Vec<_> = std::iter::once((Who::OwningGroup, *group_obj)).chain(named).collect();
        for &(group, permissions) in &groups {
            self.allow(group, permissions);
        }
        for &(group, permissions) in &groups {
            self.deny(group, !permissions & *other);
        }
        self.allow(Who::Everyone, *other);
    }

    fn allow(&mut self, who: Who, permissions: Permissions) {
        let always = if who == Who::Owner { ALWAYS | OWNER } else { ALWAYS };
        self.push(kind::ALLOW, who, operations(permissions, self.object) | always);
    }

    /// Appends an entry that denies permissions, if there are any.
    fn deny(&mut self, who: Who, permissions: Permissions) {
        if !permissions.is_empty() {
            self.push(kind::DENY, who, operations(permissions, self.object));
        }
    }

    fn push(&mut self, kind: u32, who: Who, mask: u32) {
        let group = if matches!(who, Who::Group(_)) { flag::IDENTIFIER_GROUP } else { 0 };
        self.aces.push(Ace { kind, flags: self.flags | group, mask, who });
    }
}
