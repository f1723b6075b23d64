//! Tests of messages byte by byte, and of the errors that determine a server's answer.

use crate::nfs3::{
    Entry, EntryPlus, Failed, Fattr3, FileHandle, Ftype3, Nfsstat3, Nfstime3, Procedure, ReadOk, ReadRes,
    ReaddirRes, ReaddirplusRes, Specdata3, WriteArgs, encode_entry, encode_entryplus, encode_listing_end,
    encode_listing_header, encode_read_header, entry_size, entryplus_size, listing_header_size,
};
use crate::nfs3::{LISTING_END_SIZE, StableHow};
use crate::rpc::{
    AUTH_SYS, Auth, AuthStat, AuthSys, CallError, CallHeader, Gids, OpaqueAuth, ReplyHeader, ReplyStatus,
};
use crate::xdr::{Decode, DecodeError, Encode, Fixed as _, Reader, encode_opaque_fixed};

fn encoded(value: &impl Encode) -> Vec<u8> {
    let mut out = Vec::new();
    value.encode(&mut out);
    out
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn attributes() -> Fattr3 {
    let time = |seconds| Nfstime3 { seconds, nseconds: seconds + 1 };
    Fattr3 {
        ftype: Ftype3::Reg,
        mode: 0o644,
        nlink: 3,
        uid: 4,
        gid: 5,
        size: 6 << 32 | 7,
        used: 8 << 32 | 9,
        rdev: Specdata3 { major: 10, minor: 11 },
        fsid: 12 << 32 | 13,
        fileid: 14 << 32 | 15,
        atime: time(16),
        mtime: time(18),
        ctime: time(20),
    }
}

#[test]
fn attributes_are_laid_out_as_the_rfc_says() {
    let expected = words(&[1, 0o644, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21]);
    assert_eq!(encoded(&attributes()), expected);
    assert_eq!(expected.len(), Fattr3::SIZE);
}

#[test]
fn padding_may_be_anything_but_must_be_there() {
    let decode = |bytes: &[u8]| <&[u8]>::decode(&mut Reader::new(bytes)).map(<[u8]>::to_vec);
    assert_eq!(decode(&[0, 0, 0, 1, b'x', 9, 9, 9]), Ok(b"x".to_vec()));
    assert_eq!(decode(&[0, 0, 0, 1, b'x', 0, 0]), Err(DecodeError::Truncated { missing: 1 }));
    assert_eq!(encoded(&b"x".as_slice()), [0, 0, 0, 1, b'x', 0, 0, 0]);
}

#[test]
fn booleans_and_enums_are_strict() {
    let two = words(&[2]);
    assert_eq!(bool::decode(&mut Reader::new(&two)), Err(DecodeError::BadBool(2)));
    let zero = words(&[0]);
    let error = Ftype3::decode(&mut Reader::new(&zero)).unwrap_err();
    assert_eq!(error.to_string(), "0 is not a value of ftype3");
}

#[test]
fn handles_above_64_bytes_are_refused() {
    let mut bytes = words(&[65]);
    bytes.extend([0; 68]);
    let error = FileHandle::decode(&mut Reader::new(&bytes)).unwrap_err();
    assert_eq!(error, DecodeError::TooLong { length: 65, max: 64 });
    assert!(FileHandle::new(&[0; 65]).is_none());
    assert_eq!(FileHandle::new(&[7; 64]).unwrap().as_bytes(), [7; 64]);
}

#[test]
fn call_header_of_a_linux_client() {
    let mut bytes = words(&[0x1234, 0, 2, 100_003, 3, 1, AUTH_SYS, 32, 99, 4]);
    bytes.extend(b"host");
    bytes.extend(words(&[1000, 100, 2, 24, 25, 0, 0]));
    let sys = AuthSys {
        stamp: 99,
        machine_name: b"host",
        uid: 1000,
        gid: 100,
        gids: Gids::new(&[24, 25]).unwrap(),
    };
    let header = CallHeader {
        xid: 0x1234,
        prog: 100_003,
        vers: 3,
        proc: Procedure::Getattr as u32,
        cred: Auth::Sys(sys),
        verf: OpaqueAuth::NONE,
    };
    let mut reader = Reader::new(&bytes);
    assert_eq!(CallHeader::decode(&mut reader), Ok(header));
    assert_eq!(reader.remaining(), 0);
    assert_eq!(encoded(&header), bytes);
}

#[test]
fn calls_that_must_be_denied_are_told_apart() {
    let decode = |bytes: &[u8]| CallHeader::decode(&mut Reader::new(bytes)).unwrap_err();
    assert_eq!(decode(&words(&[7, 0, 3])), CallError::RpcMismatch { xid: 7 });
    assert!(matches!(decode(&words(&[7, 1, 2])), CallError::Malformed(DecodeError::UnknownValue { .. })));
    assert!(matches!(decode(&words(&[7, 0])), CallError::Malformed(DecodeError::Truncated { .. })));
    let bad_cred = CallError::BadAuth { xid: 7, stat: AuthStat::BadCred };
    // Three bad credentials: 17 groups; an AUTH_SYS body that ends early; a body above 400 bytes.
    let mut many = vec![7, 0, 2, 100_003, 3, 0, AUTH_SYS, 20 + 17 * 4, 0, 0, 1, 1, 17];
    many.extend([0; 19]);
    assert_eq!(decode(&words(&many)), bad_cred);
    assert_eq!(decode(&words(&[7, 0, 2, 100_003, 3, 0, AUTH_SYS, 8, 0, 0, 0, 0])), bad_cred);
    let mut long = vec![7, 0, 2, 100_003, 3, 0, 5, 404];
    long.extend([0; 103]);
    assert_eq!(decode(&words(&long)), bad_cred);
    long[7] = 0;
    long[9] = 404;
    assert_eq!(decode(&words(&long)), CallError::BadAuth { xid: 7, stat: AuthStat::BadVerf });
}

#[test]
fn reply_headers_are_laid_out_as_the_rfc_says() {
    let reply = |status| encoded(&ReplyHeader { xid: 9, status });
    assert_eq!(reply(ReplyStatus::Success), words(&[9, 1, 0, 0, 0, 0]));
    assert_eq!(reply(ReplyStatus::ProgUnavail), words(&[9, 1, 0, 0, 0, 1]));
    assert_eq!(reply(ReplyStatus::ProgMismatch { low: 3, high: 4 }), words(&[9, 1, 0, 0, 0, 2, 3, 4]));
    assert_eq!(reply(ReplyStatus::ProcUnavail), words(&[9, 1, 0, 0, 0, 3]));
    assert_eq!(reply(ReplyStatus::GarbageArgs), words(&[9, 1, 0, 0, 0, 4]));
    assert_eq!(reply(ReplyStatus::SystemErr), words(&[9, 1, 0, 0, 0, 5]));
    assert_eq!(reply(ReplyStatus::RpcMismatch { low: 2, high: 2 }), words(&[9, 1, 1, 0, 2, 2]));
    assert_eq!(reply(ReplyStatus::AuthError(AuthStat::TooWeak)), words(&[9, 1, 1, 1, 5]));
}

#[test]
fn replies_with_a_verifier_are_read() {
    let bytes = words(&[9, 1, 0, 6, 8, 0, 0, 3]);
    let header = ReplyHeader::decode(&mut Reader::new(&bytes)).unwrap();
    assert_eq!(header.status, ReplyStatus::ProcUnavail);
}

#[test]
fn read_and_write_take_their_payload_from_elsewhere() {
    let result: ReadRes<'_> =
        Ok(ReadOk { file_attributes: Some(attributes()), count: 5, eof: true, data: b"hello" });
    let mut pieces = Vec::new();
    encode_read_header(&mut pieces, &Some(attributes()), 5, true);
    encode_opaque_fixed(&mut pieces, b"hello");
    assert_eq!(pieces, encoded(&result));

    let file = FileHandle::new(b"abc").unwrap();
    let args = WriteArgs { file, offset: 1 << 40, count: 5, stable: StableHow::FileSync, data: b"hello" };
    let mut pieces = Vec::new();
    WriteArgs::encode_header(&mut pieces, &file, 1 << 40, 5, StableHow::FileSync);
    encode_opaque_fixed(&mut pieces, b"hello");
    assert_eq!(pieces, encoded(&args));
}

#[test]
fn listings_have_the_sizes_that_were_promised() {
    let entries = [
        Entry { fileid: 1, name: b".", cookie: 1 },
        Entry { fileid: 2, name: b"four", cookie: 2 },
        Entry { fileid: 3, name: &[0xff; 255], cookie: u64::MAX },
    ];
    let mut out = Vec::new();
    encode_listing_header(&mut out, &Some(attributes()), [3; 8]);
    assert_eq!(out.len(), 4 + listing_header_size(&Some(attributes())));
    for entry in &entries {
        let before = out.len();
        encode_entry(&mut out, entry);
        assert_eq!(out.len() - before, entry_size(entry.name.len()));
    }
    let before = out.len();
    encode_listing_end(&mut out, true);
    assert_eq!(out.len() - before, LISTING_END_SIZE);

    let mut reader = Reader::new(&out);
    let listing = ReaddirRes::decode(&mut reader).unwrap().unwrap();
    assert_eq!(reader.remaining(), 0);
    assert!(listing.eof);
    assert_eq!(listing.cookieverf, [3; 8]);
    assert!(listing.entries.iter().eq(entries));
}

#[test]
fn listings_with_attributes_have_the_sizes_that_were_promised() {
    let entries = [
        EntryPlus { fileid: 1, name: b".", cookie: 1, name_attributes: None, name_handle: None },
        EntryPlus {
            fileid: 2,
            name: b"file",
            cookie: 2,
            name_attributes: Some(attributes()),
            name_handle: FileHandle::new(&[1; 29]),
        },
    ];
    let mut out = Vec::new();
    encode_listing_header(&mut out, &None, [0; 8]);
    assert_eq!(out.len(), 4 + listing_header_size(&None));
    for entry in &entries {
        let before = out.len();
        encode_entryplus(&mut out, entry);
        assert_eq!(out.len() - before, entryplus_size(entry));
    }
    encode_listing_end(&mut out, false);
    let listing = ReaddirplusRes::decode(&mut Reader::new(&out)).unwrap().unwrap();
    assert!(!listing.eof);
    assert!(listing.entries.iter().eq(entries));
}

#[test]
fn failures_carry_their_attributes() {
    let result: ReadRes<'_> = Err(Failed { status: Nfsstat3::Stale, attributes: None });
    assert_eq!(encoded(&result), words(&[70, 0]));
}

#[test]
fn statuses_print_their_names() {
    let names = [Nfsstat3::Ok, Nfsstat3::Nametoolong, Nfsstat3::NotSync].map(|status| status.to_string());
    assert_eq!(names, ["NFS3_OK", "NFS3ERR_NAMETOOLONG", "NFS3ERR_NOT_SYNC"]);
}

#[test]
fn procedures_have_their_names_and_numbers() {
    assert_eq!(Procedure::try_from(21).unwrap().name(), "COMMIT");
    assert_eq!(Procedure::try_from(7).unwrap().name(), "WRITE");
    assert_eq!(Procedure::try_from(17).unwrap().name(), "READDIRPLUS");
    assert!(Procedure::try_from(22).is_err());
}
