//! Compares every NFSv3 message with the crate `nfs3_types`. Equal values have equal bytes, and each crate decodes
//! the bytes of the other.

use arbitrary::{Arbitrary, Unstructured};
use nfs3_types::xdr_codec::{Opaque, Pack, Unpack};
use nfs3_types::{mount, nfs3 as peer, portmap as peer_portmap, rpc as peer_rpc};
use proptest::prelude::*;

use super::arbitrary_impls::mount_res;
use super::convert::Theirs;
use crate::mount3::{ExportList, MountList};
use crate::nfs3::*;
use crate::portmap::MappingList;
use crate::rpc::{Auth, AuthStat, CallHeader, OpaqueAuth, ReplyHeader, ReplyStatus};
use crate::xdr::{Encode, Reader};

fn encoded(value: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

fn packed(value: &impl Pack) -> Vec<u8> {
    let mut out = Vec::new();
    value.pack(&mut out).unwrap();
    out
}

/// Asserts that the decoder of `nfs3_types` takes all of `bytes` and that its encoder returns them.
fn they_repeat<P: Pack + Unpack>(bytes: &[u8]) {
    let mut input = bytes;
    let (value, size) = P::unpack(&mut input).unwrap();
    assert_eq!(size, bytes.len());
    assert_eq!(packed(&value), bytes);
}

macro_rules! same_bytes {
    ($($test:ident: $ours:ty, $theirs:ty;)*) => {
        proptest! { $(#[test] fn $test(entropy in prop::collection::vec(any::<u8>(), 0..600)) {
            let entropy: &'static [u8] = entropy.leak();
            if let Ok(value) = <$ours>::arbitrary(&mut Unstructured::new(entropy)) {
                let bytes = encoded(&value);
                assert_eq!(packed(&value.theirs()), bytes);
                they_repeat::<$theirs>(&bytes);
            }
        })* }
    };
}

same_bytes! {
    getattr_args: FileHandle, peer::GETATTR3args;
    setattr_args: SetattrArgs, peer::SETATTR3args;
    lookup_args: LookupArgs<'_>, peer::LOOKUP3args<'_>;
    access_args: AccessArgs, peer::ACCESS3args;
    read_args: ReadArgs, peer::READ3args;
    write_args: WriteArgs<'_>, peer::WRITE3args<'_>;
    create_args: CreateArgs<'_>, peer::CREATE3args<'_>;
    mkdir_args: MkdirArgs<'_>, peer::MKDIR3args<'_>;
    symlink_args: SymlinkArgs<'_>, peer::SYMLINK3args<'_>;
    rename_args: RenameArgs<'_>, peer::RENAME3args<'_, '_>;
    link_args: LinkArgs<'_>, peer::LINK3args<'_>;
    readdir_args: ReaddirArgs, peer::READDIR3args;
    readdirplus_args: ReaddirplusArgs, peer::READDIRPLUS3args;
    commit_args: CommitArgs, peer::COMMIT3args;
    getattr_res: GetattrRes, peer::GETATTR3res;
    setattr_res: SetattrRes, peer::SETATTR3res;
    lookup_res: LookupRes, peer::LOOKUP3res;
    access_res: AccessRes, peer::ACCESS3res;
    readlink_res: ReadlinkRes<'_>, peer::READLINK3res<'_>;
    read_res: ReadRes<'_>, peer::READ3res<'_>;
    write_res: WriteRes, peer::WRITE3res;
    create_res: CreateRes, peer::CREATE3res;
    remove_res: RemoveRes, peer::REMOVE3res;
    rename_res: RenameRes, peer::RENAME3res;
    link_res: LinkRes, peer::LINK3res;
    readdir_res: ReaddirRes<'_>, peer::READDIR3res<'_>;
    readdirplus_res: ReaddirplusRes<'_>, peer::READDIRPLUS3res<'_>;
    fsstat_res: FsstatRes, peer::FSSTAT3res;
    fsinfo_res: FsinfoRes, peer::FSINFO3res;
    pathconf_res: PathconfRes, peer::PATHCONF3res;
    commit_res: CommitRes, peer::COMMIT3res;
}

macro_rules! repeated {
    ($($test:ident: $ours:ty, $theirs:ty;)*) => {
        proptest! { $(#[test] fn $test(entropy in prop::collection::vec(any::<u8>(), 0..600)) {
            if let Ok(value) = <$ours>::arbitrary(&mut Unstructured::new(&entropy)) {
                they_repeat::<$theirs>(&encoded(&value));
            }
        })* }
    };
}

repeated! {
    mount_list: MountList<'_>, mount::mountlist<'_, '_>;
    export_list: ExportList<'_>, mount::exports<'_, '_>;
    mapping_list: MappingList, peer_portmap::pmaplist;
}

proptest! {
    #[test]
    fn mknod_args(entropy in prop::collection::vec(any::<u8>(), 0..600)) {
        if let Ok(value) = MknodArgs::arbitrary(&mut Unstructured::new(&entropy))
            && !matches!(value.what, MknodData::Reg | MknodData::Dir | MknodData::Lnk)
        {
            let bytes = encoded(&value);
            assert_eq!(packed(&value.theirs()), bytes);
            they_repeat::<peer::MKNOD3args<'_>>(&bytes);
        }
    }

    #[test]
    fn mount_results(entropy in prop::collection::vec(any::<u8>(), 0..600)) {
        if let Ok(result) = mount_res(&mut Unstructured::new(&entropy)) {
            they_repeat::<mount::mountres3<'_>>(&encoded(&result));
        }
    }

    #[test]
    fn call_headers(entropy in prop::collection::vec(any::<u8>(), 0..900)) {
        if let Ok(mut header) = CallHeader::arbitrary(&mut Unstructured::new(&entropy)) {
            // `nfs3_types` supports flavours 0 to 3 only.
            header.verf.flavor %= 4;
            if let Auth::Other(OpaqueAuth { flavor, .. }) = &mut header.cred {
                *flavor = 2 + *flavor % 2;
            }
            they_repeat::<peer_rpc::rpc_msg<'_, '_>>(&encoded(&header));
        }
    }

    #[test]
    fn auth_sys(entropy in prop::collection::vec(any::<u8>(), 0..900)) {
        if let Ok(Auth::Sys(sys)) = Auth::arbitrary(&mut Unstructured::new(&entropy)) {
            let theirs = peer_rpc::auth_unix {
                stamp: sys.stamp,
                machinename: Opaque::owned(sys.machine_name.to_vec()),
                uid: sys.uid,
                gid: sys.gid,
                gids: sys.gids.as_slice().to_vec(),
            };
            prop_assert_eq!(packed(&peer_rpc::opaque_auth::auth_unix(&theirs)), encoded(&Auth::Sys(sys)));
        }
    }

    #[test]
    fn reply_headers(xid: u32, entropy in prop::collection::vec(any::<u8>(), 0..40)) {
        // The other implementation has no errors of RPCSEC_GSS.
        let gss = [AuthStat::GssCredProblem, AuthStat::GssCtxProblem].map(ReplyStatus::AuthError);
        if let Ok(status) = ReplyStatus::arbitrary(&mut Unstructured::new(&entropy))
            && !gss.contains(&status)
        {
            they_repeat::<peer_rpc::rpc_msg<'_, '_>>(&encoded(&ReplyHeader { xid, status }));
        }
    }

    #[test]
    fn our_decoder_reads_their_call(xid: u32, prog: u32, vers: u32, proc: u32) {
        let body = peer_rpc::call_body {
            rpcvers: 2, prog, vers, proc,
            cred: peer_rpc::opaque_auth::auth_unix(&peer_rpc::auth_unix::default()),
            verf: peer_rpc::opaque_auth::default(),
        };
        let bytes = packed(&peer_rpc::rpc_msg { xid, body: peer_rpc::msg_body::CALL(body) });
        let header = CallHeader::decode(&mut Reader::new(&bytes)).unwrap();
        prop_assert_eq!((header.xid, header.prog, header.vers, header.proc), (xid, prog, vers, proc));
        prop_assert!(matches!(header.cred, Auth::Sys(sys) if sys.uid == 0));
    }
}
