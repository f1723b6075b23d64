//! Extended attributes and access control lists of an inode.
//!
//! The kernel judges the caller for every change, and for the values of extended attributes. A list of names needs the
//! permission to read. Reading an access control list needs none, as on the host.
//!
//! The cache's log has no records of these changes: docs/decisions/048-acls-and-xattrs.md.

use std::ffi::{CStr, CString};

use rustix::fs::{FileType, XattrFlags};
use rustix::io::Errno;

use crate::caches::access_cache::want;
use crate::cred::Cred;
use crate::error::{Error, Result};
use crate::export::inherited::{ACL, list, value};
use crate::export::vfs::Vfs;
use crate::export::{Export, Target};
use crate::ops::change::{Changed, metadata};
use crate::sys::proc_path;
use crate::wait::Wait;

/// The attribute with the access control list that new inodes in a directory inherit.
const DEFAULT_ACL: &CStr = c"system.posix_acl_default";
/// The name space of the attributes that clients see.
const USER: &[u8] = b"user.";
/// The beginning of the names, without [`USER`], of the server's own attributes. Clients do not see these attributes.
const OWN: &[u8] = b"forebay.";
/// The longest name that Linux takes, in bytes, with its name space.
const NAME_MAX: usize = 255;

/// The existence that a change of an extended attribute requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMust {
    /// The attribute may exist or not.
    Any,
    /// The attribute must not exist.
    BeNew,
    /// The attribute must exist.
    Exist,
}

/// The access control lists of an inode, in the format of the extended attributes `system.posix_acl_access` and
/// `system.posix_acl_default`. `None` stands for no list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AclBytes {
    /// The list that controls access. Without it, the mode does.
    pub access: Option<Box<[u8]>>,
    /// The list that new inodes in the directory inherit.
    pub default: Option<Box<[u8]>>,
}

/// The access control lists that a caller sets. The outer `None` leaves a list as it is, the inner one removes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAcls {
    /// The list that controls access.
    pub access: Option<Option<Vec<u8>>>,
    /// The list that new inodes in the directory inherit.
    pub default: Option<Option<Vec<u8>>>,
}

impl Export {
    /// Returns true if inodes of the backing file system can have POSIX access control lists.
    pub fn supports_acls(&self) -> bool {
        self.fs.has_acls
    }

    /// Returns true if files and directories of the backing file system can have extended attributes of users.
    pub fn supports_xattrs(&self) -> bool {
        self.fs.has_xattrs
    }
}

/// Returns the kernel's name of a client's attribute.
fn full_name(name: &[u8]) -> Result<CString> {
    if name.is_empty() {
        return Err(Error::INVALID);
    }
    if name.len() > NAME_MAX - USER.len() {
        return Err(Error::Os(Errno::NAMETOOLONG));
    }
    CString::new([USER, name].concat()).map_err(|_| Error::INVALID)
}

/// Fails for an inode that cannot have extended attributes of users.
fn require_xattrs(target: &Target) -> Result<()> {
    match target.object.kind() {
        FileType::RegularFile | FileType::Directory if target.export.supports_xattrs() => Ok(()),
        FileType::RegularFile | FileType::Directory => Err(Error::Os(Errno::OPNOTSUPP)),
        _ => Err(Error::Os(Errno::PERM)),
    }
}

impl Vfs {
    /// Returns the value of a user's extended attribute. The name has no name space.
    pub fn xattr(&self, target: &Target, cred: &Cred, name: &[u8]) -> Result<Box<[u8]>> {
        const NONE: Error = Error::Os(Errno::NODATA);
        let full = full_name(name)?;
        require_xattrs(target)?;
        if name.starts_with(OWN) {
            return Err(NONE);
        }
        let mut path = [0; 32];
        let _acting = self.act_as(cred)?;
        value(proc_path(&mut path, target.object.path()), None, &full)?.ok_or(NONE)
    }

    /// Returns the names of the users' extended attributes, without the name space. Names of the server are left out.
    pub fn xattr_names(&self, target: &Target, cred: &Cred) -> Result<Vec<Vec<u8>>> {
        require_xattrs(target)?;
        let attr = target.attr()?;
        self.require(target, cred, &attr, want::READ, Wait::Yes)?;
        let mut path = [0; 32];
        let all = list(proc_path(&mut path, target.object.path()), None)?;
        let names = all.split(|byte| *byte == 0).filter_map(|name| name.strip_prefix(USER));
        Ok(names.filter(|name| !name.is_empty() && !name.starts_with(OWN)).map(<[u8]>::to_vec).collect())
    }

    /// Sets a user's extended attribute.
    pub fn set_xattr(
        &self,
        target: &Target,
        cred: &Cred,
        name: &[u8],
        value: &[u8],
        must: XattrMust,
    ) -> Changed<()> {
        let flags = match must {
            XattrMust::Any => XattrFlags::empty(),
            XattrMust::BeNew => XattrFlags::CREATE,
            XattrMust::Exist => XattrFlags::REPLACE,
        };
        let own = if name.starts_with(OWN) { Err(Error::ACCESS) } else { Ok(()) };
        let name = own.and(require_xattrs(target)).and_then(|()| full_name(name));
        self.change_xattrs(target, cred, |path, changed| {
            rustix::fs::setxattr(path, &*name?, value, flags)?;
            *changed = true;
            Ok(())
        })
    }

    /// Removes a user's extended attribute.
    pub fn remove_xattr(&self, target: &Target, cred: &Cred, name: &[u8]) -> Changed<()> {
        let own = if name.starts_with(OWN) { Err(Error::Os(Errno::NODATA)) } else { Ok(()) };
        let name = own.and(require_xattrs(target)).and_then(|()| full_name(name));
        self.change_xattrs(target, cred, |path, changed| {
            rustix::fs::removexattr(path, &*name?)?;
            *changed = true;
            Ok(())
        })
    }

    /// Returns the access control lists of an inode.
    pub fn acls(&self, target: &Target) -> Result<AclBytes> {
        let mut path = [0; 32];
        let path = proc_path(&mut path, target.object.path());
        Ok(match target.object.kind() {
            FileType::Symlink => AclBytes::default(),
            FileType::Directory => {
                AclBytes { access: value(path, None, ACL)?, default: value(path, None, DEFAULT_ACL)? }
            }
            _ => AclBytes { access: value(path, None, ACL)?, default: None },
        })
    }

    /// Sets access control lists. The kernel lets the owner and root do that, and derives the mode from the list.
    pub fn set_acls(&self, target: &Target, cred: &Cred, set: &SetAcls) -> Changed<()> {
        self.change_xattrs(target, cred, |path, changed| {
            if target.object.kind() == FileType::Symlink || !target.export.supports_acls() {
                return Err(Error::Os(Errno::OPNOTSUPP));
            }
            for (name, wanted) in [(ACL, &set.access), (DEFAULT_ACL, &set.default)] {
                let done = match wanted {
                    None => continue,
                    // Only a directory has a default list.
                    Some(None) if name == DEFAULT_ACL && !target.object.is_dir() => continue,
                    Some(None) => rustix::fs::removexattr(path, name),
                    Some(Some(list)) => rustix::fs::setxattr(path, name, list, XattrFlags::empty()),
                };
                match done {
                    Err(Errno::NODATA) => {}
                    done => {
                        done?;
                        *changed = true;
                    }
                }
            }
            Ok(())
        })
    }

    /// Changes extended attributes as the caller. `make` gets a path to the inode, and says if something may be another
    /// than before, also if its result is an error.
    fn change_xattrs(
        &self,
        target: &Target,
        cred: &Cred,
        make: impl FnOnce(&CStr, &mut bool) -> Result<()>,
    ) -> Changed<()> {
        let (object, fs) = (&target.object, &target.export.fs);
        if let Err(error) = fs.can_change() {
            return Changed { result: Err(error), wcc: self.wcc_of(target), intent: None };
        }
        // Only files that the cache knows can be outdated in it.
        let cached = object.link.get().is_some();
        let refreshed = if cached {
            target.attr().and_then(|attr| self.refresh(target, &attr, Wait::Yes))
        } else {
            Ok(())
        };
        let _alone = object.changing.write();
        let change = object.begin_change();
        let mut changed = false;
        let result = refreshed.and(change.before.map(drop)).and_then(|()| {
            let _own = fs.own_change(object);
            let _acting = self.act_as(cred)?;
            let mut path = [0; 32];
            make(proc_path(&mut path, object.path()), &mut changed)
        });
        // Recovery must neither recreate the inode without the change, nor carry out an earlier change of its mode.
        let recorded = fs.is_recorded_whole();
        let durable = if changed && recorded { fs.made_durable() } else { Ok(()) };
        if changed {
            change.made();
        }
        let wcc = change.end();
        let intent = (changed && !recorded).then(|| metadata(&[target], None));
        Changed { result: result.and(durable), wcc, intent }
    }
}
