//! POSIX ACLs (acl(5); IEEE 1003.1e draft 17, withdrawn).

use crate::tagged::{Invalid, NO_ID, tag};
use crate::{Permissions, xattr};

/// Most entries of an ACL: as many as an extended attribute of 64 KiB holds.
pub const MAX_ENTRIES: usize = (65536 - xattr::HEADER) / xattr::ENTRY;

/// The entry of a named user or of a named group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    /// The user's or group's number. It is below `u32::MAX`, which Linux uses for "no identity".
    pub id: u32,
    /// The permissions before the mask applies.
    pub permissions: Permissions,
}

/// The entries of an ACL, valid or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entries {
    /// The permissions of the file's owner. The mask does not apply to them.
    pub user_obj: Permissions,
    /// Named users.
    pub users: Vec<Named>,
    /// The permissions of the file's group, before the mask applies.
    pub group_obj: Permissions,
    /// Named groups.
    pub groups: Vec<Named>,
    /// The most that `users`, `group_obj` and `groups` grant. An ACL with named entries must have it.
    pub mask: Option<Permissions>,
    /// The permissions of all other users.
    pub other: Permissions,
}

/// A valid ACL: named users and named groups are sorted and unique, and a mask is present if an entry is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PosixAcl(Entries);

impl PosixAcl {
    /// Sorts the named entries by their numbers, and validates all entries.
    ///
    /// # Errors
    /// [`Invalid`] for a number that occurs twice or is `u32::MAX`, for named entries without a mask, and for more than
    /// [`MAX_ENTRIES`].
    pub fn new(mut entries: Entries) -> Result<Self, Invalid> {
        for (tag, named) in [(tag::USER, &mut entries.users), (tag::GROUP, &mut entries.groups)] {
            named.sort_unstable_by_key(|one| one.id);
            if let Some(twice) = named.windows(2).find(|pair| pair[0].id == pair[1].id) {
                return Err(Invalid::Twice { tag, id: twice[0].id });
            }
            if named.last().is_some_and(|last| last.id == NO_ID) {
                return Err(Invalid::Id { tag, id: NO_ID });
            }
        }
        let acl = Self(entries);
        if acl.0.mask.is_none() && acl.named().next().is_some() {
            return Err(Invalid::Missing { tag: tag::MASK });
        }
        if acl.count() > MAX_ENTRIES {
            return Err(Invalid::TooMany { count: acl.count(), max: MAX_ENTRIES });
        }
        Ok(acl)
    }

    /// Returns the ACL with three entries that means the lowest nine bits of `mode`.
    #[must_use]
    pub const fn from_mode(mode: u32) -> Self {
        Self(Entries {
            user_obj: Permissions::truncated(mode >> 6),
            users: Vec::new(),
            group_obj: Permissions::truncated(mode >> 3),
            groups: Vec::new(),
            mask: None,
            other: Permissions::truncated(mode),
        })
    }

    /// Returns the entries.
    #[must_use]
    pub const fn entries(&self) -> &Entries {
        &self.0
    }

    /// Returns the entries, which may then be changed and validated again.
    #[must_use]
    pub fn into_entries(self) -> Entries {
        self.0
    }

    /// Returns the number of entries, 3 to [`MAX_ENTRIES`].
    #[must_use]
    pub fn count(&self) -> usize {
        3 + self.0.users.len() + self.0.groups.len() + usize::from(self.0.mask.is_some())
    }

    /// Returns the nine permission bits that a file with this access ACL has. The mask, if present, is in the place of
    /// the group's permissions (acl(5), "Correspondence between ACL entries and file permission bits").
    #[must_use]
    pub fn mode(&self) -> u32 {
        let Entries { user_obj, group_obj, mask, other, .. } = &self.0;
        user_obj.bits() << 6 | mask.unwrap_or(*group_obj).bits() << 3 | other.bits()
    }

    /// Returns whether [`mode`](Self::mode) says everything that the ACL says. Linux then stores no ACL.
    #[must_use]
    pub fn is_minimal(&self) -> bool {
        self.0.mask.is_none()
    }

    /// Changes the ACL as chmod(2) does: the group bits of `mode` become the mask if a mask is present, otherwise the
    /// permissions of the file's group (acl(5), the correspondence with the permission bits).
    pub fn set_mode(&mut self, mode: u32) {
        self.0.user_obj = Permissions::truncated(mode >> 6);
        *self.0.mask.as_mut().unwrap_or(&mut self.0.group_obj) = Permissions::truncated(mode >> 3);
        self.0.other = Permissions::truncated(mode);
    }

    /// Returns the ACL that grants the same permissions with the tightest mask. The mask is applied to each entry. Then
    /// the mask becomes the union of these entries, or is dropped if no entry is named.
    ///
    /// An NFSv4 ACL has no mask, so this is the ACL that a mapping to NFSv4 and back returns.
    #[must_use]
    pub fn effective(&self) -> Self {
        let mut entries = self.0.clone();
        let limit = entries.mask.unwrap_or(Permissions::ALL);
        entries.group_obj = entries.group_obj & limit;
        for named in entries.users.iter_mut().chain(&mut entries.groups) {
            named.permissions = named.permissions & limit;
        }
        Self(entries).with_tight_mask()
    }

    /// Makes the mask the union of all entries to which it applies, or drops it if no entry is named.
    fn with_tight_mask(mut self) -> Self {
        let is_named = self.named().next().is_some();
        let union = self.named().fold(self.0.group_obj, |union, one| union | one.permissions);
        self.0.mask = is_named.then_some(union);
        self
    }

    /// Returns the named users, then the named groups.
    pub(crate) fn named(&self) -> impl Iterator<Item = &Named> {
        self.0.users.iter().chain(&self.0.groups)
    }
}
