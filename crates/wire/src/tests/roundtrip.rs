//! Properties of every type. A decoded value equals the encoded one, and decoding consumes exactly the bytes written.
//! A message cut short anywhere is an error. Decoding arbitrary bytes never panics, and a decoded value survives
//! another round trip.

use std::fmt::Debug;

use arbitrary::{Arbitrary, Unstructured};
use proptest::prelude::*;

use super::arbitrary_impls::mount_res;
use crate::rpc::{Auth, CallHeader, ReplyHeader};
use crate::xdr::{Decode, DecodeError, Encode, List, Reader};
use crate::{Array, mount3, nfs3, nfs4, nfsacl3, nlm4, nsm, portmap, rpcbind};

pub(super) fn holds<'a, T: Encode + Decode<'a> + PartialEq + Debug>(value: &T) {
    let mut bytes = Vec::new();
    value.encode(&mut bytes);
    assert_eq!(bytes.len() % 4, 0);
    let bytes: &'a [u8] = bytes.leak();
    let mut reader = Reader::new(bytes);
    assert_eq!(&T::decode(&mut reader).unwrap(), value);
    assert_eq!(reader.remaining(), 0);
    for len in (0..bytes.len()).rev().take(200) {
        assert!(
            matches!(T::decode(&mut Reader::new(&bytes[..len])), Err(DecodeError::Truncated { .. })),
            "{value:?} decodes from {len} of {} bytes",
            bytes.len()
        );
    }
}

pub(super) fn arbitrary_holds<'a, T: Arbitrary<'a> + Encode + Decode<'a> + PartialEq + Debug>(
    entropy: &'a [u8],
) {
    if let Ok(value) = T::arbitrary(&mut Unstructured::new(entropy)) {
        holds(&value);
    }
}

pub(super) fn bytes_hold<'a, T: Encode + Decode<'a> + PartialEq + Debug>(bytes: &'a [u8]) {
    if let Ok(value) = T::decode(&mut Reader::new(bytes)) {
        holds(&value);
    }
}

macro_rules! every_type {
    ($($test:ident: $ty:ty,)*) => {
        mod arbitrary_values {
            use super::*;
            proptest! { $(#[test] fn $test(entropy in prop::collection::vec(any::<u8>(), 0..600)) {
                arbitrary_holds::<$ty>(entropy.leak());
            })* }
        }
        mod arbitrary_bytes {
            use super::*;
            proptest! { $(#[test] fn $test(bytes in message()) {
                bytes_hold::<$ty>(bytes.leak());
            })* }
        }
    };
}

/// Returns messages of mostly small words, as discriminants, booleans and lengths are, so that decoding gets far.
pub(super) fn message() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![4 => 0u32..3, 2 => 0u32..70, 1 => any::<u32>()];
    (prop::collection::vec(word, 0..150), 0usize..4).prop_map(|(words, cut)| {
        let mut bytes: Vec<u8> = words.into_iter().flat_map(u32::to_be_bytes).collect();
        bytes.truncate(bytes.len().saturating_sub(cut));
        bytes
    })
}

every_type! {
    hyper: u64,
    signed: i32,
    boolean: bool,
    optional: Option<u64>,
    name: &[u8],
    auth: Auth<'_>,
    reply_header: ReplyHeader,
    getattr_args: nfs3::GetattrArgs,
    setattr_args: nfs3::SetattrArgs,
    lookup_args: nfs3::LookupArgs<'_>,
    access_args: nfs3::AccessArgs,
    read_args: nfs3::ReadArgs,
    write_args: nfs3::WriteArgs<'_>,
    create_args: nfs3::CreateArgs<'_>,
    mkdir_args: nfs3::MkdirArgs<'_>,
    symlink_args: nfs3::SymlinkArgs<'_>,
    mknod_args: nfs3::MknodArgs<'_>,
    rename_args: nfs3::RenameArgs<'_>,
    link_args: nfs3::LinkArgs<'_>,
    readdir_args: nfs3::ReaddirArgs,
    readdirplus_args: nfs3::ReaddirplusArgs,
    commit_args: nfs3::CommitArgs,
    getattr_res: nfs3::GetattrRes,
    setattr_res: nfs3::SetattrRes,
    lookup_res: nfs3::LookupRes,
    access_res: nfs3::AccessRes,
    readlink_res: nfs3::ReadlinkRes<'_>,
    read_res: nfs3::ReadRes<'_>,
    write_res: nfs3::WriteRes,
    create_res: nfs3::CreateRes,
    remove_res: nfs3::RemoveRes,
    rename_res: nfs3::RenameRes,
    link_res: nfs3::LinkRes,
    readdir_res: nfs3::ReaddirRes<'_>,
    readdirplus_res: nfs3::ReaddirplusRes<'_>,
    fsstat_res: nfs3::FsstatRes,
    fsinfo_res: nfs3::FsinfoRes,
    pathconf_res: nfs3::PathconfRes,
    commit_res: nfs3::CommitRes,
    mount_list: mount3::MountList<'_>,
    export_list: mount3::ExportList<'_>,
    mapping: portmap::Mapping,
    mapping_list: portmap::MappingList,
    long_signed: i64,
    array: Array<'_, &[u8], 8>,
    rpcb: rpcbind::Rpcb<'_>,
    rpcb_list: rpcbind::RpcbList<'_>,
    nlm_test_args: nlm4::TestArgs<'_>,
    nlm_test_res: nlm4::TestRes<'_>,
    nlm_lock_args: nlm4::LockArgs<'_>,
    nlm_cancel_args: nlm4::CancelArgs<'_>,
    nlm_unlock_args: nlm4::UnlockArgs<'_>,
    nlm_res: nlm4::Res<'_>,
    nlm_share_args: nlm4::ShareArgs<'_>,
    nlm_share_res: nlm4::ShareRes<'_>,
    nlm_notify: nlm4::Notify<'_>,
    nsm_name: nsm::Name<'_>,
    nsm_mon: nsm::Mon<'_>,
    nsm_mon_id: nsm::MonId<'_>,
    nsm_my_id: nsm::MyId<'_>,
    nsm_stat_change: nsm::StatChange<'_>,
    nsm_state: nsm::State,
    nsm_stat_res: nsm::StatRes,
    nsm_status: nsm::Status<'_>,
    getacl_args: nfsacl3::GetaclArgs,
    getacl_res: nfsacl3::GetaclRes<'_>,
    setacl_args: nfsacl3::SetaclArgs<'_>,
    setacl_res: nfsacl3::SetaclRes,
    bitmap4: nfs4::Bitmap,
    fattr4: nfs4::Fattr<'_>,
    operation: nfs4::Op<'_>,
    callback_operation: nfs4::CbOp<'_>,
}

proptest! {
    #[test]
    fn mount_results(entropy in prop::collection::vec(any::<u8>(), 0..600), bytes in message()) {
        if let Ok(result) = mount_res(&mut Unstructured::new(&entropy)) {
            holds(&result);
        }
        bytes_hold::<mount3::MountRes>(bytes.leak());
    }

    #[test]
    fn call_headers(entropy in prop::collection::vec(any::<u8>(), 0..900)) {
        if let Ok(header) = CallHeader::arbitrary(&mut Unstructured::new(&entropy)) {
            let mut bytes = Vec::new();
            header.encode(&mut bytes);
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(CallHeader::decode(&mut reader), Ok(header));
            prop_assert_eq!(reader.remaining(), 0);
            for len in 0..bytes.len() {
                prop_assert!(CallHeader::decode(&mut Reader::new(&bytes[..len])).is_err());
            }
        }
    }

    #[test]
    fn call_headers_from_any_bytes(bytes in message()) {
        let _ = CallHeader::decode(&mut Reader::new(&bytes));
    }
}

#[test]
fn lists_are_bounded() {
    let bytes: Vec<u8> = std::iter::repeat_n([0, 0, 0, 1, 0, 0, 0, 0], 5000).flatten().collect();
    let error = List::<&[u8]>::decode(&mut Reader::new(&bytes)).unwrap_err();
    assert_eq!(error, DecodeError::TooLong { length: 4097, max: 4096 });
}
