//! File attributes (RFC 8881, section 5): their numbers, their values, and the container `fattr4`.

use super::acl::{Acl, Acl41};
use super::attr_types::{ChangeAttrType, ChangePolicy, ModeMasked, ModeUmask, OpenArguments, SecLabel};
use super::bitmap::Bitmap;
use super::status::Nfsstat4;
use super::types::{FsLocations, Fsid4, Ftype4, Handle, Nfstime4, SetTime4, Specdata4};
use crate::array::Array;
use crate::xdr::{Decode, DecodeError, Encode, Reader};

/// Most layout types of a file system; decoding fails above it.
pub const MAX_LAYOUT_TYPES: usize = 64;

macro_rules! attributes {
    (struct $name:ident<$lt:lifetime>;
     $($(#[$meta:meta])* $constant:ident $field:ident: $ty:ty = $number:literal,)*) => {
        $($(#[$meta])* pub const $constant: u32 = $number;)*

        /// The attributes that [`Attributes`] has a field for.
        pub const KNOWN: Bitmap = Bitmap::of(&[$($number),*]);

        /// Values of attributes, from the server or from the client. An attribute of `None` is absent.
        #[derive(Debug, Clone, PartialEq, Eq, Default)]
        #[cfg_attr(test, derive(arbitrary::Arbitrary))]
        pub struct $name<$lt> { $($(#[$meta])* pub $field: Option<$ty>,)* }

        impl<$lt> $name<$lt> {
            /// Returns the numbers of the attributes that are present.
            #[must_use]
            pub fn mask(&self) -> Bitmap {
                let mut mask = Bitmap::EMPTY;
                $(if self.$field.is_some() { mask.insert($number); })*
                mask
            }

            /// Returns the numbers of `wanted` whose attributes are present.
            fn present(&self, wanted: &Bitmap) -> Bitmap {
                let mut mask = Bitmap::EMPTY;
                for number in wanted.iter() {
                    let is_present = match number {
                        $($number => self.$field.is_some(),)*
                        _ => false,
                    };
                    if is_present {
                        mask.insert(number);
                    }
                }
                mask
            }

            /// Appends the value of an attribute. Appends nothing if the attribute is absent or unknown.
            fn encode_value(&self, number: u32, out: &mut Vec<u8>) {
                match number {
                    $($number => if let Some(value) = &self.$field { value.encode(out); })*
                    _ => {}
                }
            }

            /// Decodes the value of an attribute. Fails for an unknown number, because its length is not known.
            fn decode_value(&mut self, number: u32, input: &mut Reader<$lt>) -> Result<(), DecodeError> {
                match number {
                    $($number => self.$field = Some(Decode::decode(input)?),)*
                    value => return Err(DecodeError::UnknownValue { ty: "fattr4", value }),
                }
                Ok(())
            }
        }
    };
}

attributes! {
    struct Attributes<'a>;
    /// Attributes that the file system supports.
    SUPPORTED_ATTRS supported_attrs: Bitmap = 0,
    /// Type of the file.
    TYPE ftype: Ftype4 = 1,
    /// Lifetime of handles; 0 means that they persist.
    FH_EXPIRE_TYPE fh_expire_type: u32 = 2,
    /// Number that differs after each change of the object.
    CHANGE change: u64 = 3,
    /// Size in bytes.
    SIZE size: u64 = 4,
    /// True if the file system has hard links.
    LINK_SUPPORT link_support: bool = 5,
    /// True if the file system has symbolic links.
    SYMLINK_SUPPORT symlink_support: bool = 6,
    /// True if the object has named attributes.
    NAMED_ATTR named_attr: bool = 7,
    /// Identity of the file system.
    FSID fsid: Fsid4 = 8,
    /// True if two handles are never of one object.
    UNIQUE_HANDLES unique_handles: bool = 9,
    /// Duration of leases in seconds.
    LEASE_TIME lease_time: u32 = 10,
    /// The reason why READDIR has no other attributes of an entry.
    RDATTR_ERROR rdattr_error: Nfsstat4 = 11,
    /// Access control list.
    ACL acl: Acl<'a> = 12,
    /// Types of access control entries that are supported, as bits.
    ACLSUPPORT aclsupport: u32 = 13,
    /// True if the file was archived.
    ARCHIVE archive: bool = 14,
    /// True if SETATTR can set times.
    CANSETTIME cansettime: bool = 15,
    /// True if names that differ only in case are equal.
    CASE_INSENSITIVE case_insensitive: bool = 16,
    /// True if the case of names is kept.
    CASE_PRESERVING case_preserving: bool = 17,
    /// True if only a privileged user may give a file to another user.
    CHOWN_RESTRICTED chown_restricted: bool = 18,
    /// Handle of the object.
    FILEHANDLE filehandle: Handle<'a> = 19,
    /// Identity of the file within its file system.
    FILEID fileid: u64 = 20,
    /// File slots that this caller may use.
    FILES_AVAIL files_avail: u64 = 21,
    /// File slots that are free.
    FILES_FREE files_free: u64 = 22,
    /// File slots in total.
    FILES_TOTAL files_total: u64 = 23,
    /// Places of the file system.
    FS_LOCATIONS fs_locations: FsLocations<'a> = 24,
    /// True if the file is hidden.
    HIDDEN hidden: bool = 25,
    /// True if the attributes of the file system are equal for all objects.
    HOMOGENEOUS homogeneous: bool = 26,
    /// Largest size of a file in bytes.
    MAXFILESIZE maxfilesize: u64 = 27,
    /// Most hard links to an object.
    MAXLINK maxlink: u32 = 28,
    /// Longest name in bytes.
    MAXNAME maxname: u32 = 29,
    /// Largest size of a READ in bytes.
    MAXREAD maxread: u64 = 30,
    /// Largest size of a WRITE in bytes.
    MAXWRITE maxwrite: u64 = 31,
    /// MIME type of the content.
    MIMETYPE mimetype: &'a [u8] = 32,
    /// Permission bits.
    MODE mode: u32 = 33,
    /// True if a longer name is refused; false if it is cut.
    NO_TRUNC no_trunc: bool = 34,
    /// Hard links.
    NUMLINKS numlinks: u32 = 35,
    /// Owner, as a name or as a decimal number.
    OWNER owner: &'a [u8] = 36,
    /// Group, as a name or as a decimal number.
    OWNER_GROUP owner_group: &'a [u8] = 37,
    /// Bytes until the hard limit of the quota.
    QUOTA_AVAIL_HARD quota_avail_hard: u64 = 38,
    /// Bytes until the soft limit of the quota.
    QUOTA_AVAIL_SOFT quota_avail_soft: u64 = 39,
    /// Bytes that count against the quota.
    QUOTA_USED quota_used: u64 = 40,
    /// Device number of a block or character device.
    RAWDEV rawdev: Specdata4 = 41,
    /// Free bytes that this caller may use.
    SPACE_AVAIL space_avail: u64 = 42,
    /// Free bytes.
    SPACE_FREE space_free: u64 = 43,
    /// Bytes in total.
    SPACE_TOTAL space_total: u64 = 44,
    /// Bytes of storage that the file uses.
    SPACE_USED space_used: u64 = 45,
    /// True if the file is a system file.
    SYSTEM system: bool = 46,
    /// Last access.
    TIME_ACCESS time_access: Nfstime4 = 47,
    /// New time of the last access. Write-only.
    TIME_ACCESS_SET time_access_set: SetTime4 = 48,
    /// Last backup.
    TIME_BACKUP time_backup: Nfstime4 = 49,
    /// Creation.
    TIME_CREATE time_create: Nfstime4 = 50,
    /// Granularity of times.
    TIME_DELTA time_delta: Nfstime4 = 51,
    /// Last change of the attributes.
    TIME_METADATA time_metadata: Nfstime4 = 52,
    /// Last change of the content.
    TIME_MODIFY time_modify: Nfstime4 = 53,
    /// New time of the last change of the content. Write-only.
    TIME_MODIFY_SET time_modify_set: SetTime4 = 54,
    /// Identity of the directory on which the file system is mounted; otherwise the file's identity.
    MOUNTED_ON_FILEID mounted_on_fileid: u64 = 55,
    /// Delay of notifications of a directory's attributes.
    DIR_NOTIF_DELAY dir_notif_delay: Nfstime4 = 56,
    /// Delay of notifications of the attributes of entries.
    DIRENT_NOTIF_DELAY dirent_notif_delay: Nfstime4 = 57,
    /// Discretionary access control list.
    DACL dacl: Acl41<'a> = 58,
    /// System access control list.
    SACL sacl: Acl41<'a> = 59,
    /// Number that differs after a change of the file system's policy.
    CHANGE_POLICY change_policy: ChangePolicy = 60,
    /// Layout types of the file system.
    FS_LAYOUT_TYPES fs_layout_types: Array<'a, u32, MAX_LAYOUT_TYPES> = 62,
    /// Layout types of the file.
    LAYOUT_TYPES layout_types: Array<'a, u32, MAX_LAYOUT_TYPES> = 64,
    /// Preferred block size of layouts in bytes.
    LAYOUT_BLKSIZE layout_blksize: u32 = 65,
    /// Alignment of layouts in bytes.
    LAYOUT_ALIGNMENT layout_alignment: u32 = 66,
    /// Bits of the hold of the retention.
    RETENTION_HOLD retention_hold: u64 = 73,
    /// Some permission bits. Write-only.
    MODE_SET_MASKED mode_set_masked: ModeMasked = 74,
    /// Attributes that an exclusive create can set.
    SUPPATTR_EXCLCREAT suppattr_exclcreat: Bitmap = 75,
    /// Rules for the characters of names.
    FS_CHARSET_CAP fs_charset_cap: u32 = 76,
    /// Granularity of CLONE in bytes.
    CLONE_BLKSIZE clone_blksize: u32 = 77,
    /// Bytes that become free when the file is removed.
    SPACE_FREED space_freed: u64 = 78,
    /// Meaning of the attribute `change`.
    CHANGE_ATTR_TYPE change_attr_type: ChangeAttrType = 79,
    /// Security label.
    SEC_LABEL sec_label: SecLabel<'a> = 80,
    /// Permission bits and umask of a create (RFC 8275). Write-only.
    MODE_UMASK mode_umask: ModeUmask = 81,
    /// True if the object can have extended attributes (RFC 8276).
    XATTR_SUPPORT xattr_support: bool = 82,
    /// True if the content is offline (RFC 9754).
    OFFLINE offline: bool = 83,
    /// Last access, from the holder of a delegation (RFC 9754).
    TIME_DELEG_ACCESS time_deleg_access: Nfstime4 = 84,
    /// Last change of the content, from the holder of a delegation (RFC 9754).
    TIME_DELEG_MODIFY time_deleg_modify: Nfstime4 = 85,
    /// Arguments of OPEN that the server supports (RFC 9754).
    OPEN_ARGUMENTS open_arguments: OpenArguments = 86,
}

/// Status of the file system. [`Attributes`] has no field for it.
pub const FS_STATUS: u32 = 61;
/// Hint for layouts. [`Attributes`] has no field for it.
pub const LAYOUT_HINT: u32 = 63;
/// Places of the file system, with details. [`Attributes`] has no field for it.
pub const FS_LOCATIONS_INFO: u32 = 67;
/// Sizes from which layouts pay. [`Attributes`] has no field for it.
pub const MDSTHRESHOLD: u32 = 68;
/// Retention of the file. [`Attributes`] has no field for it.
pub const RETENTION_GET: u32 = 69;
/// New retention of the file. [`Attributes`] has no field for it.
pub const RETENTION_SET: u32 = 70;
/// Retention by events. [`Attributes`] has no field for it.
pub const RETENTEVT_GET: u32 = 71;
/// New retention by events. [`Attributes`] has no field for it.
pub const RETENTEVT_SET: u32 = 72;

/// Attributes that SETATTR, VERIFY and creates can send but GETATTR cannot ask for.
pub const WRITE_ONLY: Bitmap = Bitmap::of(&[
    TIME_ACCESS_SET,
    TIME_MODIFY_SET,
    RETENTION_SET,
    RETENTEVT_SET,
    MODE_SET_MASKED,
    MODE_UMASK,
]);

/// Attributes that the protocol lets a client set. All other attributes are read-only.
pub const SETTABLE: Bitmap = Bitmap::of(&[
    SIZE,
    ACL,
    ARCHIVE,
    HIDDEN,
    MIMETYPE,
    MODE,
    OWNER,
    OWNER_GROUP,
    SYSTEM,
    TIME_ACCESS_SET,
    TIME_BACKUP,
    TIME_CREATE,
    TIME_MODIFY_SET,
    DACL,
    SACL,
    LAYOUT_HINT,
    RETENTION_SET,
    RETENTEVT_SET,
    RETENTION_HOLD,
    MODE_SET_MASKED,
    SEC_LABEL,
    MODE_UMASK,
    TIME_DELEG_ACCESS,
    TIME_DELEG_MODIFY,
]);

/// `fattr4`: a set of attributes and their encoded values, in the order of their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fattr<'a> {
    /// The attributes.
    pub mask: Bitmap,
    /// True if the message has attributes above 95, which no server supports. The server answers
    /// NFS4ERR_ATTRNOTSUPP.
    pub unknown: bool,
    /// The encoded values.
    pub values: &'a [u8],
}

impl<'a> Fattr<'a> {
    /// Encodes `attributes` at the end of `buffer` and returns the container of them.
    pub fn encoded(buffer: &'a mut Vec<u8>, attributes: &Attributes<'_>) -> Self {
        let start = buffer.len();
        let mask = attributes.mask();
        attributes.encode_values(&mask, buffer);
        Self { mask, unknown: false, values: &buffer[start..] }
    }

    /// Decodes the values. The caller checks the mask first: against the attributes that it supports, and for a
    /// change against [`SETTABLE`].
    ///
    /// # Errors
    /// [`DecodeError`] if a value is malformed, if values are missing, or if bytes follow the last value.
    /// [`DecodeError::UnknownValue`] for an attribute that is not [`KNOWN`].
    pub fn attributes(&self) -> Result<Attributes<'a>, DecodeError> {
        let mut attributes = Attributes::default();
        let mut input = Reader::new(self.values);
        for number in self.mask.iter() {
            attributes.decode_value(number, &mut input)?;
        }
        match (self.unknown, input.remaining()) {
            (false, 0) => Ok(attributes),
            (true, _) => Err(DecodeError::UnknownValue { ty: "fattr4", value: 96 }),
            (false, left) => {
                Err(DecodeError::TooLong { length: self.values.len() as u32, max: self.values.len() - left })
            }
        }
    }
}

impl Attributes<'_> {
    /// Appends the values of `mask` in the order of their numbers. All of them must be present.
    fn encode_values(&self, mask: &Bitmap, out: &mut Vec<u8>) {
        for number in mask.iter() {
            self.encode_value(number, out);
        }
    }

    /// Appends a `fattr4` with the attributes of `request` that are present, and returns them.
    pub fn encode(&self, request: &Bitmap, out: &mut Vec<u8>) -> Bitmap {
        let mask = self.present(request);
        mask.encode(out);
        let length_at = out.len();
        0u32.encode(out);
        self.encode_values(&mask, out);
        let length = (out.len() - length_at - 4) as u32;
        out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
        mask
    }

    /// Returns true if the attributes of VERIFY or NVERIFY are equal to these. The encoded bytes are compared.
    /// `scratch` is overwritten. Returns `None` if an attribute of `wanted` is absent here.
    pub fn matches(&self, wanted: &Fattr<'_>, scratch: &mut Vec<u8>) -> Option<bool> {
        if wanted.unknown || !wanted.mask.is_subset(&self.mask()) {
            return None;
        }
        scratch.clear();
        self.encode_values(&wanted.mask, scratch);
        Some(scratch == wanted.values)
    }
}

impl Encode for Fattr<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        if self.unknown {
            4u32.encode(out);
            self.mask.0.iter().for_each(|word| word.encode(out));
            1u32.encode(out);
        } else {
            self.mask.encode(out);
        }
        self.values.encode(out);
    }
}

impl<'a> Decode<'a> for Fattr<'a> {
    fn decode(input: &mut Reader<'a>) -> Result<Self, DecodeError> {
        let (mask, unknown) = Bitmap::decode_with_rest(input)?;
        Ok(Self { mask, unknown, values: Decode::decode(input)? })
    }
}
