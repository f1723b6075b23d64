//! Tests of COMPOUND: its operations one at a time, and its reply.

use proptest::prelude::*;

use super::roundtrip::message;
use crate::array::{Array, Opaque};
use crate::nfs4::*;
use crate::xdr::{Decode, DecodeError, Encode, Reader};

fn compound(minor_version: u32, operations: &[Op<'_>]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = CompoundWriter::begin(&mut out, b"tag", minor_version);
    operations.iter().for_each(|operation| writer.push(&mut out, operation));
    out
}

fn three() -> [Op<'static>; 3] {
    [
        Op::Putrootfh(()),
        Op::Lookup(NameArgs { name: b"name" }),
        Op::Getattr(GetattrArgs { request: Bitmap::of(&[attr::TYPE, attr::SIZE]) }),
    ]
}

fn decode(record: &[u8]) -> Compound<'_> {
    Compound::decode(&mut Reader::new(record)).unwrap()
}

#[test]
fn operations_come_one_at_a_time_and_from_any_place() {
    let record = compound(1, &three());
    let Compound { tag, minor_version, mut operations } = decode(&record);
    assert_eq!((tag, minor_version, operations.left()), (b"tag".as_slice(), 1, 3));
    for (index, expected) in three().into_iter().enumerate() {
        assert_eq!(operations.peek(), Some(expected.number()));
        let position = operations.position();
        assert_eq!(position.index as usize, index);
        let opnum = &record[position.offset(record.len())..][..4];
        assert_eq!(opnum, (expected.number() as u32).to_be_bytes());
        assert_eq!(operations.next(), Some(Ok(expected)));
        let resumed: Vec<_> = Operations::<Op<'_>>::resume(&record, position).map(Result::unwrap).collect();
        assert_eq!(resumed, three()[index..]);
    }
    assert_eq!(operations.peek(), None);
    assert_eq!(operations.next(), None);
    assert_eq!(operations.position().offset(record.len()), record.len());
}

#[test]
fn undefined_numbers_are_the_illegal_operation() {
    for number in [0, 1, 2, 76, 10043, 10044, u32::MAX] {
        let mut record = compound(2, &[Op::Illegal(())]);
        let at = record.len() - 4;
        record[at..].copy_from_slice(&number.to_be_bytes());
        assert_eq!(decode(&record).operations.next(), Some(Ok(Op::Illegal(()))), "{number}");
    }
    let known: Vec<u32> = (0..12_000).filter(|&number| Opcode::try_from(number).is_ok()).collect();
    assert_eq!(known, (3..=75).chain([10044]).collect::<Vec<_>>());
}

#[test]
fn operations_of_a_later_minor_version_are_illegal() {
    let seek = Op::Seek(SeekArgs { stateid: Stateid::CURRENT, offset: 0, content: content::HOLE });
    let next = |minor| decode(compound(minor, &[seek]).leak()).operations.next();
    assert_eq!(next(1), Some(Ok(Op::Illegal(()))));
    assert_eq!(next(2), Some(Ok(seek)));
    let obsolete: Vec<&str> =
        Opcode::ALL.iter().filter(|number| number.is_obsolete()).map(|number| number.name()).collect();
    assert_eq!(
        obsolete,
        ["OPEN_CONFIRM", "RENEW", "SETCLIENTID", "SETCLIENTID_CONFIRM", "RELEASE_LOCKOWNER"]
    );
}

#[test]
fn a_malformed_operation_ends_the_compound_and_has_a_name() {
    let mut record = compound(1, &three());
    record.truncate(record.len() - 4);
    let mut operations = decode(&record).operations;
    assert!(matches!(operations.next(), Some(Ok(Op::Putrootfh(())))));
    assert!(matches!(operations.next(), Some(Ok(Op::Lookup(_)))));
    let error = operations.next().unwrap().unwrap_err();
    assert_eq!(error.number, Opcode::Getattr);
    assert_eq!(Nfsstat4::from(error.error), Nfsstat4::Badxdr);
    assert_eq!(operations.next(), None);

    // The header promises more operations than there are.
    let mut record = compound(1, &[Op::Savefh(())]);
    record[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    let mut operations = decode(&record).operations;
    assert!(operations.next().unwrap().is_ok());
    assert_eq!(operations.peek(), None);
    let missing = BadOperation { number: Opcode::Illegal, error: DecodeError::Truncated { missing: 4 } };
    assert_eq!(operations.next(), Some(Err(missing)));
    assert_eq!(operations.next(), None);
}

#[test]
fn tags_are_bounded() {
    let mut record = Vec::new();
    CompoundWriter::begin(&mut record, &[b't'; MAX_TAG + 1], 1);
    assert!(matches!(Compound::decode(&mut Reader::new(&record)), Err(DecodeError::TooLong { .. })));
}

#[test]
fn replies_are_complete_after_each_result() {
    let mut out = b"rpc header.."[..12].to_vec();
    let mut reply = CompoundReply::begin(&mut out, 0, b"tag");
    let check = |out: &[u8], status: Nfsstat4, count: u32| {
        let res = CompoundRes::<OpResult<'_>>::decode(&mut Reader::new(&out[12..])).unwrap();
        assert_eq!((res.status, res.tag, res.results.left()), (status, b"tag".as_slice(), count));
        res.results.map(Result::unwrap).collect::<Vec<_>>().len()
    };
    check(&out, Nfsstat4::Ok, 0);
    reply.push(&mut out, &OpResult::Putrootfh(Ok(())));
    assert_eq!(check(&out, Nfsstat4::Ok, 1), 1);
    reply.start(&mut out, Opcode::Getfh);
    HandleArgs { object: Opaque(b"handle") }.encode(&mut out);
    assert_eq!(check(&out, Nfsstat4::Ok, 2), 2);
    reply.push_failure(&mut out, Opcode::Setattr, Nfsstat4::Access);
    assert_eq!(check(&out, Nfsstat4::Access, 3), 3);
    assert_eq!((reply.count(), reply.status()), (3, Nfsstat4::Access));
    let mut results = CompoundRes::<OpResult<'_>>::decode(&mut Reader::new(&out[12..])).unwrap().results;
    assert_eq!(results.next(), Some(Ok(OpResult::Putrootfh(Ok(())))));
    assert_eq!(results.next(), Some(Ok(OpResult::Getfh(Ok(HandleArgs { object: Opaque(b"handle") })))));
    let setattr = SetattrRes { status: Nfsstat4::Access, attrsset: Bitmap::EMPTY };
    assert_eq!(results.next(), Some(Ok(OpResult::Setattr(setattr))));
    assert_eq!(results.next(), None);
}

#[test]
fn a_result_that_does_not_fit_becomes_a_failure() {
    let mut out = Vec::new();
    let mut reply = CompoundReply::begin(&mut out, 0, b"");
    reply.limit_to(80);
    reply.push(&mut out, &OpResult::Savefh(Ok(())));
    let before = reply.size(&out);
    assert_eq!(reply.room(&out), 80 - before);
    reply.start(&mut out, Opcode::Read);
    encode_read_header(&mut out, 64, true);
    reply.add_payload(64);
    assert_eq!(reply.size(&out), before + 16 + 64);
    assert!(!reply.fits(&out));
    assert_eq!(reply.room(&out), 0);
    reply.fail(&mut out, Opcode::Read, Nfsstat4::RepTooBig);
    assert!(reply.fits(&out));
    assert_eq!(reply.size(&out), before + 8);
    let mut res = CompoundRes::<OpResult<'_>>::decode(&mut Reader::new(&out)).unwrap();
    assert_eq!(res.status, Nfsstat4::RepTooBig);
    assert_eq!(res.results.nth(1), Some(Ok(OpResult::Read(Err(Nfsstat4::RepTooBig)))));
}

#[test]
fn a_refused_minor_version_has_no_results() {
    let mut out = Vec::new();
    CompoundReply::begin(&mut out, 0, b"t").refuse(&mut out, Nfsstat4::MinorVersMismatch);
    let expected = [10021u32.to_be_bytes(), 1u32.to_be_bytes(), *b"t\0\0\0", [0; 4]].concat();
    assert_eq!(out, expected);
}

#[test]
fn callbacks_go_both_ways() {
    let sequence = CbSequenceArgs {
        sessionid: [7; 16],
        sequence: 1,
        slot: 0,
        highest_slot: 0,
        cache_this: false,
        referring: Array::EMPTY,
    };
    let recall = CbRecallArgs {
        stateid: Stateid { seqid: 1, other: [3; 12] },
        truncate: false,
        fh: Opaque(b"handle"),
    };
    let mut out = Vec::new();
    let mut writer = CompoundWriter::begin_callback(&mut out, b"", 1, 0);
    writer.push(&mut out, &CbOp::Sequence(sequence));
    writer.push(&mut out, &CbOp::Recall(recall));
    let call = CbCompound::decode(&mut Reader::new(&out)).unwrap();
    assert_eq!((call.minor_version, call.callback_ident), (1, 0));
    let operations: Vec<_> = call.operations.map(Result::unwrap).collect();
    assert_eq!(operations, [CbOp::Sequence(sequence), CbOp::Recall(recall)]);

    let results = [
        CbResult::Sequence(Ok(CbSequenceOk {
            sessionid: [7; 16],
            sequence: 1,
            slot: 0,
            highest_slot: 0,
            target_highest_slot: 0,
        })),
        CbResult::Recall(Err(Nfsstat4::BadStateid)),
    ];
    let mut out = Vec::new();
    let mut reply = CompoundReply::begin(&mut out, 0, b"");
    results.iter().for_each(|result| reply.push(&mut out, result));
    let res = CompoundRes::<CbResult<'_>>::decode(&mut Reader::new(&out)).unwrap();
    assert_eq!(res.status, Nfsstat4::BadStateid);
    assert_eq!(res.results.map(Result::unwrap).collect::<Vec<_>>(), results);
}

proptest! {
    #[test]
    fn compounds_from_any_bytes(message in message(), minor in 0u32..4) {
        for number in (0..80).chain([10044]) {
            let head = [[0; 4], minor.to_be_bytes(), 40u32.to_be_bytes(), u32::to_be_bytes(number)].concat();
            let record = [head, message.clone()].concat();
            let results = decode(&record).operations.count();
            prop_assert!(results <= 40);
            let callback = [vec![0; 4], record].concat();
            prop_assert!(CbCompound::decode(&mut Reader::new(&callback)).unwrap().operations.count() <= 40);
        }
    }
}
