//! READDIR (RFC 8881 section 18.23).

use forebay_rpc::Reply;
use forebay_vfs::Wait;
use forebay_wire::nfs4::{Attributes, Bitmap, Listing, Nfsstat4, Opcode, ReaddirArgs, attr};

use super::acl;
use super::attrs::{Described, LIST, SUPPORTED, Scratch, describe, describe_above};
use super::compound::{Compound, Context, Stop};
use super::names::require_dir;
use super::owner_names::Names;
use super::place::{Place, admit, may_wait};
use super::pseudo::Entry;
use crate::MAX_TRANSFER;
use crate::convert::handle;

/// The attributes that need no look at an entry's inode.
const CHEAP: Bitmap = Bitmap::of(&[attr::RDATTR_ERROR, attr::MOUNTED_ON_FILEID, attr::FILEID]);
/// The cookies 0, 1 and 2 have a meaning of their own to clients.
const FIRST_COOKIE: u64 = 3;

impl Compound {
    /// Executes READDIR. Each entry has the attributes that the client asks for.
    pub(super) fn readdir(
        &mut self,
        cx: &Context<'_>,
        args: &ReaddirArgs,
        reply: &mut Reply<'_>,
    ) -> Result<(), Stop> {
        if !(args.request & attr::WRITE_ONLY).is_empty() {
            return Err(Stop::Fail(Nfsstat4::Inval));
        }
        // Cookies 1 and 2 are never given out.
        if matches!(args.cookie, 1 | 2) {
            return Err(Stop::Fail(Nfsstat4::BadCookie));
        }
        let client = self.client()?;
        let room = self.reply.room(reply.head());
        let most = (args.maxcount.min(MAX_TRANSFER) as usize).min(room);
        let request = args.request & SUPPORTED;
        let names = Names::asked(cx, &request);
        self.reply.start(reply.head(), Opcode::Readdir);
        match self.place()? {
            Place::Above(number) => {
                let number = *number;
                list_above((cx, &names), number, args, &request, most, reply.head())
            }
            place => {
                may_wait(cx)?;
                let at = place.resolve(cx)?;
                require_dir(at)?;
                let verifier = cx.shared.vfs.cookie_verifier(&at.target);
                let out = reply.head();
                if args.cookie != 0 && args.cookieverf != verifier {
                    return Err(Stop::Fail(Nfsstat4::NotSame));
                }
                let from = args.cookie.saturating_sub(if args.cookie == 0 { 0 } else { FIRST_COOKIE - 1 });
                let (vfs, cred, export) = (&cx.shared.vfs, &at.caller.cred, &at.target.export);
                let mut scratch = Scratch::default();
                let start = out.len();
                let (listing, outdated, end) = loop {
                    let mut listing = Listing::begin(out, verifier, args.dircount, most);
                    let mut outdated = Vec::new();
                    let end = vfs.readdirplus(&at.target, cred, from, Wait::Yes, |plus| {
                        if matches!(plus.entry.name, b"." | b"..") {
                            return true;
                        }
                        let cookie = plus.entry.cookie + (FIRST_COOKIE - 1);
                        listing.entry(out, cookie, plus.entry.name, |out| match &plus.found {
                            Some((attr, found)) => {
                                if cx.is_outdated(client, found.as_slice(), &request) {
                                    outdated.push(handle(found));
                                }
                                let object =
                                    Described { attr, export, handle: handle(found), mounted_on: None };
                                let mut attributes = describe(cx, &names, &object, &mut scratch);
                                let mut list = acl::Buffer::default();
                                // The list of an entry that is gone meanwhile is left out.
                                if !(request & LIST).is_empty() && export.supports_acls() {
                                    let target = vfs.target(found.as_slice(), Wait::Yes).ok();
                                    attributes.acl = target
                                        .and_then(|at| acl::of((cx, &names), &at, attr, &mut list).ok());
                                }
                                attributes.encode(&request, out);
                            }
                            None => {
                                let ino = plus.entry.ino.max(1);
                                let attributes = Attributes {
                                    rdattr_error: Some(Nfsstat4::Noent),
                                    fileid: Some(ino),
                                    mounted_on_fileid: Some(ino),
                                    ..Attributes::default()
                                };
                                attributes.encode(&(request & CHEAP), out);
                            }
                        })
                    })?;
                    if !names.learn(cx)? {
                        break (listing, outdated, end);
                    }
                    out.truncate(start);
                };
                self.announce_listed(cx, &outdated)?;
                finish(listing, out, end.eof)
            }
        }
    }
}

/// Lists a directory above the exports.
fn list_above(
    (cx, names): (&Context<'_>, &Names),
    number: usize,
    args: &ReaddirArgs,
    request: &Bitmap,
    most: usize,
    out: &mut Vec<u8>,
) -> Result<(), Stop> {
    let pseudo = cx.server.pseudo();
    let start = out.len();
    let mut listing = Listing::begin(out, [0; 8], args.dircount, most);
    let skip = args.cookie.saturating_sub(FIRST_COOKIE - 1) as usize;
    let (mut eof, mut scratch) = (true, Scratch::default());
    for (index, (name, entry)) in pseudo.node(number).names.iter().enumerate().skip(skip) {
        let cookie = index as u64 + FIRST_COOKIE;
        let fits = listing.entry(out, cookie, name, |out| match entry {
            Entry::Node(child) => _ = describe_above(cx, names, *child, &mut scratch).encode(request, out),
            Entry::Export(id) => {
                let admitted = admit(cx, *id);
                let export = cx.shared.vfs.exports().find(*id);
                let target = export.map(|export| export.root());
                let attr = target.as_ref().and_then(|target| cx.shared.vfs.getattr(target).ok());
                match target.zip(attr) {
                    Some((target, attr)) if admitted.is_ok() => {
                        let handle = handle(&cx.shared.vfs.handle(&target));
                        let mounted_on = Some(super::pseudo::Pseudo::fileid(number));
                        let object = Described { attr: &attr, export: &target.export, handle, mounted_on };
                        _ = describe(cx, names, &object, &mut scratch).encode(request, out);
                    }
                    _ => {
                        let refused = match admitted {
                            Err(Stop::Fail(status)) => status,
                            _ => Nfsstat4::Access,
                        };
                        let attributes = Attributes { rdattr_error: Some(refused), ..Attributes::default() };
                        _ = attributes.encode(&(*request & CHEAP), out);
                    }
                }
            }
        });
        if !fits {
            eof = false;
            break;
        }
    }
    if names.learn(cx)? {
        out.truncate(start);
        return list_above((cx, names), number, args, request, most, out);
    }
    finish(listing, out, eof)
}

/// Ends a listing. Fails with NFS4ERR_TOOSMALL if the client's limit has no room for even one of the entries that are
/// left.
fn finish(listing: Listing, out: &mut Vec<u8>, eof: bool) -> Result<(), Stop> {
    if listing.is_empty() && !eof {
        return Err(Stop::Fail(Nfsstat4::Toosmall));
    }
    listing.finish(out, eof);
    Ok(())
}
