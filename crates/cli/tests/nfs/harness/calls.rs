//! The procedures as methods: they take arguments and return the protocol's results.

use forebay_wire::mount3;
use forebay_wire::nfs3::*;
use forebay_wire::rpc::{ReplyHeader, ReplyStatus};
use forebay_wire::xdr::{Decode, Encode, Reader};

use super::client::{Client, decode};
use super::{mode, name};

/// The result of a READ, with its data.
#[derive(Debug)]
pub(crate) struct ReadDone {
    pub(crate) attributes: Fattr3,
    pub(crate) data: Vec<u8>,
    pub(crate) eof: bool,
}

impl ReadDone {
    /// Decodes the bytes of a result.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Failed<PostOpAttr>> {
        decode::<ReadRes<'_>>(bytes).map(|ok| {
            assert_eq!(ok.count as usize, ok.data.len());
            let attributes = ok.file_attributes.expect("attributes of a file read");
            ReadDone { attributes, data: ok.data.to_vec(), eof: ok.eof }
        })
    }
}

/// An entry of READDIR or READDIRPLUS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) fileid: u64,
    pub(crate) name: Vec<u8>,
    pub(crate) cookie: u64,
    pub(crate) attributes: PostOpAttr,
    pub(crate) handle: PostOpFh,
}

/// A page of a listing.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) attributes: PostOpAttr,
    pub(crate) verifier: [u8; 8],
    pub(crate) entries: Vec<Listed>,
    pub(crate) eof: bool,
    /// Size of `READDIR3resok` or `READDIRPLUS3resok` in bytes, which `count` and `maxcount` limit.
    pub(crate) bytes: usize,
}

/// The position from which a listing continues: cookie and verifier.
pub(crate) type Place = (u64, [u8; 8]);

/// The position at the beginning of a directory.
pub(crate) const START: Place = (0, [0; 8]);

fn nfs(procedure: Procedure) -> (u32, u32, u32) {
    (PROGRAM, VERSION, procedure as u32)
}

impl Client {
    /// Calls a procedure of MOUNT v3.
    pub(crate) fn mount_call(&mut self, procedure: mount3::Procedure, args: &impl Encode) -> Vec<u8> {
        self.result_bytes((mount3::PROGRAM, mount3::VERSION, procedure as u32), args)
    }

    pub(crate) fn mnt(&mut self, path: &[u8]) -> mount3::MountRes {
        let result = self.mount_call(mount3::Procedure::Mnt, &path);
        decode(&result)
    }

    /// Returns the handle of the export `/`.
    pub(crate) fn root(&mut self) -> FileHandle {
        self.mnt(b"/").unwrap().fhandle
    }

    pub(crate) fn getattr(&mut self, object: &FileHandle) -> GetattrRes {
        self.nfs(Procedure::Getattr, object)
    }

    /// Returns the attributes of an existing object.
    #[track_caller]
    pub(crate) fn attr(&mut self, object: &FileHandle) -> Fattr3 {
        self.getattr(object).unwrap()
    }

    pub(crate) fn setattr(&mut self, object: &FileHandle, set: Sattr3) -> SetattrRes {
        self.setattr_guarded(object, set, None)
    }

    pub(crate) fn setattr_guarded(
        &mut self,
        object: &FileHandle,
        set: Sattr3,
        guard: Option<Nfstime3>,
    ) -> SetattrRes {
        self.nfs(Procedure::Setattr, &SetattrArgs { object: *object, new_attributes: set, guard })
    }

    pub(crate) fn lookup(&mut self, dir: &FileHandle, child: &[u8]) -> LookupRes {
        self.nfs(Procedure::Lookup, &name(dir, child))
    }

    pub(crate) fn access(&mut self, object: &FileHandle, access: u32) -> AccessRes {
        self.nfs(Procedure::Access, &AccessArgs { object: *object, access })
    }

    pub(crate) fn readlink(
        &mut self,
        link: &FileHandle,
    ) -> Result<(Vec<u8>, PostOpAttr), Failed<PostOpAttr>> {
        let bytes = self.result_bytes(nfs(Procedure::Readlink), link);
        decode::<ReadlinkRes<'_>>(&bytes).map(|ok| (ok.path.to_vec(), ok.symlink_attributes))
    }

    pub(crate) fn read(
        &mut self,
        file: &FileHandle,
        offset: u64,
        count: u32,
    ) -> Result<ReadDone, Failed<PostOpAttr>> {
        ReadDone::decode(&self.result_bytes(nfs(Procedure::Read), &ReadArgs { file: *file, offset, count }))
    }

    pub(crate) fn write(
        &mut self,
        file: &FileHandle,
        offset: u64,
        data: &[u8],
        stable: StableHow,
    ) -> WriteRes {
        let count = data.len() as u32;
        self.nfs(Procedure::Write, &WriteArgs { file: *file, offset, count, stable, data })
    }

    /// Writes to a server that may be killed at any moment. Returns `None` if there was no answer.
    pub(crate) fn try_write(&mut self, file: &FileHandle, offset: u64, data: &[u8]) -> Option<()> {
        self.answer_to_write(file, offset, data).map(|answer| _ = answer.unwrap())
    }

    /// Writes to a server that may be killed at any moment or refuse the write. Returns `None` if there was no
    /// answer.
    pub(crate) fn answer_to_write(
        &mut self,
        file: &FileHandle,
        offset: u64,
        data: &[u8],
    ) -> Option<WriteRes> {
        let (count, stable) = (data.len() as u32, StableHow::FileSync);
        let mut args = Vec::new();
        WriteArgs { file: *file, offset, count, stable, data }.encode(&mut args);
        let call = self.call_bytes(nfs(Procedure::Write), &args);
        let reply = self.try_exchange(&call)?;
        let mut reader = Reader::new(&reply);
        assert_eq!(ReplyHeader::decode(&mut reader).unwrap().status, ReplyStatus::Success);
        Some(decode(reader.rest()))
    }

    pub(crate) fn create(&mut self, dir: &FileHandle, child: &[u8], how: CreateHow) -> CreateRes {
        self.nfs(Procedure::Create, &CreateArgs { target: name(dir, child), how })
    }

    pub(crate) fn mkdir(&mut self, dir: &FileHandle, child: &[u8], attributes: Sattr3) -> MkdirRes {
        self.nfs(Procedure::Mkdir, &MkdirArgs { target: name(dir, child), attributes })
    }

    pub(crate) fn symlink(&mut self, dir: &FileHandle, child: &[u8], path: &[u8]) -> SymlinkRes {
        let attributes = Sattr3::default();
        self.nfs(Procedure::Symlink, &SymlinkArgs { target: name(dir, child), attributes, path })
    }

    pub(crate) fn mknod(&mut self, dir: &FileHandle, child: &[u8], what: MknodData) -> MknodRes {
        self.nfs(Procedure::Mknod, &MknodArgs { target: name(dir, child), what })
    }

    pub(crate) fn remove(&mut self, dir: &FileHandle, child: &[u8]) -> RemoveRes {
        self.nfs(Procedure::Remove, &name(dir, child))
    }

    pub(crate) fn rmdir(&mut self, dir: &FileHandle, child: &[u8]) -> RmdirRes {
        self.nfs(Procedure::Rmdir, &name(dir, child))
    }

    pub(crate) fn rename(
        &mut self,
        (from_dir, from): (&FileHandle, &[u8]),
        (to_dir, to): (&FileHandle, &[u8]),
    ) -> RenameRes {
        self.nfs(Procedure::Rename, &RenameArgs { from: name(from_dir, from), to: name(to_dir, to) })
    }

    pub(crate) fn link(&mut self, file: &FileHandle, dir: &FileHandle, child: &[u8]) -> LinkRes {
        self.nfs(Procedure::Link, &LinkArgs { file: *file, link: name(dir, child) })
    }

    pub(crate) fn readdir(
        &mut self,
        dir: &FileHandle,
        (cookie, cookieverf): Place,
        count: u32,
    ) -> Result<Page, Failed<PostOpAttr>> {
        let args = ReaddirArgs { dir: *dir, cookie, cookieverf, count };
        let result = self.result_bytes(nfs(Procedure::Readdir), &args);
        decode::<ReaddirRes<'_>>(&result).map(|ok| Page {
            attributes: ok.dir_attributes,
            verifier: ok.cookieverf,
            entries: ok.entries.iter().map(listed).collect(),
            eof: ok.eof,
            bytes: result.len() - 4,
        })
    }

    pub(crate) fn readdirplus(
        &mut self,
        dir: &FileHandle,
        (cookie, cookieverf): Place,
        dircount: u32,
        maxcount: u32,
    ) -> Result<Page, Failed<PostOpAttr>> {
        let args = ReaddirplusArgs { dir: *dir, cookie, cookieverf, dircount, maxcount };
        let result = self.result_bytes(nfs(Procedure::Readdirplus), &args);
        decode::<ReaddirplusRes<'_>>(&result).map(|ok| Page {
            attributes: ok.dir_attributes,
            verifier: ok.cookieverf,
            entries: ok.entries.iter().map(listed_plus).collect(),
            eof: ok.eof,
            bytes: result.len() - 4,
        })
    }

    pub(crate) fn fsstat(&mut self, root: &FileHandle) -> FsstatRes {
        self.nfs(Procedure::Fsstat, root)
    }

    pub(crate) fn fsinfo(&mut self, root: &FileHandle) -> FsinfoRes {
        self.nfs(Procedure::Fsinfo, root)
    }

    pub(crate) fn pathconf(&mut self, object: &FileHandle) -> PathconfRes {
        self.nfs(Procedure::Pathconf, object)
    }

    pub(crate) fn commit(&mut self, file: &FileHandle, offset: u64, count: u32) -> CommitRes {
        self.nfs(Procedure::Commit, &CommitArgs { file: *file, offset, count })
    }

    /// Makes a file that must not exist.
    #[track_caller]
    pub(crate) fn new_file(&mut self, dir: &FileHandle, child: &[u8], bits: u32) -> FileHandle {
        self.create(dir, child, CreateHow::Guarded(mode(bits))).unwrap().object.unwrap()
    }

    /// Makes a directory.
    #[track_caller]
    pub(crate) fn new_dir(&mut self, dir: &FileHandle, child: &[u8], bits: u32) -> FileHandle {
        self.mkdir(dir, child, mode(bits)).unwrap().object.unwrap()
    }

    /// Returns the handle of an existing name.
    #[track_caller]
    pub(crate) fn find(&mut self, dir: &FileHandle, child: &[u8]) -> FileHandle {
        self.lookup(dir, child).unwrap().object
    }
}

fn listed(entry: Entry<'_>) -> Listed {
    let Entry { fileid, name, cookie } = entry;
    Listed { fileid, name: name.to_vec(), cookie, attributes: None, handle: None }
}

fn listed_plus(entry: EntryPlus<'_>) -> Listed {
    let EntryPlus { fileid, name, cookie, name_attributes, name_handle } = entry;
    Listed { fileid, name: name.to_vec(), cookie, attributes: name_attributes, handle: name_handle }
}

/// Returns the bytes of a call, so that it can be sent more than once.
pub(crate) fn call(c: &mut Client, procedure: Procedure, args: &impl Encode) -> Vec<u8> {
    let mut bytes = Vec::new();
    args.encode(&mut bytes);
    c.call_bytes((PROGRAM, VERSION, procedure as u32), &bytes)
}

/// Returns the status in a reply to a call of [`call`].
pub(crate) fn status_of(reply: &[u8]) -> Nfsstat3 {
    let mut reader = Reader::new(reply);
    let header = ReplyHeader::decode(&mut reader).unwrap();
    assert_eq!(header.status, ReplyStatus::Success);
    Nfsstat3::decode(&mut reader).unwrap()
}
