//! NFSv4.1 clients that lie: about sequence numbers, slots, state ids, sessions and owners. A client that lies harms
//! itself only.

use forebay_wire::Opaque;
use forebay_wire::nfs4::{
    ChannelAttrs, ClientOwner, CloseArgs, CreateHow, CreateSessionArgs, DestroyClientidArgs,
    DestroySessionArgs, ExchangeIdArgs, Fattr, LockType, LockuArgs, Nfsstat4, Op, OpenHow, SequenceArgs,
    StableHow4, StateProtectArgs, Stateid, TO_END, WriteArgs,
};

use crate::harness::*;
use crate::nfs4::{Client4, alone, putfh};

fn make() -> OpenHow<'static> {
    OpenHow::Create(CreateHow::Unchecked(Fattr::default()))
}

/// A client that holds a write lock on all of a file.
struct Victim {
    client: Client4,
    open: Stateid,
    file: Vec<u8>,
}

impl Victim {
    fn new(server: &Server) -> Self {
        let mut client = Client4::connect(server, b"victim");
        let (open, file) = client.open(b"file", make(), 0).unwrap();
        assert_eq!(client.lock(&file, open, LockType::Write, 0, TO_END), Nfsstat4::Ok);
        Victim { client, open, file }
    }

    /// Asserts that the client has its session, open and lock still.
    #[track_caller]
    fn is_well(&mut self, server: &Server) {
        let write = WriteArgs { stateid: self.open, offset: 0, stable: StableHow4::FileSync, data: b"well" };
        assert_eq!(self.client.status(&[putfh(&self.file), Op::Write(write)]), Nfsstat4::Ok);
        let mut other = Client4::connect(server, b"witness");
        let (open, file) = other.open(b"file", OpenHow::NoCreate, 0).unwrap();
        assert_eq!(other.lock(&file, open, LockType::Read, 0, 1), Nfsstat4::Denied);
    }
}

#[test]
fn wrong_sequence_numbers_and_slots_are_refused_and_move_nothing() {
    let server = Serve::unsquashed().start();
    let mut victim = Victim::new(&server);
    let mut c = Client4::connect(&server, b"liar");
    let (sessionid, right) = (c.session, c.sequence + 1);
    let mut sequence = |slot, sequence, highest_slot| {
        let args = SequenceArgs { sessionid, sequence, slot, highest_slot, cache_this: false };
        alone(&mut c.connection, &[Op::Sequence(args), Op::Putrootfh(())])
    };
    assert_eq!(sequence(0, right + 1, 0), Nfsstat4::SeqMisordered);
    assert_eq!(sequence(0, right - 2, 0), Nfsstat4::SeqMisordered);
    assert_eq!(sequence(0, 0, 0), Nfsstat4::SeqMisordered);
    assert_eq!(sequence(0, u32::MAX, 0), Nfsstat4::SeqMisordered);
    assert_eq!(sequence(8, 1, 8), Nfsstat4::Badslot, "the session has 8 slots");
    assert_eq!(sequence(u32::MAX, 1, u32::MAX), Nfsstat4::Badslot);
    assert_eq!(sequence(0, right, 0), Nfsstat4::Ok, "the slot has not moved");
    victim.is_well(&server);
}

#[test]
fn a_request_of_thousands_of_operations_is_refused_as_a_whole() {
    let server = Serve::unsquashed().start();
    let mut victim = Victim::new(&server);
    let mut c = Client4::connect(&server, b"liar");
    assert_eq!(c.status(&[Op::Putrootfh(()); 4000]), Nfsstat4::TooManyOps);
    // Outside of a session only the first operation is looked at.
    let many = [Op::Putrootfh(()); 4000];
    assert_eq!(alone(&mut c.connection, &many), Nfsstat4::OpNotInSession);
    victim.is_well(&server);
}

#[test]
fn states_of_another_client_cannot_be_used() {
    let server = Serve::unsquashed().start();
    let mut victim = Victim::new(&server);
    let mut c = Client4::connect(&server, b"liar");
    let (open, file) = (victim.open, victim.file.clone());
    let unlock =
        LockuArgs { locktype: LockType::Write, seqid: 0, lock_stateid: open, offset: 0, length: TO_END };
    let write = WriteArgs { stateid: open, offset: 0, stable: StableHow4::FileSync, data: b"harm" };
    let close = CloseArgs { seqid: 0, open_stateid: open };
    for operation in [Op::Write(write), Op::Locku(unlock), Op::Close(close)] {
        assert_eq!(c.status(&[putfh(&file), operation]), Nfsstat4::BadStateid, "{operation:?}");
    }
    let mut other = open.other;
    for at in 0..12 {
        other[at] ^= 1;
        let close = CloseArgs { seqid: 0, open_stateid: Stateid { seqid: 0, other } };
        assert_eq!(c.status(&[putfh(&file), Op::Close(close)]), Nfsstat4::BadStateid, "a forged one");
    }
    victim.is_well(&server);
}

#[test]
fn sessions_and_clients_of_others_stay() {
    let server = Serve::unsquashed().start();
    let mut victim = Victim::new(&server);
    let mut forger = server.connect_from([127, 0, 0, 2]).acting_as(user(1000, 1000, &[]));
    let mut guess = victim.client.session;
    guess[8] ^= 1;
    let guessed = SequenceArgs { sessionid: guess, sequence: 1, slot: 0, highest_slot: 0, cache_this: false };
    assert_eq!(alone(&mut forger, &[Op::Sequence(guessed)]), Nfsstat4::Badsession);
    let destroy = Op::DestroySession(DestroySessionArgs { sessionid: guess });
    assert_eq!(alone(&mut forger, &[destroy]), Nfsstat4::Badsession);
    let clientid = victim.client.id;
    let destroy = Op::DestroyClientid(DestroyClientidArgs { clientid });
    assert_eq!(alone(&mut forger, &[destroy]), Nfsstat4::WrongCred);
    // The owner of another client, as another user, with its verifier and with a new one.
    for verifier in [[1; 8], [2; 8]] {
        let client_owner = ClientOwner { verifier, id: Opaque(b"victim") };
        let state_protect = StateProtectArgs::None;
        let exchange = ExchangeIdArgs { client_owner, flags: 0, state_protect, impl_id: None };
        assert_eq!(alone(&mut forger, &[Op::ExchangeId(exchange)]), Nfsstat4::ClidInuse);
    }
    // The ids of other clients cannot be guessed, not even from one's own.
    let own = Client4::connect(&server, b"forger").id;
    for guess in (1..64).map(|bit| own ^ 1 << bit).chain(own.wrapping_sub(3)..own).chain(1..64) {
        for sequence in [1, 2] {
            assert_eq!(alone(&mut forger, &[create_session(guess, sequence)]), Nfsstat4::StaleClientid);
        }
    }
    victim.is_well(&server);
}

/// An ordinary user of a client's host can say that he is its root, after a reboot.
#[test]
fn an_ordinary_user_of_a_client_ends_no_client() {
    needs_root!();
    let server = Serve::unsquashed().flags(&["--privileged-port"]).start();
    let reserved = || {
        let port = (600..1024).find_map(|port| server.try_connect_from(([127, 0, 0, 1], port).into()));
        port.expect("a port below 1024 is free")
    };
    let mut victim = Client4::connect_as(reserved(), 1, b"victim");
    let (open, file) = victim.open(b"file", make(), 0).unwrap();
    assert_eq!(victim.lock(&file, open, LockType::Write, 0, TO_END), Nfsstat4::Ok);
    let mut forger = server.connect();
    let client_owner = ClientOwner { verifier: [2; 8], id: Opaque(b"victim") };
    let state_protect = StateProtectArgs::None;
    let exchange = ExchangeIdArgs { client_owner, flags: 0, state_protect, impl_id: None };
    assert_eq!(alone(&mut forger, &[Op::ExchangeId(exchange)]), Nfsstat4::Perm);
    let destroy = Op::DestroyClientid(DestroyClientidArgs { clientid: victim.id });
    assert_eq!(alone(&mut forger, &[destroy]), Nfsstat4::WrongCred);
    for sequence in 0..4 {
        assert_eq!(alone(&mut forger, &[create_session(victim.id, sequence)]), Nfsstat4::WrongCred);
    }
    let mut other = Client4::connect_as(reserved(), 1, b"other");
    let (open, file) = other.open(b"file", OpenHow::NoCreate, 0).unwrap();
    assert_eq!(other.lock(&file, open, LockType::Read, 0, 1), Nfsstat4::Denied);
}

fn create_session<'a>(clientid: u64, sequence: u32) -> Op<'a> {
    let channel = ChannelAttrs {
        max_request: 1 << 20,
        max_response: 1 << 20,
        max_response_cached: 4096,
        max_operations: 16,
        max_requests: 8,
        ..ChannelAttrs::default()
    };
    Op::CreateSession(CreateSessionArgs {
        clientid,
        sequence,
        flags: 0,
        fore_channel: channel,
        back_channel: channel,
        cb_program: 0x4000_0000,
        sec_parms: forebay_wire::Array::EMPTY,
    })
}

#[test]
fn a_client_that_never_ends_its_reclaims_waits_alone() {
    let server = Serve::unsquashed().start();
    let mut victim = Victim::new(&server);
    let mut c = Client4::connect_silent(server.connect(), 1, b"silent");
    assert_eq!(c.open(b"file", OpenHow::NoCreate, 0), Err(Nfsstat4::Grace));
    victim.is_well(&server);
    assert_eq!(c.open(b"other", make(), 0), Err(Nfsstat4::Grace));
}
