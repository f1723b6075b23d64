//! Files that lose their last name while clients have them open.

use super::*;

fn unused(name: &str) -> Vec<Action> {
    vec![Action::FileUnused(file(name))]
}

impl Rig {
    fn removes(&mut self, name: &str) -> bool {
        self.call(|state, now, _| !state.begin_removal(&file(name), now))
    }

    /// Removes a file that must stay.
    fn keep(&mut self, name: &str) {
        assert!(!self.removes(name));
        self.call(|state, now, fx| state.keep_removed(&file(name), now, fx));
        assert_eq!(self.actions, []);
    }

    fn close(&mut self, client: ClientId, open: StateId, name: &str) {
        self.call(|state, now, fx| state.close(client, open, &file(name), now, fx)).unwrap();
    }

    fn tick(&mut self) {
        self.call(State::tick);
    }
}

#[test]
fn a_removed_file_stays_until_its_last_close() {
    let mut rig = Rig::new();
    let (a, b) = (rig.client("a"), rig.client("b"));
    let one = rig.open(a, "o", "f", 1, 0).unwrap().stateid;
    let two = rig.open(b, "o", "f", 1, 0).unwrap().stateid;
    rig.keep("f");
    rig.close(a, one, "f");
    assert_eq!(rig.actions, []);
    rig.tick();
    assert_eq!(rig.actions, []);
    rig.close(b, two, "f");
    assert_eq!(rig.actions, unused("f"));
    // Until it is gone nobody opens it. A file with its key is another one.
    assert_eq!(rig.open(a, "o", "f", 1, 0).unwrap_err(), Error::Delay);
    rig.state.end_removal(&file("f"));
    let again = rig.open(a, "o", "f", 1, 0).unwrap().stateid;
    rig.close(a, again, "f");
    assert_eq!(rig.actions, [], "the file has its name");
}

#[test]
fn an_open_waits_for_each_removal_of_an_unused_file() {
    let mut rig = Rig::new();
    let a = rig.client("a");
    assert!(rig.removes("f") && rig.removes("f"));
    assert_eq!(rig.open(a, "o", "f", 1, 0).unwrap_err(), Error::Delay);
    assert!(rig.open(a, "o", "g", 1, 0).is_ok());
    rig.state.end_removal(&file("f"));
    assert_eq!(rig.open(a, "o", "f", 1, 0).unwrap_err(), Error::Delay);
    rig.state.end_removal(&file("f"));
    assert!(rig.open(a, "o", "f", 1, 0).is_ok());
    assert!(!rig.removes("f"));
}

#[test]
fn a_delegation_keeps_a_file_and_a_lock_of_nlm_does_not() {
    let mut rig = Rig::new();
    let a = rig.client("a");
    let args = OpenArgs { want: Want::Any, ..open_args(a, "o", "f", READ, 0) };
    let opened = rig.call(|state, now, fx| state.open(&args, now, fx)).unwrap();
    let held = opened.delegation.unwrap();
    rig.keep("f");
    rig.close(a, opened.stateid, "f");
    assert_eq!(rig.actions, []);
    rig.call(|state, now, fx| state.return_delegation(a, held.stateid, now, fx)).unwrap();
    assert_eq!(rig.actions, unused("f"));
    rig.nlm("host", "g", LockKind::Write, Range { first: 0, last: 9 }, false);
    assert!(rig.removes("g"));
}

#[test]
fn expired_clients_do_not_keep_files() {
    let mut rig = Rig::new();
    let (a, b) = (rig.client("a"), rig.client("b"));
    rig.open(a, "o", "f", 1, 0).unwrap();
    rig.open(a, "o", "g", 1, 0).unwrap();
    rig.keep("f");
    rig.wait(91);
    rig.open(b, "o", "h", 1, 0).unwrap();
    assert!(rig.removes("g"));
    rig.tick();
    assert_eq!(rig.actions, unused("f"));
    assert!(!rig.removes("h"));
    // Its other state stays, as courtesy.
    assert!(rig.state.client_ids().contains(&a));
}

#[test]
fn a_file_goes_with_its_client_and_with_an_open_that_is_revoked() {
    let mut rig = Rig::new();
    let (a, b) = (rig.client("a"), rig.client("b"));
    let open = rig.open(a, "o", "f", 1, 0).unwrap().stateid;
    rig.open(b, "o", "g", 1, 0).unwrap();
    rig.keep("f");
    rig.keep("g");
    rig.call(|state, now, fx| state.revoke_open(a, open, now, fx)).unwrap();
    assert_eq!(rig.actions, unused("f"));
    rig.exchange("b", 2, "root", 0).unwrap();
    let new = rig.exchange("b", 2, "root", 0).unwrap();
    rig.session(new.client, new.sequence, "root").unwrap();
    assert!(rig.actions.contains(&unused("g")[0]), "{:?}", rig.actions);
}

#[test]
fn an_open_that_ends_during_the_removal_keeps_nothing() {
    let mut rig = Rig::new();
    let a = rig.client("a");
    let open = rig.open(a, "o", "f", 1, 0).unwrap().stateid;
    assert!(!rig.removes("f"));
    rig.close(a, open, "f");
    assert_eq!(rig.actions, []);
    rig.call(|state, now, fx| state.keep_removed(&file("f"), now, fx));
    assert_eq!(rig.actions, unused("f"));
}

#[test]
fn a_tick_asks_again_for_each_removal_that_has_failed() {
    let mut rig = Rig::new();
    let names: Vec<_> = (0..3000).map(|number| format!("{number}")).collect();
    for name in &names {
        rig.call(|state, now, fx| state.keep_removed(&file(name), now, fx));
        rig.state.put_off_removal(&file(name));
    }
    let mut found = Vec::new();
    for _ in 0..4 {
        rig.tick();
        found.append(&mut rig.actions);
    }
    assert_eq!(found.len(), names.len());
    rig.state.put_off_removal(&file("7"));
    rig.tick();
    assert_eq!(rig.actions, unused("7"));
}
