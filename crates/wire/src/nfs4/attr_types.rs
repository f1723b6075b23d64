//! Values of single attributes.

use super::bitmap::Bitmap;

xdr_struct! {
    /// `change_policy4`: the version of a file system's policy.
    pub struct ChangePolicy {
        /// Major number.
        pub major: u64,
        /// Minor number.
        pub minor: u64,
    }
}

xdr_struct! {
    /// `mode_masked4`: new values of some permission bits.
    pub struct ModeMasked {
        /// New values.
        pub value: u32,
        /// Bits that change.
        pub mask: u32,
    }
}

xdr_struct! {
    /// `mode_umask4`: the permission bits and the umask of a create (RFC 8275).
    pub struct ModeUmask {
        /// Permission bits.
        pub mode: u32,
        /// Bits that are cleared, unless the directory has a default access control list.
        pub umask: u32,
    }
}

xdr_enum! {
    /// `change_attr_type4`: the meaning of the attribute `change` (RFC 7862, section 12.2.3).
    pub enum ChangeAttrType("change_attr_type4") {
        /// The number grows.
        MonotonicIncr = 0,
        /// The number grows by one with each change.
        VersionCounter = 1,
        /// The number grows by one with each change, except with pNFS.
        VersionCounterNopnfs = 2,
        /// The number is the time of the last change of attributes.
        TimeMetadata = 3,
        /// The number has no order.
        Undefined = 4,
    }
}

xdr_struct! {
    /// `sec_label4`: a security label (RFC 7862, section 12.2.4).
    pub struct SecLabel<'a> {
        /// Identity of the label format.
        pub lfs: u32,
        /// Identity of the policy.
        pub pi: u32,
        /// The label.
        pub data: &'a [u8],
    }
}

xdr_struct! {
    /// `open_arguments4`: the arguments of OPEN that a server supports (RFC 9754).
    pub struct OpenArguments {
        /// Values of `share_access`.
        pub share_access: Bitmap,
        /// Values of `share_deny`.
        pub share_deny: Bitmap,
        /// Bit numbers of the wants in `share_access`.
        pub share_access_want: Bitmap,
        /// Types of claim.
        pub open_claim: Bitmap,
        /// Modes of create.
        pub create_mode: Bitmap,
    }
}
