//! READDIR and READDIRPLUS (RFC 1813 sections 3.3.16 and 3.3.17).

use forebay_rpc::Reply;
use forebay_vfs::Wait;
use forebay_wire::nfs3::{
    Entry, EntryPlus, FileHandle, LISTING_END_SIZE, Nfsstat3, PostOpAttr, ReaddirArgs, ReaddirplusArgs,
    encode_entry, encode_entryplus, encode_listing_end, encode_listing_header, entry_size, entryplus_size,
    listing_header_size,
};
use forebay_wire::xdr::Encode;

use crate::MAX_TRANSFER;
use crate::caller::At;
use crate::convert::{fattr, handle};
use crate::look::failed;
use crate::request::Call;
use crate::result::{Stop, success};
use crate::shared::Shared;

/// The place in a directory from which a listing goes on.
struct ListFrom {
    dir: FileHandle,
    /// The cookie of the last entry that the client has; 0 at the start.
    cookie: u64,
    /// The cookie verifier that came with the cookie.
    verifier: [u8; 8],
}

/// The most bytes that a client accepts in a listing.
struct ListSize {
    /// In the whole reply body.
    total: u32,
    /// For names, ids and cookies.
    names: u32,
}

/// The room left in a listing, in bytes.
struct Room {
    /// Bytes left in the whole reply body.
    total: usize,
    /// Bytes left for names, ids and cookies.
    names: usize,
    entries: usize,
}

impl Room {
    /// Takes the room of one entry; returns false if the entry does not fit.
    fn take(&mut self, total: usize, names: usize) -> bool {
        // dircount is a hint (RFC 1813): at least one entry is returned whatever its value.
        if total > self.total || names > self.names && self.entries > 0 {
            return false;
        }
        self.total -= total;
        self.names = self.names.saturating_sub(names);
        self.entries += 1;
        true
    }
}

/// The largest READDIRPLUS in bytes that an event loop answers itself. Longer ones would delay other clients.
const SMALL_LISTING: u32 = 64 << 10;

impl Shared {
    /// Carries out READDIR, and appends the reply. The reply has at most the bytes that the client asks for. May wait
    /// for the directory.
    pub(crate) fn readdir(&self, call: &Call<'_>, reply: &mut Reply<'_>) -> Result<Nfsstat3, Stop> {
        let args: ReaddirArgs = call.args()?;
        let from = ListFrom { dir: args.dir, cookie: args.cookie, verifier: args.cookieverf };
        let size = ListSize { total: args.count, names: u32::MAX };
        self.listing(call, reply, Wait::Yes, from, size, |at, room, out| {
            self.vfs.readdir(&at.target, &at.caller.cred, args.cookie, |entry| {
                let fits = room.take(entry_size(entry.name.len()), 0);
                if fits {
                    let entry = Entry { fileid: entry.ino, name: entry.name, cookie: entry.cookie };
                    encode_entry(out, &entry);
                }
                fits
            })
        })
    }

    /// Carries out READDIRPLUS, and encodes entries as far as the client has room for them.
    pub(crate) fn readdirplus(
        &self,
        call: &Call<'_>,
        reply: &mut Reply<'_>,
        wait: Wait,
    ) -> Result<Nfsstat3, Stop> {
        let args: ReaddirplusArgs = call.args()?;
        if wait == Wait::No && args.maxcount > SMALL_LISTING {
            return Err(Stop::Later);
        }
        let from = ListFrom { dir: args.dir, cookie: args.cookie, verifier: args.cookieverf };
        let size = ListSize { total: args.maxcount, names: args.dircount };
        self.listing(call, reply, wait, from, size, |at, room, out| {
            let fsid = at.fsid();
            self.vfs.readdirplus(&at.target, &at.caller.cred, args.cookie, wait, |plus| {
                let entry = EntryPlus {
                    fileid: plus.entry.ino,
                    name: plus.entry.name,
                    cookie: plus.entry.cookie,
                    name_attributes: plus
                        .found
                        .and_then(|(attr, found)| self.shown(found.as_slice(), fattr(&attr, fsid))),
                    name_handle: plus.found.map(|(_, found)| handle(&found)),
                };
                let fits = room.take(entryplus_size(&entry), entry_size(entry.name.len()));
                if fits {
                    encode_entryplus(out, &entry);
                }
                fits
            })
        })
    }

    /// Fills a listing reply: the header, the entries that `list` appends, and the end.
    fn listing(
        &self,
        call: &Call<'_>,
        reply: &mut Reply<'_>,
        wait: Wait,
        ListFrom { dir, cookie, verifier }: ListFrom,
        ListSize { total, names }: ListSize,
        list: impl FnOnce(&At, &mut Room, &mut Vec<u8>) -> forebay_vfs::Result<forebay_vfs::ListEnd>,
    ) -> Result<Nfsstat3, Stop> {
        let filled = self.at(call, &dir, wait).and_then(|at| {
            let ours = self.vfs.cookie_verifier(&at.target);
            if cookie != 0 && verifier != ours {
                return Err(Stop::Fail(Nfsstat3::BadCookie));
            }
            let attributes: PostOpAttr = Some(fattr(&self.vfs.getattr(&at.target)?, at.fsid()));
            let overhead = listing_header_size(&attributes) + LISTING_END_SIZE;
            let total = (total.min(MAX_TRANSFER) as usize).checked_sub(overhead);
            let total = total.ok_or(Stop::Fail(Nfsstat3::Toosmall))?;
            let mut room = Room { total, names: names as usize, entries: 0 };
            let out = reply.head();
            success(out, call.xid());
            encode_listing_header(out, &attributes, ours);
            let end = list(&at, &mut room, out)?;
            if room.entries == 0 && !end.eof {
                return Err(Stop::Fail(Nfsstat3::Toosmall));
            }
            encode_listing_end(out, end.eof);
            Ok(Nfsstat3::Ok)
        });
        match filled {
            Err(Stop::Fail(status)) => {
                reply.clear();
                success(reply.head(), call.xid());
                let failure = failed(status);
                failure.status.encode(reply.head());
                failure.attributes.encode(reply.head());
                Ok(status)
            }
            other => other,
        }
    }
}
