//! Seeds of NFSv4 and of its callbacks.

use forebay_wire::nfs4::*;
use forebay_wire::{Array, Encode, Opaque};

const STATEID: Stateid = Stateid { seqid: 1, other: [9; 12] };
const SESSION: SessionId = [5; 16];
const OWNER: StateOwner<'_> = StateOwner { clientid: 1, owner: Opaque(b"owner") };

fn attributes() -> Attributes<'static> {
    let time = Nfstime4 { seconds: 1_700_000_000, nseconds: 1 };
    Attributes {
        supported_attrs: Some(attr::KNOWN),
        ftype: Some(Ftype4::Reg),
        change: Some(7),
        size: Some(4096),
        fsid: Some(Fsid4 { major: 1, minor: 2 }),
        filehandle: Some(Opaque(b"a handle")),
        mode: Some(0o644),
        owner: Some(b"1000"),
        owner_group: Some(b"100"),
        time_modify: Some(time),
        change_attr_type: Some(ChangeAttrType::MonotonicIncr),
        ..Attributes::default()
    }
}

/// Returns messages of COMPOUND and CB_COMPOUND.
pub(crate) fn compounds() -> Vec<Vec<u8>> {
    let mut values = Vec::new();
    let settable = Attributes {
        mode: Some(0o600),
        time_modify_set: Some(SetTime4::ServerTime),
        ..Attributes::default()
    };
    let fattr = Fattr::encoded(&mut values, &settable);
    let sequence =
        SequenceArgs { sessionid: SESSION, sequence: 1, slot: 0, highest_slot: 3, cache_this: false };
    let open = OpenArgs {
        seqid: 0,
        share_access: share::BOTH,
        share_deny: 0,
        owner: OWNER,
        how: OpenHow::Create(CreateHow::Guarded(fattr)),
        claim: OpenClaim::Null(b"file"),
    };
    let new = OpenToLockOwner { open_seqid: 0, open_stateid: STATEID, lock_seqid: 0, lock_owner: OWNER };
    let lock = LockArgs {
        locktype: LockType::Write,
        reclaim: false,
        offset: 0,
        length: TO_END,
        locker: Locker::New(new),
    };
    let read = ReadArgs { stateid: STATEID, offset: 0, count: 4096 };
    let write = WriteArgs { stateid: STATEID, offset: 8, stable: StableHow4::FileSync, data: b"hello" };
    let setattr = SetattrArgs { stateid: Stateid::ANONYMOUS, attributes: fattr };
    let setxattr = SetxattrArgs { option: SetxattrOption::Either, name: b"key", value: b"value" };
    let sequenced: [&[Op<'_>]; 4] = [
        &[Op::Putrootfh(()), Op::Lookup(NameArgs { name: b"dir" }), Op::Open(open), Op::Getfh(())],
        &[Op::Putfh(HandleArgs { object: Opaque(b"handle") }), Op::Read(read), Op::ReadPlus(read)],
        &[Op::Write(write), Op::Setattr(setattr), Op::Lock(lock), Op::Setxattr(setxattr)],
        &[Op::Getattr(GetattrArgs { request: attr::KNOWN }), Op::Savefh(()), Op::Illegal(())],
    ];
    let mut messages: Vec<Vec<u8>> = sequenced
        .iter()
        .map(|operations| {
            let mut out = Vec::new();
            let mut writer = CompoundWriter::begin(&mut out, b"tag", 2);
            writer.push(&mut out, &Op::Sequence(sequence));
            operations.iter().for_each(|operation| writer.push(&mut out, operation));
            out
        })
        .collect();
    messages.push(callback());
    messages
}

fn callback() -> Vec<u8> {
    let sequence = CbSequenceArgs {
        sessionid: SESSION,
        sequence: 1,
        slot: 0,
        highest_slot: 0,
        cache_this: false,
        referring: Array::EMPTY,
    };
    let recall = CbRecallArgs { stateid: STATEID, truncate: false, fh: Opaque(b"handle") };
    let mut out = Vec::new();
    let mut writer = CompoundWriter::begin_callback(&mut out, b"", 1, 0);
    writer.push(&mut out, &CbOp::Sequence(sequence));
    writer.push(&mut out, &CbOp::Recall(recall));
    out
}

/// Returns replies to COMPOUND and CB_COMPOUND.
pub(crate) fn replies() -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    let mut reply = CompoundReply::begin(&mut out, 0, b"tag");
    reply.push(&mut out, &OpResult::Putrootfh(Ok(())));
    reply.start(&mut out, Opcode::Getattr);
    attributes().encode(&attr::KNOWN, &mut out);
    reply.start(&mut out, Opcode::Readdir);
    let mut listing = Listing::begin(&mut out, [0; 8], 0, 4096);
    let _ = listing.entry(&mut out, 1, b"name", |out| {
        attributes().encode(&attr::KNOWN, out);
    });
    listing.finish(&mut out, true);
    reply.push(&mut out, &OpResult::Read(Ok(ReadOk { eof: true, data: b"hello" })));
    let denied = LockDenied { offset: 0, length: 1, locktype: LockType::Read, owner: OWNER };
    reply.push(&mut out, &OpResult::Lock(ResultOr::Failed(denied)));
    let mut callback = Vec::new();
    let mut reply = CompoundReply::begin(&mut callback, 0, b"");
    let ok =
        CbSequenceOk { sessionid: SESSION, sequence: 1, slot: 0, highest_slot: 0, target_highest_slot: 0 };
    reply.push(&mut callback, &CbResult::Sequence(Ok(ok)));
    reply.push(&mut callback, &CbResult::Recall(Err(Nfsstat4::Delay)));
    let mut result = Vec::new();
    OpResult::Open(Err(Nfsstat4::Grace)).encode(&mut result);
    vec![out, callback, result]
}
