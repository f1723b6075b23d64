//! Access control lists (RFC 8881, section 6.2). The numbers of types, flags and access bits are in `forebay-acl`.

use crate::array::Array;

/// Most entries of an access control list; decoding fails above it.
pub const MAX_ACES: usize = 1024;

xdr_struct! {
    /// `nfsace4`: an access control entry.
    pub struct Ace<'a> {
        /// Type of the entry. Decoding does not check it.
        pub kind: u32,
        /// Bits that tell where the entry applies.
        pub flag: u32,
        /// Bits of the operations.
        pub access_mask: u32,
        /// Name of the principal, such as `OWNER@` or `user@domain`.
        pub principal: &'a [u8],
    }
}

/// `fattr4_acl`: an access control list.
pub type Acl<'a> = Array<'a, Ace<'a>, MAX_ACES>;

xdr_struct! {
    /// `nfsacl41`: an access control list with flags, of the attributes `dacl` and `sacl`.
    pub struct Acl41<'a> {
        /// Flags of the list.
        pub flag: u32,
        /// Entries of the list.
        pub aces: Acl<'a>,
    }
}
