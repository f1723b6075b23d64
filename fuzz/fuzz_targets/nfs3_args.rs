//! Fuzzes arguments and results of the NFSv3 procedures. The first word is the procedure, followed by its message.
#![no_main]

use forebay_fuzz::{Reader, check};
use forebay_wire::nfs3::*;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut input = Reader::new(bytes);
    let Ok(Ok(procedure)) = input.u32().map(Procedure::try_from) else { return };
    let rest = input.rest();
    match procedure {
        Procedure::Null => {}
        Procedure::Getattr => check!(rest, GetattrArgs, GetattrRes),
        Procedure::Setattr => check!(rest, SetattrArgs, SetattrRes),
        Procedure::Lookup => check!(rest, LookupArgs<'_>, LookupRes),
        Procedure::Access => check!(rest, AccessArgs, AccessRes),
        Procedure::Readlink => check!(rest, ReadlinkArgs, ReadlinkRes<'_>),
        Procedure::Read => check!(rest, ReadArgs, ReadRes<'_>),
        Procedure::Write => check!(rest, WriteArgs<'_>, WriteRes),
        Procedure::Create => check!(rest, CreateArgs<'_>, CreateRes),
        Procedure::Mkdir => check!(rest, MkdirArgs<'_>, MkdirRes),
        Procedure::Symlink => check!(rest, SymlinkArgs<'_>, SymlinkRes),
        Procedure::Mknod => check!(rest, MknodArgs<'_>, MknodRes),
        Procedure::Remove => check!(rest, RemoveArgs<'_>, RemoveRes),
        Procedure::Rmdir => check!(rest, RmdirArgs<'_>, RmdirRes),
        Procedure::Rename => check!(rest, RenameArgs<'_>, RenameRes),
        Procedure::Link => check!(rest, LinkArgs<'_>, LinkRes),
        Procedure::Readdir => check!(rest, ReaddirArgs, ReaddirRes<'_>),
        Procedure::Readdirplus => check!(rest, ReaddirplusArgs, ReaddirplusRes<'_>),
        Procedure::Fsstat => check!(rest, FsstatArgs, FsstatRes),
        Procedure::Fsinfo => check!(rest, FsinfoArgs, FsinfoRes),
        Procedure::Pathconf => check!(rest, PathconfArgs, PathconfRes),
        Procedure::Commit => check!(rest, CommitArgs, CommitRes),
    }
});
