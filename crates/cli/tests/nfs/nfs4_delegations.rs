//! Exports without delegations, from a start on and from a reload on.

use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use forebay_wire::Opaque;
use forebay_wire::nfs4::{
    CreateHow, Delegation, Fattr, HandleArgs, NameArgs, Nfsstat4, Op, OpResult, OpenArgs, OpenClaim, OpenHow,
    ReadArgs, StateOwner, Stateid, StateidArgs, share,
};

use crate::harness::*;
use crate::nfs4_callbacks::{Backed, Seen};

/// Returns the tables of the exports `a` and `b`, each with further settings.
fn exports(of_all: &str, of_a: &str, of_b: &str) -> String {
    let export = |name: &str, settings: &str| {
        format!(
            "[[export]]\npath = '@/data/{name}'\nname = '/{name}'\n{settings}\n[[export.client]]\nnetworks = ['127.0.0.0/8']\nsquash = 'none'\n"
        )
    };
    format!("{of_all}\n{}{}", export("a", of_a), export("b", of_b))
}

fn serving(serve: Serve, toml: &str) -> Server {
    serve.exports(toml).start_on(|data| {
        for name in ["a", "b"] {
            std::fs::create_dir(data.join(name)).unwrap();
        }
    })
}

/// Opens a file of an export for the second time. Returns the handle and the delegation.
fn open_twice(client: &mut Backed, export: &[u8]) -> (Vec<u8>, Option<Stateid>) {
    open(client, export);
    open(client, export)
}

/// Opens the file of an export, which it makes if it is missing. Returns the handle and the delegation.
fn open(client: &mut Backed, export: &[u8]) -> (Vec<u8>, Option<Stateid>) {
    let open = OpenArgs {
        seqid: 0,
        share_access: share::BOTH,
        share_deny: 0,
        owner: StateOwner { clientid: client.id, owner: Opaque(b"owner") },
        how: OpenHow::Create(CreateHow::Unchecked(Fattr::default())),
        claim: OpenClaim::Null(b"file"),
    };
    let lookup = Op::Lookup(NameArgs { name: export });
    let operations = [Op::Putrootfh(()), lookup, Op::Open(open), Op::Getfh(())];
    client.run(&operations, |status, results| match *results {
        [_, _, OpResult::Open(Ok(open)), OpResult::Getfh(Ok(handle))] => {
            let delegation = match open.delegation {
                Delegation::Write(write) => Some(write.stateid),
                Delegation::None => None,
                other => panic!("{other:?}"),
            };
            (handle.object.0.to_vec(), delegation)
        }
        _ => panic!("{status:?}"),
    })
}

fn give_back(client: &mut Backed, file: &[u8], stateid: Stateid) {
    let file = Op::Putfh(HandleArgs { object: Opaque(file) });
    assert_eq!(client.status(&[file, Op::Delegreturn(StateidArgs { stateid })]), Nfsstat4::Ok);
}

#[track_caller]
fn reload(server: &Server, toml: &str, line: &str) {
    server.configure(toml);
    let said = server.ask(&["reload", "--json"]);
    assert!(said.contains(line) && said.contains("\"at_next_start\": []"), "{said}");
}

const OFF: &str = "delegations = false";

#[test]
fn an_export_has_no_delegations_and_another_one_loses_them_with_a_reload() {
    let server = serving(Serve::new(), &exports("", "", OFF));
    let mut client = Backed::connect_as(&server, b"one", 1, 1);
    assert_eq!(open_twice(&mut client, b"b").1, None);
    let (file, stateid) = open_twice(&mut client, b"a");
    let stateid = stateid.expect("a delegation");
    assert_eq!(client.seen, []);

    reload(&server, &exports("", OFF, OFF), "[[export]] /a delegations: true -> false");
    assert_eq!(client.wait(), Seen::Recall(stateid));
    give_back(&mut client, &file, stateid);
    assert_eq!(open_twice(&mut client, b"a").1, None);
    assert_eq!(open_twice(&mut client, b"b").1, None);

    reload(&server, &exports("", OFF, ""), "[[export]] /b delegations: false -> true");
    assert_eq!(open_twice(&mut client, b"a").1, None);
    // The client has opened this file before.
    let (_, stateid) = open(&mut client, b"b");
    assert!(stateid.is_some());
    assert_eq!(client.seen, [], "nothing else is recalled");
}

#[test]
fn the_setting_of_the_server_is_the_default_of_its_exports() {
    let server = serving(Serve::new(), &exports("nfs4_delegations = false", "delegations = true", ""));
    let mut client = Backed::connect_as(&server, b"one", 1, 1);
    let (file, stateid) = open_twice(&mut client, b"a");
    let stateid = stateid.expect("a delegation");
    assert_eq!(open_twice(&mut client, b"b").1, None);

    let shown = server.ask(&["config", "show"]);
    let at = |text: &str| shown.find(text).unwrap_or_else(|| panic!("{text}: {shown}"));
    assert!(
        at("delegations = true") < at("name = \"/b\"") && at("name = \"/b\"") < at("\ndelegations = false")
    );

    reload(&server, &exports("", OFF, ""), "nfs4_delegations: false -> true");
    assert_eq!(client.wait(), Seen::Recall(stateid));
    give_back(&mut client, &file, stateid);
    assert!(open(&mut client, b"b").1.is_some());
}

/// Where clients have delegations, an open file may be read as it was a moment ago.
#[test]
fn a_read_over_an_export_without_delegations_shows_each_change_of_the_host() {
    let server = serving(Serve::new(), &exports("", OFF, ""));
    let path = |name: &str| server.home().join("data/a").join(name);
    for name in ["file", "clock"] {
        std::fs::write(path(name), [0; 8192]).unwrap();
    }
    let mut client = Backed::connect_as(&server, b"one", 1, 1);
    let (handle, stateid) = open_for_read(&mut client);
    let mut first_byte = || {
        let file = Op::Putfh(HandleArgs { object: Opaque(&handle) });
        client.run(&[file, Op::Read(ReadArgs { stateid, offset: 0, count: 100 })], |status, results| {
            match *results {
                [_, OpResult::Read(Ok(read))] => read.data[0],
                _ => panic!("{status:?}"),
            }
        })
    };
    for byte in 1..50 {
        // A change of the file in a new tick of the clock has another change time.
        let tick =
            || std::fs::metadata(path("clock")).map(|found| (found.ctime(), found.ctime_nsec())).unwrap();
        let begun = tick();
        while tick() == begun {
            std::fs::write(path("clock"), [byte]).unwrap();
        }
        assert_eq!(first_byte(), byte - 1);
        let file = std::fs::OpenOptions::new().write(true).open(path("file")).unwrap();
        file.write_all_at(&[byte], 0).unwrap();
        assert_eq!(first_byte(), byte);
    }
}

/// Opens the file of the export `a`, which is there. Returns the handle and the state id.
fn open_for_read(client: &mut Backed) -> (Vec<u8>, Stateid) {
    let open = OpenArgs {
        seqid: 0,
        share_access: share::READ,
        share_deny: 0,
        owner: StateOwner { clientid: client.id, owner: Opaque(b"owner") },
        how: OpenHow::NoCreate,
        claim: OpenClaim::Null(b"file"),
    };
    let lookup = Op::Lookup(NameArgs { name: b"a" });
    let operations = [Op::Putrootfh(()), lookup, Op::Open(open), Op::Getfh(())];
    client.run(&operations, |status, results| match *results {
        [_, _, OpResult::Open(Ok(open)), OpResult::Getfh(Ok(handle))] => {
            (handle.object.0.to_vec(), open.stateid)
        }
        _ => panic!("{status:?}"),
    })
}

/// The log knows the delegations of the last run.
#[test]
fn a_start_recalls_delegations_of_an_export_that_has_none_any_more() {
    let mut server = serving(Serve::new().cached(), &exports("", "", ""));
    let mut client = Backed::connect_as(&server, b"one", 1, 1);
    let (file, of_a) = open_twice(&mut client, b"a");
    let (_, of_b) = open_twice(&mut client, b"b");
    let (of_a, _) = (of_a.expect("a delegation"), of_b.expect("a delegation"));
    server.kill();
    server.configure(&exports("", OFF, ""));
    server.start();
    // A session of the last run has no back channel.
    let mut client = Backed::connect_as(&server, b"one", 1, 1);
    assert_eq!(client.wait(), Seen::Recall(of_a));
    give_back(&mut client, &file, of_a);
    assert_eq!(client.seen, [], "the delegation in the other export stays");
}
