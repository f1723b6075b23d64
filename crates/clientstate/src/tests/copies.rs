//! Copies that go on after the reply to their COPY.

use super::*;

const DONE: CopyEnd = CopyEnd { status: 0, is_stable: true, verifier: [3; 8] };

impl Rig {
    /// Begins a copy from `s` to `t`, which the client has open.
    fn copy(&mut self, client: ClientId) -> Option<(StateId, Arc<CopyProgress>)> {
        let args = BeginCopy { client, request: None, source: file("s"), target: file("t") };
        self.call(|state, _, fx| state.begin_copy(&args, fx))
    }

    /// Returns a client that has both files open.
    fn copying_client(&mut self, name: &str) -> ClientId {
        let client = self.client(name);
        self.open(client, "o", "s", READ, 0).unwrap();
        self.open(client, "o", "t", WRITE, 0).unwrap();
        client
    }

    fn status(&self, client: ClientId, copy: StateId) -> Result<(u64, Option<u32>), Error> {
        self.state.offload_status(client, copy, &file("t"))
    }

    fn cancel(&mut self, client: ClientId, copy: StateId) -> Result<(), Error> {
        self.call(|state, _, fx| state.offload_cancel(client, copy, &file("t"), fx))
    }

    fn end(&mut self, copy: StateId, end: CopyEnd) {
        self.call(|state, _, fx| state.end_copy(copy, end, fx));
    }

    /// Returns the call-backs that the last call asked for: client, copy, end.
    fn told(&self) -> Vec<(ClientId, StateId, u32)> {
        let told = self.actions.iter().filter_map(|action| match action {
            Action::TellCopy { client, stateid, end, .. } => Some((*client, *stateid, end.status)),
            _ => None,
        });
        told.collect()
    }
}

#[test]
fn a_copy_is_asked_for_ended_and_told() {
    let mut rig = Rig::new();
    let a = rig.copying_client("a");
    let (copy, progress) = rig.copy(a).unwrap();
    assert_eq!(rig.durability, Durability::BeforeReply);
    progress.add(100);
    assert_eq!(rig.status(a, copy), Ok((100, None)));
    assert_eq!(rig.state.copy_goes_on(copy), Ok(()));
    rig.end(copy, DONE);
    assert_eq!(rig.told(), [(a, copy, 0)]);
    assert_eq!(rig.status(a, copy), Ok((100, Some(0))));
    rig.end(copy, DONE);
    assert_eq!(rig.told(), [], "once");
    progress.told();
    assert_eq!(rig.status(a, copy), Err(Error::BadStateid));
    rig.call(State::tick);
    assert_eq!(rig.log.last(), Some(&Record::CopyEnded(copy.other)));
    assert!(rig.state.ended_copies.is_empty());
    assert!(!progress.is_unwanted());
}

#[test]
fn only_the_client_and_the_file_of_a_copy_find_it() {
    let mut rig = Rig::new();
    let (a, b) = (rig.copying_client("a"), rig.copying_client("b"));
    let (copy, _) = rig.copy(a).unwrap();
    let open = rig.open(a, "o", "t", WRITE, 0).unwrap().stateid;
    for ended in [false, true] {
        if ended {
            rig.end(copy, DONE);
        }
        assert_eq!(rig.status(b, copy), Err(Error::BadStateid));
        assert_eq!(rig.state.offload_status(a, copy, &file("s")), Err(Error::BadStateid));
        assert_eq!(rig.status(a, open), Err(Error::BadStateid));
        assert_eq!(rig.status(a, StateId::ANONYMOUS), Err(Error::BadStateid));
        assert_eq!(rig.status(a, StateId { seqid: 2, ..copy }), Err(Error::BadStateid));
        assert!(rig.status(a, StateId { seqid: 0, ..copy }).is_ok());
        assert_eq!(rig.cancel(b, copy), Err(Error::BadStateid));
    }
    // A copy gives no access to a file.
    let (copy, _) = rig.copy(a).unwrap();
    let read = rig.call(|state, now, fx| state.io(Some(a), copy, file("t").borrowed(), READ, now, fx));
    assert_eq!(read, Err(Error::BadStateid));
    assert_eq!(rig.call(|state, now, fx| state.free_stateid(a, copy, now, fx)), Err(Error::LocksHeld));
    let session = rig.session_of(a).id();
    rig.call(|state, _, fx| state.destroy_session(session, None, fx)).unwrap();
    let root = Principal::new(b"root").unwrap();
    assert_eq!(
        rig.call(|state, now, fx| state.destroy_client_id(a, &root, now, fx)),
        Err(Error::ClientidBusy)
    );
}

#[test]
fn a_cancelled_copy_is_gone_at_once() {
    let mut rig = Rig::new();
    let a = rig.copying_client("a");
    let (copy, progress) = rig.copy(a).unwrap();
    rig.cancel(a, copy).unwrap();
    assert!(progress.is_unwanted());
    assert_eq!(rig.state.copy_goes_on(copy), Err(Error::BadStateid));
    assert_eq!((rig.status(a, copy), rig.cancel(a, copy)), (Err(Error::BadStateid), Err(Error::BadStateid)));
    rig.end(copy, DONE);
    assert_eq!(rig.told(), []);
    // Also one that has ended.
    let (copy, _) = rig.copy(a).unwrap();
    rig.end(copy, DONE);
    rig.cancel(a, copy).unwrap();
    assert_eq!(rig.status(a, copy), Err(Error::BadStateid));
    assert_eq!(rig.recovered().snapshot_of(a, 0).len(), rig.state.snapshot_of(a, 0).len());
}

#[test]
fn a_copy_needs_an_open_or_a_delegation_of_both_files() {
    let mut rig = Rig::new();
    let a = rig.client("a");
    let source = rig.open(a, "o", "s", READ, 0).unwrap().stateid;
    let args = OpenArgs { want: Want::Any, ..open_args(a, "o", "t", WRITE, 0) };
    let target = rig.call(|state, now, fx| state.open(&args, now, fx)).unwrap();
    let held = target.delegation.unwrap();
    assert!(held.write);
    let (copy, _) = rig.copy(a).unwrap();
    rig.call(|state, now, fx| state.close(a, target.stateid, &file("t"), now, fx)).unwrap();
    assert_eq!(rig.state.copy_goes_on(copy), Ok(()), "the delegation allows it");
    rig.call(|state, now, fx| state.return_delegation(a, held.stateid, now, fx)).unwrap();
    assert_eq!(rig.state.copy_goes_on(copy), Err(Error::BadStateid));
    let reader = rig.open(a, "o", "t", READ, 0).unwrap().stateid;
    assert_eq!(rig.state.copy_goes_on(copy), Err(Error::BadStateid), "an open for reading");
    rig.open(a, "p", "t", WRITE, 0).unwrap();
    assert_eq!(rig.state.copy_goes_on(copy), Ok(()), "any open of the client");
    rig.call(|state, now, fx| state.close(a, reader, &file("t"), now, fx)).unwrap();
    rig.call(|state, now, fx| state.close(a, source, &file("s"), now, fx)).unwrap();
    assert_eq!(rig.state.copy_goes_on(copy), Err(Error::BadStateid));
    let b = rig.copying_client("b");
    assert_eq!(rig.state.copy_goes_on(copy), Err(Error::BadStateid), "opens of another client");
    assert!(rig.state.client_ids().contains(&b));
}

#[test]
fn a_copy_ends_with_its_client() {
    let mut rig = Rig::new();
    let a = rig.copying_client("a");
    let (running, progress) = rig.copy(a).unwrap();
    let (ended, _) = rig.copy(a).unwrap();
    rig.end(ended, DONE);
    // The client has restarted.
    let new = rig.exchange("a", 2, "root", 0).unwrap();
    assert!(!progress.is_unwanted(), "nothing is confirmed yet");
    rig.session(new.client, new.sequence, "root").unwrap();
    assert!(progress.is_unwanted());
    assert_eq!(rig.state.copy_goes_on(running), Err(Error::BadStateid));
    assert!(rig.state.ended_copies.is_empty() && rig.state.counts().copies == 0);
    rig.end(running, DONE);
    assert_eq!(rig.told(), []);
    // The client has expired, and its state is in the way.
    let b = rig.client("b");
    rig.open(b, "o", "s", READ, 0).unwrap();
    rig.open(b, "o", "t", WRITE, WRITE).unwrap();
    let (_, progress) = rig.copy(b).unwrap();
    rig.wait(91);
    let c = rig.client("c");
    assert!(!progress.is_unwanted(), "as courtesy");
    rig.open(c, "o", "t", WRITE, 0).unwrap();
    assert!(progress.is_unwanted());
}

#[test]
fn the_number_of_copies_is_bounded() {
    let mut rig = Rig::new();
    let limits = rig.state.limits.clone();
    let a = rig.copying_client("a");
    let copies: Vec<_> = (0..limits.copies_per_client).map(|_| rig.copy(a).unwrap()).collect();
    assert!(rig.copy(a).is_none());
    // A copy that has ended counts until its client is told.
    let (copy, progress) = &copies[0];
    rig.end(*copy, DONE);
    assert!(rig.copy(a).is_none());
    progress.told();
    assert!(rig.copy(a).is_some());
    let rest = limits.copies / limits.copies_per_client - 1;
    for n in 0..rest {
        let client = rig.copying_client(&format!("{n}"));
        (0..limits.copies_per_client).for_each(|_| _ = rig.copy(client).unwrap());
    }
    let last = rig.copying_client("last");
    assert!(rig.copy(last).is_none());
    rig.cancel(a, copies[1].0).unwrap();
    assert!(rig.copy(last).is_some());
}

#[test]
fn without_a_back_channel_no_copy_goes_on() {
    let mut rig = Rig::new();
    let a = rig.copying_client("a");
    rig.session_of(a).connection_lost(a.0);
    assert!(rig.copy(a).is_none());
}

/// A client that waits for CB_OFFLOAD would wait for ever.
#[test]
fn a_restarted_server_tells_that_copies_have_ended() {
    let mut rig = Rig::new();
    let a = rig.copying_client("a");
    let (running, _) = rig.copy(a).unwrap();
    let (ended, _) = rig.copy(a).unwrap();
    rig.end(ended, DONE);
    let (told, progress) = rig.copy(a).unwrap();
    rig.end(told, DONE);
    progress.told();
    rig.call(State::tick);
    let log = rig.log.clone();
    for snapshot in [false, true] {
        rig.log = if snapshot { rig.state.snapshot(0).collect() } else { [&log[..], &log[..]].concat() };
        let mut after = Rig::of(rig.recovered());
        after.call(State::tick);
        let delay = Error::Delay as u32;
        assert_eq!(after.told(), [(a, running, delay), (a, ended, delay)]);
        assert_eq!(after.status(a, running), Ok((0, Some(delay))));
        assert_eq!(after.status(a, told), Err(Error::BadStateid));
        after.call(State::tick);
        assert_eq!(after.told(), [], "once");
        // Until the client is told, the next restart tells again.
        after.log = after.state.snapshot(0).collect();
        let mut last = Rig::of(after.recovered());
        last.call(State::tick);
        assert_eq!(last.told().len(), 2);
    }
}
