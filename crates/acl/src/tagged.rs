//! Entries with tags: the common form of extended attributes and of NFSACL lists.

use crate::{Entries, Named, Permissions, PosixAcl};

/// The tags of entries. Extended attributes and NFSACL use the same numbers.
pub mod tag {
    /// The file's owner.
    pub const USER_OBJ: u32 = 0x01;
    /// A named user.
    pub const USER: u32 = 0x02;
    /// The file's group.
    pub const GROUP_OBJ: u32 = 0x04;
    /// A named group.
    pub const GROUP: u32 = 0x08;
    /// The mask. Solaris calls it `CLASS_OBJ`.
    pub const MASK: u32 = 0x10;
    /// All other users.
    pub const OTHER: u32 = 0x20;
}

/// The identity of an entry without identity.
pub(crate) const NO_ID: u32 = u32::MAX;

/// The reason why entries are not a POSIX ACL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The length of an extended attribute does not fit.
    #[error("an ACL of {0} bytes is not a header of 4 bytes and entries of 8 bytes each")]
    Length(usize),
    /// The header of an extended attribute names another version than 2.
    #[error("an ACL has format version {0}; only version 2 is known")]
    Version(u32),
    /// A tag that is not in [`tag`].
    #[error("an ACL entry has the unknown tag {0:#x}")]
    Tag(u32),
    /// The entries of an extended attribute are not in the order of their tags.
    #[error("an ACL entry with tag {tag:#x} follows an entry with a higher tag")]
    Order {
        /// The tag of the later entry.
        tag: u32,
    },
    /// A value of permissions above 7.
    #[error("an ACL entry with tag {tag:#x} has the permissions {bits:#x}; the highest value is 7")]
    Permissions {
        /// The tag of the entry.
        tag: u32,
        /// The permissions of the entry.
        bits: u32,
    },
    /// An identity that an entry with this tag cannot have.
    #[error("an ACL entry with tag {tag:#x} cannot have the identity {id}")]
    Id {
        /// The tag of the entry.
        tag: u32,
        /// The identity of the entry.
        id: u32,
    },
    /// Two entries are for one user, for one group, or of one kind that may occur once.
    #[error("an ACL has two entries with tag {tag:#x} and the identity {id}")]
    Twice {
        /// The tag of both entries.
        tag: u32,
        /// The identity of both entries; `u32::MAX` if the entries have none.
        id: u32,
    },
    /// An entry is missing. The mask may be missing only if no entry is named.
    #[error("an ACL has no entry with tag {tag:#x}")]
    Missing {
        /// The tag of the missing entry.
        tag: u32,
    },
    /// There are more entries than the form can hold.
    #[error("an ACL has {count} entries; at most {max} are allowed")]
    TooMany {
        /// The number of entries.
        count: usize,
        /// The highest number allowed.
        max: usize,
    },
}

/// An entry with its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tagged {
    pub(crate) tag: u32,
    /// [`NO_ID`] if the entry is not named.
    pub(crate) id: u32,
    pub(crate) permissions: Permissions,
}

impl PosixAcl {
    /// Returns the entries in the order of their tags, named entries in the order of their numbers.
    pub(crate) fn tagged(&self) -> impl Iterator<Item = Tagged> {
        let Entries { user_obj, users, group_obj, groups, mask, other } = self.entries();
        let single = |tag, permissions: &Permissions| Tagged { tag, id: NO_ID, permissions: *permissions };
        let named = |tag| move |one: &Named| Tagged { tag, id: one.id, permissions: one.permissions };
        std::iter::once(single(tag::USER_OBJ, user_obj))
            .chain(users.iter().map(named(tag::USER)))
            .chain([single(tag::GROUP_OBJ, group_obj)])
            .chain(groups.iter().map(named(tag::GROUP)))
            .chain(mask.iter().map(move |mask| single(tag::MASK, mask)))
            .chain([single(tag::OTHER, other)])
    }

    /// Returns the ACL with these entries, which may come in any order.
    pub(crate) fn from_tagged(
        tagged: impl Iterator<Item = Result<Tagged, Invalid>>,
    ) -> Result<Self, Invalid> {
        let mut found = Found::default();
        for entry in tagged {
            found.add(entry?)?;
        }
        found.finish()
    }
}

/// The entries found so far.
#[derive(Default)]
struct Found {
    user_obj: Option<Permissions>,
    users: Vec<Named>,
    group_obj: Option<Permissions>,
    groups: Vec<Named>,
    mask: Option<Permissions>,
    other: Option<Permissions>,
}

impl Found {
    /// Adds an entry. An entry without a qualifier may come once.
    fn add(&mut self, entry: Tagged) -> Result<(), Invalid> {
        let Tagged { tag, id, permissions } = entry;
        let single = match tag {
            tag::USER_OBJ => &mut self.user_obj,
            tag::GROUP_OBJ => &mut self.group_obj,
            tag::MASK => &mut self.mask,
            tag::OTHER => &mut self.other,
            tag::USER | tag::GROUP => {
                let named = if tag == tag::USER { &mut self.users } else { &mut self.groups };
                named.push(Named { id, permissions });
                return Ok(());
            }
            _ => return Err(Invalid::Tag(tag)),
        };
        match single.replace(permissions) {
            Some(_) => Err(Invalid::Twice { tag, id: NO_ID }),
            None => Ok(()),
        }
    }

    /// Returns the list if it has the entries that every list must have.
    fn finish(self) -> Result<PosixAcl, Invalid> {
        let required = |tag, entry: Option<Permissions>| entry.ok_or(Invalid::Missing { tag });
        PosixAcl::new(Entries {
            user_obj: required(tag::USER_OBJ, self.user_obj)?,
            users: self.users,
            group_obj: required(tag::GROUP_OBJ, self.group_obj)?,
            groups: self.groups,
            mask: self.mask,
            other: required(tag::OTHER, self.other)?,
        })
    }
}
