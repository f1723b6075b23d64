//! Tests of NFSv4 messages byte by byte. The expected bytes are written from the XDR of RFC 7863 and RFC 8881.

use std::fmt::Debug;

use crate::array::{Array, Opaque};
use crate::nfs4::*;
use crate::xdr::{Decode, DecodeError, Encode, Reader, encode_opaque_fixed};

macro_rules! words {
    ($($word:expr),*) => { &[$(($word as u32).to_be_bytes()),*].concat()[..] };
}

fn encoded(value: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

fn layout<'a, T: Encode + Decode<'a> + PartialEq + Debug>(value: &T, pieces: &[&[u8]]) {
    let expected: &'a [u8] = pieces.concat().leak();
    assert_eq!(encoded(value), expected);
    let mut input = Reader::new(expected);
    assert_eq!(&T::decode(&mut input).unwrap(), value);
    assert_eq!(input.remaining(), 0);
}

const STATEID: Stateid = Stateid { seqid: 2, other: *b"stateidother" };
const STATEID_BYTES: &[u8] = b"\0\0\0\x02stateidother";
const OWNER: StateOwner<'_> = StateOwner { clientid: 3 << 32 | 4, owner: Opaque(b"owner") };
const OWNER_BYTES: &[u8] = b"\0\0\0\x03\0\0\0\x04\0\0\0\x05owner\0\0\0";

#[test]
fn exchange_id() {
    let args = Op::ExchangeId(ExchangeIdArgs {
        client_owner: ClientOwner { verifier: *b"verifier", id: Opaque(b"client") },
        flags: exchange_id::SUPP_MOVED_REFER | exchange_id::USE_NON_PNFS,
        state_protect: StateProtectArgs::None,
        impl_id: Some(ImplId { domain: b"a.b", name: b"n", date: Nfstime4 { seconds: -1, nseconds: 5 } }),
    });
    let impl_id = b"\0\0\0\x01\0\0\0\x03a.b\0\0\0\0\x01n\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\x05";
    layout(&args, &[words![42], b"verifier\0\0\0\x06client\0\0", words![0x10001, 0], impl_id]);
    let ok = ExchangeIdOk {
        clientid: 7,
        sequence: 1,
        flags: exchange_id::USE_NON_PNFS,
        state_protect: StateProtectRes::None,
        server_owner: ServerOwner { minor_id: 9, major_id: Opaque(b"maj") },
        server_scope: Opaque(b"scop"),
        impl_id: None,
    };
    let expected = [words![42, 0, 0, 7, 1, 0x10000, 0, 0, 9], b"\0\0\0\x03maj\0\0\0\0\x04scop", words![0]];
    layout(&OpResult::ExchangeId(Ok(ok)), &expected);
}

#[test]
fn create_session() {
    let channel = |first| ChannelAttrs {
        header_pad: 0,
        max_request: first,
        max_response: first + 1,
        max_response_cached: first + 2,
        max_operations: first + 3,
        max_requests: first + 4,
        rdma_ird: None,
    };
    let sys = crate::rpc::AuthSys {
        stamp: 1,
        machine_name: b"host",
        uid: 2,
        gid: 3,
        gids: crate::rpc::Gids::new(&[4]).unwrap(),
    };
    let mut buffer = Vec::new();
    let sec_parms = Array::encoded(&mut buffer, &[CallbackSec::None, CallbackSec::Sys(sys)]).unwrap();
    let args = CreateSessionArgs {
        clientid: 5,
        sequence: 6,
        flags: create_session::CONN_BACK_CHAN,
        fore_channel: channel(10),
        back_channel: ChannelAttrs { rdma_ird: Some(8), ..channel(20) },
        cb_program: 0x4000_0000,
        sec_parms,
    };
    let channels = words![0, 10, 11, 12, 13, 14, 0, 0, 20, 21, 22, 23, 24, 1, 8];
    let sec = [words![0x4000_0000, 2, 0, 1, 1, 4], b"host", words![2, 3, 1, 4]].concat();
    layout(&Op::CreateSession(args), &[words![43, 0, 5, 6, 2], channels, &sec]);
    let CreateSessionArgs { sequence, flags, fore_channel, back_channel, .. } = args;
    let ok = CreateSessionOk { sessionid: *b"sessionidentity.", sequence, flags, fore_channel, back_channel };
    layout(&OpResult::CreateSession(Ok(ok)), &[words![43, 0], b"sessionidentity.", words![6, 2], channels]);
}

#[test]
fn sequence() {
    let sessionid = *b"sessionidentity.";
    let args = SequenceArgs { sessionid, sequence: 1, slot: 2, highest_slot: 3, cache_this: true };
    layout(&Op::Sequence(args), &[words![53], &sessionid, words![1, 2, 3, 1]]);
    let ok = SequenceOk {
        sessionid,
        sequence: 1,
        slot: 2,
        highest_slot: 3,
        target_highest_slot: 4,
        status_flags: seq_status::CB_PATH_DOWN,
    };
    layout(&OpResult::Sequence(Ok(ok)), &[words![53, 0], &sessionid, words![1, 2, 3, 4, 1]]);
    layout(&OpResult::Sequence(Err(Nfsstat4::SeqMisordered)), &[words![53, 10063]]);
}

#[test]
fn open_by_name_with_attributes() {
    let mut values = Vec::new();
    let attributes = Attributes { size: Some(0), mode: Some(0o640), ..Attributes::default() };
    let fattr = Fattr::encoded(&mut values, &attributes);
    let fattr_bytes = words![2, 0x10, 0x2, 12, 0, 0, 0o640];
    let mut args = OpenArgs {
        seqid: 0,
        share_access: share::BOTH | share::WANT_NO_DELEG,
        share_deny: 0,
        owner: OWNER,
        how: OpenHow::Create(CreateHow::Unchecked(fattr)),
        claim: OpenClaim::Null(b"file"),
    };
    let head = [words![18, 0, 0x403, 0], OWNER_BYTES].concat();
    layout(&Op::Open(args), &[&head, words![1, 0], fattr_bytes, b"\0\0\0\0\0\0\0\x04file"]);
    let both = CreateVerfAttr { verifier: *b"verifier", attributes: fattr };
    args.how = OpenHow::Create(CreateHow::Exclusive41(both));
    layout(&Op::Open(args), &[&head, words![1, 3], b"verifier", fattr_bytes, b"\0\0\0\0\0\0\0\x04file"]);
    args.how = OpenHow::NoCreate;
    args.claim = OpenClaim::Fh;
    layout(&Op::Open(args), &[&head, words![0, 4]]);
    args.claim = OpenClaim::Previous(DelegationType::Write);
    layout(&Op::Open(args), &[&head, words![0, 1, 2]]);
    args.claim = OpenClaim::DelegCurFh(STATEID);
    layout(&Op::Open(args), &[&head, words![0, 5], STATEID_BYTES]);
}

#[test]
fn open_results_with_delegations() {
    let cinfo = ChangeInfo { atomic: true, before: 1, after: 2 };
    let mut ok = OpenOk {
        stateid: STATEID,
        cinfo,
        rflags: open_result::LOCKTYPE_POSIX,
        attrset: Bitmap::of(&[attr::MODE]),
        delegation: Delegation::NoneExt(WhyNoDelegation::Contention(true)),
    };
    let head = [words![18, 0], STATEID_BYTES, words![1, 0, 1, 0, 2, 4, 2, 0, 2]].concat();
    layout(&OpResult::Open(Ok(ok)), &[&head, words![3, 1, 1]]);
    ok.delegation = Delegation::NoneExt(WhyNoDelegation::NotWanted);
    layout(&OpResult::Open(Ok(ok)), &[&head, words![3, 0]]);
    let permissions = Ace { kind: 0, flag: 0, access_mask: 1, principal: b"OWNER@" };
    let ace = [words![0, 0, 1, 6], b"OWNER@\0\0"].concat();
    ok.delegation = Delegation::Read(ReadDelegation { stateid: STATEID, recall: false, permissions });
    layout(&OpResult::Open(Ok(ok)), &[&head, words![1], STATEID_BYTES, words![0], &ace]);
    let space_limit = SpaceLimit::Size(7);
    let write = WriteDelegation { stateid: STATEID, recall: true, space_limit, permissions };
    ok.delegation = Delegation::Write(write);
    layout(&OpResult::Open(Ok(ok)), &[&head, words![2], STATEID_BYTES, words![1, 1, 0, 7], &ace]);
}

#[test]
fn locks() {
    let new = OpenToLockOwner { open_seqid: 0, open_stateid: STATEID, lock_seqid: 1, lock_owner: OWNER };
    let mut args = LockArgs {
        locktype: LockType::WriteWait,
        reclaim: false,
        offset: 5,
        length: TO_END,
        locker: Locker::New(new),
    };
    let head = words![12, 4, 0, 0, 5, u32::MAX, u32::MAX];
    layout(&Op::Lock(args), &[head, words![1, 0], STATEID_BYTES, words![1], OWNER_BYTES]);
    args.locker = Locker::Existing(ExistLockOwner { lock_stateid: STATEID, lock_seqid: 6 });
    layout(&Op::Lock(args), &[head, words![0], STATEID_BYTES, words![6]]);
    let denied = LockDenied { offset: 1, length: 2, locktype: LockType::Read, owner: OWNER };
    let denied_bytes = [words![10010, 0, 1, 0, 2, 1], OWNER_BYTES].concat();
    layout(&OpResult::Lock(ResultOr::Failed(denied)), &[words![12], &denied_bytes]);
    layout(&OpResult::Lockt(ResultOr::Failed(denied)), &[words![13], &denied_bytes]);
    layout(&OpResult::Lockt(ResultOr::Ok(())), &[words![13, 0]]);
    layout(&OpResult::Locku(Ok(StateidOk { stateid: STATEID })), &[words![14, 0], STATEID_BYTES]);
}

#[test]
fn read_and_write_take_their_payload_from_elsewhere() {
    let result = OpResult::Read(Ok(ReadOk { eof: true, data: b"hello" }));
    layout(&result, &[words![25, 0, 1, 5], b"hello\0\0\0"]);
    let mut pieces = words![25, 0].to_vec();
    encode_read_header(&mut pieces, 5, true);
    encode_opaque_fixed(&mut pieces, b"hello");
    assert_eq!(pieces, encoded(&result));

    let args = WriteArgs { stateid: STATEID, offset: 9, stable: StableHow4::FileSync, data: b"hello" };
    layout(&Op::Write(args), &[words![38], STATEID_BYTES, words![0, 9, 2, 5], b"hello\0\0\0"]);
    let mut pieces = words![38].to_vec();
    WriteArgs::encode_header(&mut pieces, &STATEID, 9, StableHow4::FileSync, 5);
    encode_opaque_fixed(&mut pieces, b"hello");
    assert_eq!(pieces, encoded(&Op::Write(args)));

    let mut pieces = words![68, 0].to_vec();
    encode_read_plus_header(&mut pieces, false, 2);
    ReadPlusContent::Hole(HolePiece { offset: 0, length: 4096 }).encode(&mut pieces);
    encode_data_header(&mut pieces, 4096, 5);
    encode_opaque_fixed(&mut pieces, b"hello");
    let expected = [words![68, 0, 0, 2, 1, 0, 0, 0, 4096, 0, 0, 4096, 5], b"hello\0\0\0"].concat();
    assert_eq!(pieces, expected);
    let OpResult::ReadPlus(Ok(ok)) = OpResult::decode(&mut Reader::new(&pieces)).unwrap() else { panic!() };
    let data = ReadPlusContent::Data(DataPiece { offset: 4096, data: b"hello" });
    assert_eq!(ok.contents.iter().nth(1), Some(data));
}

#[test]
fn copies() {
    let args = CopyArgs {
        src_stateid: STATEID,
        dst_stateid: STATEID,
        src_offset: 1,
        dst_offset: 2,
        count: 3,
        consecutive: true,
        synchronous: false,
        source_server: Array::EMPTY,
    };
    let head = [words![60], STATEID_BYTES, STATEID_BYTES].concat();
    layout(&Op::Copy(args), &[&head, words![0, 1, 0, 2, 0, 3, 1, 0, 0]]);
    let requirements = CopyRequirements { consecutive: true, synchronous: false };
    let response = WriteResponse {
        callback_id: Some(STATEID),
        count: 4,
        committed: StableHow4::Unstable,
        verifier: *b"verifier",
    };
    let response_bytes = [words![1], STATEID_BYTES, words![0, 4, 0], b"verifier"].concat();
    let ok = CopyOk { response, requirements };
    layout(&OpResult::Copy(ResultOr::Ok(ok)), &[words![60, 0], &response_bytes, words![1, 0]]);
    layout(&OpResult::Copy(ResultOr::Failed(requirements)), &[words![60, 10094, 1, 0]]);
    let fh = Opaque(b"fh..".as_slice());
    let done = CbOffloadArgs { fh, stateid: STATEID, info: OffloadInfo::Done(response) };
    let head = [words![15, 4], b"fh..", STATEID_BYTES].concat();
    layout(&CbOp::Offload(done), &[&head, words![0], &response_bytes]);
    let info = OffloadInfo::Failed { status: Nfsstat4::Nospc, bytes_copied: 8 };
    layout(&CbOp::Offload(CbOffloadArgs { info, ..done }), &[&head, words![28, 0, 8]]);
    let ok = OffloadStatusOk { count: 5, complete: Some(Nfsstat4::Ok) };
    layout(&OpResult::OffloadStatus(Ok(ok)), &[words![67, 0, 0, 5, 1, 0]]);
}

#[test]
fn attributes_are_in_the_order_of_their_numbers() {
    let attributes = Attributes {
        supported_attrs: Some(Bitmap::of(&[attr::SUPPORTED_ATTRS, attr::XATTR_SUPPORT])),
        ftype: Some(Ftype4::Dir),
        fsid: Some(Fsid4 { major: 1, minor: 2 }),
        owner: Some(b"root"),
        time_modify: Some(Nfstime4 { seconds: 3, nseconds: 4 }),
        time_modify_set: None,
        change_attr_type: Some(ChangeAttrType::MonotonicIncr),
        xattr_support: Some(true),
        ..Attributes::default()
    };
    let request = Bitmap::of(&[
        attr::SUPPORTED_ATTRS,
        attr::TYPE,
        attr::SIZE,
        attr::FSID,
        attr::OWNER,
        attr::TIME_MODIFY,
        attr::XATTR_SUPPORT,
    ]);
    let mut out = Vec::new();
    let sent = attributes.encode(&request, &mut out);
    assert!(!sent.contains(attr::SIZE) && !sent.contains(attr::CHANGE_ATTR_TYPE));
    let mask = words![3, 0x103, 0x0020_0010, 0x0004_0000];
    let values = [words![3, 1, 0, 0x0004_0000, 2, 0, 1, 0, 2, 4], b"root", words![0, 3, 4, 1]].concat();
    assert_eq!(out, [mask, words![values.len()], &values].concat());
}

#[test]
fn verify_compares_bytes() {
    let server = Attributes { size: Some(5), mode: Some(0o600), ..Attributes::default() };
    let compare = |client: Attributes<'_>| {
        let mut buffer = Vec::new();
        server.matches(&Fattr::encoded(&mut buffer, &client), &mut Vec::new())
    };
    assert_eq!(compare(Attributes { size: Some(5), ..Attributes::default() }), Some(true));
    assert_eq!(compare(Attributes { size: Some(6), ..Attributes::default() }), Some(false));
    assert_eq!(compare(Attributes { numlinks: Some(1), ..Attributes::default() }), None);
    let unknown = Fattr { unknown: true, ..Fattr::default() };
    assert_eq!(server.matches(&unknown, &mut Vec::new()), None);
}

#[test]
fn attributes_above_95_are_seen_but_not_kept() {
    let bytes = words![4, 2, 0, 0, 1, 4, 1];
    let fattr = Fattr::decode(&mut Reader::new(bytes)).unwrap();
    assert_eq!((fattr.mask, fattr.unknown), (Bitmap::of(&[1]), true));
    assert!(fattr.attributes().is_err());
    assert_eq!(encoded(&fattr), bytes);
    let long = [words![33], &[0; 132]].concat();
    assert_eq!(
        Bitmap::decode(&mut Reader::new(&long)),
        Err(DecodeError::TooLong { length: 33, max: MAX_BITMAP_WORDS })
    );
}

#[test]
fn bitmaps() {
    let mut bitmap = Bitmap::of(&[0, 31, 32, 95]);
    assert_eq!(bitmap.iter().collect::<Vec<_>>(), [0, 31, 32, 95]);
    bitmap.remove(31);
    bitmap.insert(96);
    assert!(
        bitmap.contains(95) && !bitmap.contains(31) && !bitmap.contains(96) && !bitmap.contains(u32::MAX)
    );
    assert!(Bitmap::of(&[32]).is_subset(&bitmap) && !Bitmap::of(&[33]).is_subset(&bitmap));
    assert_eq!(encoded(&Bitmap::EMPTY), words![0]);
    assert_eq!(encoded(&Bitmap::of(&[33])), words![2, 0, 2]);
    assert!(attr::WRITE_ONLY.contains(attr::TIME_ACCESS_SET) && attr::SETTABLE.contains(attr::MODE));
}

#[test]
fn listings_stop_at_their_limits() {
    let attributes = Attributes { fileid: Some(7), ..Attributes::default() };
    let request = Bitmap::of(&[attr::FILEID]);
    // An entry of a name of four bytes has 4 + 8 + 8 + (8 + 4 + 8) bytes, 16 of which count against `dircount`.
    let list = |dircount, maxcount| {
        let mut out = Vec::new();
        let mut listing = Listing::begin(&mut out, [3; 8], dircount, maxcount);
        let names = [b"aaaa", b"bbbb", b"cccc"];
        let all = names.iter().enumerate().all(|(cookie, name)| {
            listing.entry(&mut out, cookie as u64 + 1, *name, |out| {
                attributes.encode(&request, out);
            })
        });
        let entries = listing.len();
        assert_eq!(listing.is_empty(), entries == 0);
        listing.finish(&mut out, all);
        let ok = ReaddirOk::decode(&mut Reader::new(&out)).unwrap();
        assert_eq!((ok.eof, ok.entries.iter().count()), (all, entries as usize));
        (entries, out.len())
    };
    assert_eq!(list(0, 1000), (3, 136));
    assert_eq!(list(0, 136), (3, 136));
    assert_eq!(list(0, 135), (2, 96));
    assert_eq!(list(0, 96), (2, 96));
    assert_eq!(list(0, 56), (1, 56));
    assert_eq!(list(0, 55), (0, 16));
    assert_eq!(list(32, 1000), (2, 96));
    assert_eq!(list(1, 1000), (1, 56));
}

#[test]
fn extended_attributes() {
    let args = SetxattrArgs { option: SetxattrOption::Create, name: b"key.", value: b"val" };
    layout(&Op::Setxattr(args), &[words![73, 1, 4], b"key.\0\0\0\x03val\0"]);
    let list = |maxcount| {
        let mut out = Vec::new();
        let mut listing = XattrListing::begin(&mut out, maxcount);
        let all = [b"aaaa", b"bbbb"].iter().all(|name| listing.name(&mut out, *name));
        listing.finish(&mut out, 9, all);
        out
    };
    assert_eq!(list(32), [words![0, 9, 2, 4], b"aaaa", words![4], b"bbbb", words![1]].concat());
    assert_eq!(list(31), [words![0, 9, 1, 4], b"aaaa", words![0]].concat());
    assert_eq!(list(10), words![0, 9, 0, 0]);
    let bytes = list(32);
    let ok = ListxattrsOk::decode(&mut Reader::new(&bytes)).unwrap();
    assert!(ok.names.iter().eq([b"aaaa".as_slice(), b"bbbb"]));
}

#[test]
fn lists_are_bounded() {
    let error = Array::<'_, u32, 4>::decode(&mut Reader::new(words![5, 0, 0, 0, 0, 0])).unwrap_err();
    assert_eq!(error, DecodeError::TooLong { length: 5, max: 4 });
    assert!(Array::<'_, u32, 4>::encoded(&mut Vec::new(), &[0; 5]).is_none());
    for number in [Opcode::TestStateid, Opcode::Putfh] {
        let bytes = words![number, u32::MAX];
        assert!(matches!(Op::decode(&mut Reader::new(bytes)), Err(DecodeError::TooLong { .. })));
    }
    let owner = [words![0, 0, 1025], &[0; 1028]].concat();
    assert!(matches!(StateOwner::decode(&mut Reader::new(&owner)), Err(DecodeError::TooLong { .. })));
}

#[test]
fn special_states() {
    for stateid in [Stateid::ANONYMOUS, Stateid::BYPASS, Stateid::CURRENT, Stateid::INVALID] {
        assert!(stateid.is_special());
    }
    assert!(!STATEID.is_special());
    assert_eq!(encoded(&Stateid::CURRENT), words![1, 0, 0, 0]);
}

#[test]
fn statuses_print_their_names() {
    let names = [Nfsstat4::Ok, Nfsstat4::BadStateid, Nfsstat4::Xattr2big, Nfsstat4::OpIllegal];
    let expected = ["NFS4_OK", "NFS4ERR_BAD_STATEID", "NFS4ERR_XATTR2BIG", "NFS4ERR_OP_ILLEGAL"];
    assert_eq!(names.map(|status| status.to_string()), expected);
    assert_eq!(Opcode::try_from(46).unwrap().name(), "GET_DIR_DELEGATION");
}
