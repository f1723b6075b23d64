//! ACCESS (RFC 8881 section 18.1).

use forebay_rpc::Reply;
use forebay_vfs::{Access, CachedAttr, Export, FileType};
use forebay_wire::nfs4::{AccessOk, Opcode, access};

use super::compound::{Compound, Context, Stop, put};
use super::place::{Place, Reached};

/// The bits of RFC 8276.
const XATTRS: u32 = access::XAREAD | access::XAWRITE | access::XALIST;
/// The bits that the server knows.
const ALL: u32 = access::READ
    | access::LOOKUP
    | access::MODIFY
    | access::EXTEND
    | access::DELETE
    | access::EXECUTE
    | XATTRS;

/// The rights that an ACCESS asks for, of those that an object of this kind can have.
struct Rights {
    supported: u32,
    is_dir: bool,
}

impl Rights {
    /// Returns the rights that the bits of a request ask for.
    fn of(bits: u32, kind: FileType, has_xattrs: bool) -> Self {
        let is_dir = kind == FileType::Directory;
        // A directory is not executed, and a file is not looked up in (RFC 8881 section 18.1.3).
        let none = if is_dir { access::EXECUTE } else { access::LOOKUP | access::DELETE };
        let has_xattrs = has_xattrs && (is_dir || kind == FileType::RegularFile);
        Rights { supported: bits & ALL & !none & !if has_xattrs { 0 } else { XATTRS }, is_dir }
    }

    /// Returns the access to ask the kernel for.
    fn asked(&self, read_only: bool) -> Access {
        let any = |some: u32| self.supported & some != 0;
        let writes = any(access::MODIFY | access::EXTEND | access::DELETE);
        Access {
            read: any(access::READ | access::XAREAD | access::XALIST),
            write: (writes || any(access::XAWRITE)) && !read_only,
            execute: any(access::LOOKUP | access::EXECUTE) || self.is_dir && writes,
        }
    }

    /// Returns the result, from the access that the kernel grants.
    fn granted(&self, may: Access) -> AccessOk {
        let may_write = may.write && (!self.is_dir || may.execute);
        let bit = |on: bool, bits: u32| if on { bits } else { 0 };
        let granted = bit(may.read, access::READ | access::XAREAD | access::XALIST)
            | bit(may.write, access::XAWRITE)
            | bit(may.execute, access::LOOKUP | access::EXECUTE)
            | bit(may_write, access::MODIFY | access::EXTEND | access::DELETE);
        AccessOk { supported: self.supported, access: self.supported & granted }
    }
}

impl Compound {
    /// Executes ACCESS. The kernel decides about each right.
    pub(super) fn access(&mut self, cx: &Context<'_>, bits: u32, reply: &mut Reply<'_>) -> Result<(), Stop> {
        let is_version_2 = self.is_version_2();
        let place = self.place()?;
        place.reach(cx)?;
        let body = match place {
            Place::Above(_) => {
                AccessOk { supported: bits & ALL & !XATTRS, access: bits & (access::READ | access::LOOKUP) }
            }
            Place::Inode(wire, Reached::Cached(caller)) => {
                let answer = |export: &Export, known: &CachedAttr| {
                    let rights = Rights::of(bits, known.attr.kind, is_version_2 && export.supports_xattrs());
                    Some(rights.granted(known.access(&caller.cred, rights.asked(caller.read_only))?))
                };
                cx.shared.vfs.known(wire.as_bytes(), answer).ok_or(Stop::Later)?
            }
            Place::Inode(..) => {
                let at = place.resolve(cx)?;
                let has_xattrs = is_version_2 && at.target.export.supports_xattrs();
                let rights = Rights::of(bits, at.target.object.kind(), has_xattrs);
                let asked = rights.asked(at.caller.read_only);
                let (may, _) = cx.shared.vfs.access(&at.target, &at.caller.cred, asked, cx.wait)?;
                rights.granted(may)
            }
        };
        put(&mut self.reply, reply.head(), Opcode::Access, &body);
        Ok(())
    }
}
