//! Properties of an object besides its attributes: its access control list, and the inherited attributes that the
//! kernel gives a new object.

use crate::Name;
use crate::codec::{Reader, put_name};

/// The statement of the log about the access rights to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// The change did not set mode, owner and group, and recovery leaves them as they are. An administrator on the host
    /// may have changed them, and the access control list with them. A crash may lose such a change.
    Kept,
    /// The change set the mode, the owner or the group. The other properties are unknown: the record has an older
    /// version.
    Set,
    /// The change set mode, owner or group; the value holds the other properties of the object after the change.
    Given(Box<Given>),
}

/// The properties of an object besides its attributes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// The access control list, in the format of the extended attribute `system.posix_acl_access`. `None` if the object
    /// has no list: then the mode's group bits are the rights of the group. With a list, those bits bound the rights
    /// that the list grants.
    pub acl: Option<Box<[u8]>>,
    /// The other extended attributes, if the change made the object.
    pub xattrs: Vec<(Name, Box<[u8]>)>,
    /// The flags, if the change made the object and it has flags.
    pub flags: Option<Flags>,
}

/// The flags of an object, and its project.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// `fsx_xflags` of FS_IOC_FSGETXATTR.
    pub extended: u32,
    /// `fsx_extsize`, in bytes.
    pub extent: u32,
    /// `fsx_cowextsize`, in bytes.
    pub shared_extent: u32,
    /// `fsx_projid`.
    pub project: u32,
    /// The flags of FS_IOC_GETFLAGS; 0 if `extended` tells all flags of the file system.
    pub inode: u32,
}

const ACL: u8 = 1;
const FLAGS: u8 = 2;

impl Given {
    /// Returns the length of the encoding in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        let mut out = Vec::new();
        self.encode(&mut out);
        out.len()
    }

    /// Returns true if the object has nothing besides its attributes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Given::default()
    }

    /// Appends the attributes in the format of a record.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.acl.as_ref().map_or(0, |_| ACL) | self.flags.map_or(0, |_| FLAGS));
        self.acl.iter().for_each(|acl| put_value(acl, out));
        if let Some(Flags { extended, extent, shared_extent, project, inode }) = self.flags {
            let fields = [extended, extent, shared_extent, project, inode];
            fields.iter().for_each(|field| out.extend_from_slice(&field.to_le_bytes()));
        }
        // The count fits: an object with more than 255 extended attributes is too long for a record.
        out.push(self.xattrs.len() as u8);
        for (name, value) in &self.xattrs {
            put_name(name, out);
            put_value(value, out);
        }
    }

    /// Takes the attributes; `None` if the bytes are not those of a record.
    pub(crate) fn decode(input: &mut Reader<'_>) -> Option<Self> {
        let has = input.u8()?;
        if has & !(ACL | FLAGS) != 0 {
            return None;
        }
        let acl = if has & ACL != 0 { Some(value(input)?) } else { None };
        let mut field = || input.u32();
        let flags = if has & FLAGS != 0 {
            let (extended, extent, shared_extent) = (field()?, field()?, field()?);
            Some(Flags { extended, extent, shared_extent, project: field()?, inode: field()? })
        } else {
            None
        };
        let count = input.u8()?;
        let xattrs = (0..count).map(|_| Some((input.name()?, value(input)?))).collect::<Option<_>>()?;
        Some(Given { acl, xattrs, flags })
    }
}

/// Appends a value with its length in front, in 2 bytes.
fn put_value(value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
}

/// Takes a value with its length in front; `None` if the bytes are too few.
fn value(input: &mut Reader<'_>) -> Option<Box<[u8]>> {
    let len = u16::from_le_bytes(input.array()?);
    Some(input.bytes(len.into())?.into())
}
