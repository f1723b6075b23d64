//! The permissions of an entry.

use std::fmt;
use std::ops::{BitAnd, BitOr, Not};

/// A set of the permissions read, write and execute.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Permissions(u8);

impl Permissions {
    /// No permission.
    pub const NONE: Self = Self(0);
    /// Execute a file, or search a directory.
    pub const EXECUTE: Self = Self(1);
    /// Write.
    pub const WRITE: Self = Self(2);
    /// Read.
    pub const READ: Self = Self(4);
    /// Read, write and execute.
    pub const ALL: Self = Self(7);

    /// Returns the permissions with the value `bits`, or `None` above 7.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Option<Self> {
        if bits <= 7 { Some(Self::truncated(bits)) } else { None }
    }

    /// Returns the permissions in the three lowest bits, and ignores the higher bits.
    #[must_use]
    pub const fn truncated(bits: u32) -> Self {
        Self((bits & 7) as u8)
    }

    /// Returns the value, 0 to 7.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0 as u32
    }

    /// Returns whether every permission of `other` is in this set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitAnd for Permissions {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for Permissions {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Not for Permissions {
    type Output = Self;

    fn not(self) -> Self {
        Self(!self.0 & 7)
    }
}

impl fmt::Debug for Permissions {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (letter, permission) in [('r', Self::READ), ('w', Self::WRITE), ('x', Self::EXECUTE)] {
            write!(out, "{}", if self.contains(permission) { letter } else { '-' })?;
        }
        Ok(())
    }
}
