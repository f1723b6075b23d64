//! Conversions of this crate's values to values of the crate `nfs3_types`, field by field and by name.

use nfs3_types::nfs3 as peer;
use nfs3_types::xdr_codec::{List as PeerList, Opaque, Void};

use crate::nfs3::*;

/// A type of this crate that has a counterpart in `nfs3_types`.
pub(crate) trait Theirs {
    type Peer;
    fn theirs(&self) -> Self::Peer;
}

/// Converts a struct to the named struct of `nfs3_types`. Fields with equal names come first, then pairs of names.
macro_rules! convert {
    ($($ours:ident => $peer:ident {
        $($field:ident),* $(,)? $(; $($their_field:ident = $our_field:ident),*)?
    })*) => {$(
        impl Theirs for $ours {
            type Peer = peer::$peer;
            fn theirs(&self) -> Self::Peer {
                peer::$peer {
                    $($field: self.$field.theirs(),)*
                    $($($their_field: self.$our_field.theirs(),)*)?
                }
            }
        }
    )*};
    (borrowed $($ours:ident => $peer:ident {
        $($field:ident),* $(,)? $(; $($their_field:ident = $our_field:ident),*)?
    })*) => {$(
        impl<'a> Theirs for $ours<'a> {
            type Peer = peer::$peer<'a>;
            fn theirs(&self) -> Self::Peer {
                peer::$peer {
                    $($field: self.$field.theirs(),)*
                    $($($their_field: self.$our_field.theirs(),)*)?
                }
            }
        }
    )*};
}

macro_rules! same {
    ($($ty:ty),*) => {$(
        impl Theirs for $ty {
            type Peer = $ty;
            fn theirs(&self) -> $ty { *self }
        }
    )*};
}

same!(u32, u64, bool);

macro_rules! enums {
    ($($ours:ident => $peer:ident { $($our_variant:ident = $their_variant:ident),* $(,)? })*) => {$(
        impl Theirs for $ours {
            type Peer = peer::$peer;
            fn theirs(&self) -> Self::Peer {
                match self { $($ours::$our_variant => peer::$peer::$their_variant,)* }
            }
        }
    )*};
}

enums! {
    Ftype3 => ftype3 {
        Reg = NF3REG, Dir = NF3DIR, Blk = NF3BLK, Chr = NF3CHR, Lnk = NF3LNK, Sock = NF3SOCK, Fifo = NF3FIFO,
    }
    StableHow => stable_how { Unstable = UNSTABLE, DataSync = DATA_SYNC, FileSync = FILE_SYNC }
    Nfsstat3 => nfsstat3 {
        Ok = NFS3_OK, Perm = NFS3ERR_PERM, Noent = NFS3ERR_NOENT, Io = NFS3ERR_IO, Nxio = NFS3ERR_NXIO,
        Acces = NFS3ERR_ACCES, Exist = NFS3ERR_EXIST, Xdev = NFS3ERR_XDEV, Nodev = NFS3ERR_NODEV,
        Notdir = NFS3ERR_NOTDIR, Isdir = NFS3ERR_ISDIR, Inval = NFS3ERR_INVAL, Fbig = NFS3ERR_FBIG,
        Nospc = NFS3ERR_NOSPC, Rofs = NFS3ERR_ROFS, Mlink = NFS3ERR_MLINK, Nametoolong = NFS3ERR_NAMETOOLONG,
        Notempty = NFS3ERR_NOTEMPTY, Dquot = NFS3ERR_DQUOT, Stale = NFS3ERR_STALE, Remote = NFS3ERR_REMOTE,
        Badhandle = NFS3ERR_BADHANDLE, NotSync = NFS3ERR_NOT_SYNC, BadCookie = NFS3ERR_BAD_COOKIE,
        Notsupp = NFS3ERR_NOTSUPP, Toosmall = NFS3ERR_TOOSMALL, Serverfault = NFS3ERR_SERVERFAULT,
        Badtype = NFS3ERR_BADTYPE, Jukebox = NFS3ERR_JUKEBOX,
    }
}

impl Theirs for FileHandle {
    type Peer = peer::nfs_fh3;
    fn theirs(&self) -> peer::nfs_fh3 {
        peer::nfs_fh3 { data: Opaque::owned(self.as_bytes().to_vec()) }
    }
}

impl<T: Theirs<Peer: nfs3_types::xdr_codec::Pack + nfs3_types::xdr_codec::Unpack>> Theirs for Option<T> {
    type Peer = peer::Nfs3Option<T::Peer>;
    fn theirs(&self) -> Self::Peer {
        match self {
            Some(value) => peer::Nfs3Option::Some(value.theirs()),
            None => peer::Nfs3Option::None,
        }
    }
}

impl Theirs for Sattr3 {
    type Peer = peer::sattr3;
    fn theirs(&self) -> peer::sattr3 {
        let atime = match self.atime {
            SetTime::DontChange => peer::set_atime::DONT_CHANGE,
            SetTime::ServerTime => peer::set_atime::SET_TO_SERVER_TIME,
            SetTime::ClientTime(time) => peer::set_atime::SET_TO_CLIENT_TIME(time.theirs()),
        };
        let mtime = match self.mtime {
            SetTime::DontChange => peer::set_mtime::DONT_CHANGE,
            SetTime::ServerTime => peer::set_mtime::SET_TO_SERVER_TIME,
            SetTime::ClientTime(time) => peer::set_mtime::SET_TO_CLIENT_TIME(time.theirs()),
        };
        peer::sattr3 {
            mode: self.mode.theirs(),
            uid: self.uid.theirs(),
            gid: self.gid.theirs(),
            size: self.size.theirs(),
            atime,
            mtime,
        }
    }
}

impl Theirs for CreateHow {
    type Peer = peer::createhow3;
    fn theirs(&self) -> peer::createhow3 {
        match self {
            CreateHow::Unchecked(attributes) => peer::createhow3::UNCHECKED(attributes.theirs()),
            CreateHow::Guarded(attributes) => peer::createhow3::GUARDED(attributes.theirs()),
            CreateHow::Exclusive(verifier) => peer::createhow3::EXCLUSIVE(peer::createverf3(*verifier)),
        }
    }
}

impl Theirs for MknodData {
    type Peer = peer::mknoddata3;
    fn theirs(&self) -> peer::mknoddata3 {
        let device = |attributes: &Sattr3, spec: &Specdata3| peer::devicedata3 {
            dev_attributes: attributes.theirs(),
            spec: spec.theirs(),
        };
        match self {
            MknodData::Chr(attributes, spec) => peer::mknoddata3::NF3CHR(device(attributes, spec)),
            MknodData::Blk(attributes, spec) => peer::mknoddata3::NF3BLK(device(attributes, spec)),
            MknodData::Sock(attributes) => peer::mknoddata3::NF3SOCK(attributes.theirs()),
            MknodData::Fifo(attributes) => peer::mknoddata3::NF3FIFO(attributes.theirs()),
            // The encoder of `nfs3_types` has no arm for these three types.
            MknodData::Reg | MknodData::Dir | MknodData::Lnk => peer::mknoddata3::default,
        }
    }
}

convert! {
    Nfstime3 => nfstime3 { seconds, nseconds }
    Specdata3 => specdata3 { ; specdata1 = major, specdata2 = minor }
    Fattr3 => fattr3 {
        mode, nlink, uid, gid, size, used, rdev, fsid, fileid, atime, mtime, ctime; type_ = ftype
    }
    WccAttr => wcc_attr { size, mtime, ctime }
    WccData => wcc_data { before, after }
    SetattrArgs => SETATTR3args { object, new_attributes, guard }
    AccessArgs => ACCESS3args { object, access }
    ReadArgs => READ3args { file, offset, count }
    CommitArgs => COMMIT3args { file, offset, count }
    LookupOk => LOOKUP3resok { object, obj_attributes, dir_attributes }
    AccessOk => ACCESS3resok { obj_attributes, access }
    CreateOk => CREATE3resok { obj_attributes, dir_wcc; obj = object }
    RenameWcc => RENAME3resok { fromdir_wcc, todir_wcc }
    LinkWcc => LINK3resok { file_attributes, linkdir_wcc }
    FsstatOk => FSSTAT3resok { obj_attributes, tbytes, fbytes, abytes, tfiles, ffiles, afiles, invarsec }
    FsinfoOk => FSINFO3resok {
        obj_attributes, rtmax, rtpref, rtmult, wtmax, wtpref, wtmult, dtpref, maxfilesize, time_delta, properties,
    }
    PathconfOk => PATHCONF3resok {
        obj_attributes, linkmax, name_max, no_trunc, chown_restricted, case_insensitive, case_preserving,
    }
}

convert! { borrowed
    DirOpArgs => diropargs3 { dir; name = name }
    CreateArgs => CREATE3args { how; where_ = target }
    MkdirArgs => MKDIR3args { attributes; where_ = target }
    MknodArgs => MKNOD3args { what; where_ = target }
    LinkArgs => LINK3args { file, link }
}

impl<'a> Theirs for &'a [u8] {
    type Peer = peer::filename3<'a>;
    fn theirs(&self) -> Self::Peer {
        (*self).into()
    }
}

impl<'a> Theirs for WriteArgs<'a> {
    type Peer = peer::WRITE3args<'a>;
    fn theirs(&self) -> Self::Peer {
        peer::WRITE3args {
            file: self.file.theirs(),
            offset: self.offset,
            count: self.count,
            stable: self.stable.theirs(),
            data: Opaque::borrowed(self.data),
        }
    }
}

impl<'a> Theirs for SymlinkArgs<'a> {
    type Peer = peer::SYMLINK3args<'a>;
    fn theirs(&self) -> Self::Peer {
        let symlink = peer::symlinkdata3 {
            symlink_attributes: self.attributes.theirs(),
            symlink_data: self.path.into(),
        };
        peer::SYMLINK3args { where_: self.target.theirs(), symlink }
    }
}

impl<'a> Theirs for RenameArgs<'a> {
    type Peer = peer::RENAME3args<'a, 'a>;
    fn theirs(&self) -> Self::Peer {
        peer::RENAME3args { from: self.from.theirs(), to: self.to.theirs() }
    }
}

impl Theirs for ReaddirArgs {
    type Peer = peer::READDIR3args;
    fn theirs(&self) -> Self::Peer {
        peer::READDIR3args {
            dir: self.dir.theirs(),
            cookie: self.cookie,
            cookieverf: peer::cookieverf3(self.cookieverf),
            count: self.count,
        }
    }
}

impl Theirs for ReaddirplusArgs {
    type Peer = peer::READDIRPLUS3args;
    fn theirs(&self) -> Self::Peer {
        peer::READDIRPLUS3args {
            dir: self.dir.theirs(),
            cookie: self.cookie,
            cookieverf: peer::cookieverf3(self.cookieverf),
            dircount: self.dircount,
            maxcount: self.maxcount,
        }
    }
}

impl<'a> Theirs for ReadlinkOk<'a> {
    type Peer = peer::READLINK3resok<'a>;
    fn theirs(&self) -> Self::Peer {
        peer::READLINK3resok { symlink_attributes: self.symlink_attributes.theirs(), data: self.path.into() }
    }
}

impl<'a> Theirs for ReadOk<'a> {
    type Peer = peer::READ3resok<'a>;
    fn theirs(&self) -> Self::Peer {
        peer::READ3resok {
            file_attributes: self.file_attributes.theirs(),
            count: self.count,
            eof: self.eof,
            data: Opaque::borrowed(self.data),
        }
    }
}

impl Theirs for WriteOk {
    type Peer = peer::WRITE3resok;
    fn theirs(&self) -> Self::Peer {
        peer::WRITE3resok {
            file_wcc: self.file_wcc.theirs(),
            count: self.count,
            committed: self.committed.theirs(),
            verf: peer::writeverf3(self.verf),
        }
    }
}

impl Theirs for CommitOk {
    type Peer = peer::COMMIT3resok;
    fn theirs(&self) -> Self::Peer {
        peer::COMMIT3resok { file_wcc: self.file_wcc.theirs(), verf: peer::writeverf3(self.verf) }
    }
}

convert! { borrowed
    Entry => entry3 { fileid, name, cookie }
    EntryPlus => entryplus3 { fileid, name, cookie, name_attributes, name_handle }
}

impl<'a> Theirs for ReaddirOk<'a> {
    type Peer = peer::READDIR3resok<'a>;
    fn theirs(&self) -> Self::Peer {
        let entries = PeerList(self.entries.iter().map(|entry| entry.theirs()).collect());
        peer::READDIR3resok {
            dir_attributes: self.dir_attributes.theirs(),
            cookieverf: peer::cookieverf3(self.cookieverf),
            reply: peer::dirlist3 { entries, eof: self.eof },
        }
    }
}

impl<'a> Theirs for ReaddirplusOk<'a> {
    type Peer = peer::READDIRPLUS3resok<'a>;
    fn theirs(&self) -> Self::Peer {
        let entries = PeerList(self.entries.iter().map(|entry| entry.theirs()).collect());
        peer::READDIRPLUS3resok {
            dir_attributes: self.dir_attributes.theirs(),
            cookieverf: peer::cookieverf3(self.cookieverf),
            reply: peer::dirlistplus3 { entries, eof: self.eof },
        }
    }
}

impl Theirs for () {
    type Peer = Void;
    fn theirs(&self) -> Void {
        Void
    }
}

/// In `nfs3_types` a failure arm is a struct with one or two fields, in the order of this crate's fields.
impl<T: Theirs, F: Theirs> Theirs for Result<T, Failed<F>> {
    type Peer = peer::Nfs3Result<T::Peer, F::Peer>;
    fn theirs(&self) -> Self::Peer {
        match self {
            Ok(result) => peer::Nfs3Result::Ok(result.theirs()),
            Err(failed) => peer::Nfs3Result::Err((failed.status.theirs(), failed.attributes.theirs())),
        }
    }
}
