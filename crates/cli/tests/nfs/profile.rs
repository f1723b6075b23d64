//! Tests of `forebay profile` and `forebay stat --by`: each operation counts once, by client, export, user and file.

use forebay_wire::nfs4::{
    Bitmap, CloseArgs, CreateHow, Fattr, GetattrArgs, Nfsstat4, Op, OpenHow, ReadArgs, StableHow4, WriteArgs,
    attr,
};
use serde_json::{Value, json};

use crate::harness::*;
use crate::nfs4::{Client4, putfh};

const EXPORTS: &str = "[[export]]\npath='@/data/a'\nname='/'\n[[export]]\npath='@/data/b'\nname='/x'\n";

/// Returns a server with the exports `/` and `/x`, in which everybody may create files.
fn served(settings: &str) -> Server {
    Serve::new().exports(&format!("{settings}{EXPORTS}")).start_on(|data| {
        for name in ["a", "b"] {
            std::fs::create_dir(data.join(name)).unwrap();
            std::fs::set_permissions(data.join(name), std::os::unix::fs::PermissionsExt::from_mode(0o777))
                .unwrap();
        }
    })
}

fn profile(server: &Server) -> Value {
    serde_json::from_str(&server.ask(&["profile", "--json"])).unwrap()
}

/// Returns an entry of a group by its name.
#[track_caller]
fn entry<'a>(activity: &'a Value, group: &str, name: &str) -> &'a Value {
    let entries = activity[group]["entries"].as_array().unwrap();
    let found = entries.iter().find(|entry| entry["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not among the {group}: {entries:?}"))
}

/// A client of NFSv3 at 127.0.0.2 makes, writes, reads and removes files in both exports.
fn use_version_3(server: &Server) {
    let mut c = server.connect_from([127, 0, 0, 2]).acting_as(user(1001, 1001, &[]));
    let root = c.root();
    let one = c.new_file(&root, b"one", 0o666);
    for block in 0..3 {
        c.write(&one, block * 8192, &[1; 8192], StableHow::FileSync).unwrap();
    }
    for offset in [1 << 20, 3 << 20] {
        c.write(&one, offset, &[2; 4096], StableHow::Unstable).unwrap();
    }
    c.commit(&one, 0, 0).unwrap();
    c.read(&one, 0, 4096).unwrap();
    c.read(&one, 2 << 20, 4096).unwrap();
    assert!(c.lookup(&root, b"missing").is_err());
    let other = c.mnt(b"/x").unwrap().fhandle;
    let two = c.new_file(&other, b"two", 0o666);
    c.write(&two, 0, &[3; 100], StableHow::DataSync).unwrap();
    c.new_file(&other, b"three", 0o666);
    let remove = call(&mut c, Procedure::Remove, &name(&other, b"three"));
    let first = c.exchange(&remove);
    assert_eq!(c.exchange(&remove), first, "a retransmission gets the reply, and is not counted");
}

/// A client of NFSv4.1 at 127.0.0.1 writes and reads a file of the other client, and makes one.
fn use_version_4(server: &Server) {
    let connection = server.connect().acting_as(user(1002, 1002, &[]));
    let mut c = Client4::connect_as(connection, 1, b"one");
    let (open, file) = c.open(b"one", OpenHow::NoCreate, 0).unwrap();
    let write = WriteArgs { stateid: open, offset: 0, stable: StableHow4::Unstable, data: &[4; 4096] };
    let size = Op::Getattr(GetattrArgs { request: Bitmap::of(&[attr::SIZE]) });
    assert_eq!(c.status(&[putfh(&file), Op::Write(write), size]), Nfsstat4::Ok);
    let read = Op::Read(ReadArgs { stateid: open, offset: 0, count: 4096 });
    assert_eq!(c.status(&[putfh(&file), read]), Nfsstat4::Ok);
    assert_eq!(c.again(|status, _| status), Nfsstat4::RetryUncachedRep, "a READ is not repeated");
    let close = Op::Close(CloseArgs { seqid: 0, open_stateid: open });
    assert_eq!(c.status(&[putfh(&file), close]), Nfsstat4::Ok);
    c.open(b"new", OpenHow::Create(CreateHow::Unchecked(Fattr::default())), 0).unwrap();
}

#[test]
fn operations_of_both_versions_count_once_for_client_export_user_and_file() {
    let server = served("");
    use_version_3(&server);
    use_version_4(&server);
    let activity = profile(&server);
    let three = entry(&activity, "clients", "127.0.0.2");
    assert_eq!(
        three["operations"],
        json!({ "read": 2, "write": 6, "commit": 1, "lookup": 1, "create": 3, "remove": 1 })
    );
    assert_eq!((&three["errors"], &three["stable_writes"]), (&json!(1), &json!(4)));
    assert_eq!(
        (&three["bytes_read"], &three["bytes_written"]),
        (&json!(8192), &json!(3 * 8192 + 2 * 4096 + 100))
    );
    // The first READ and the first WRITE of a file are at its begin, and two WRITEs continue the first.
    assert_eq!((&three["sequential_reads"], &three["sequential_writes"]), (&json!(1), &json!(4)));
    let four = entry(&activity, "clients", "127.0.0.1");
    assert_eq!(four["operations"], json!({ "read": 1, "write": 1, "getattr": 1, "create": 1, "open": 2 }));
    assert_eq!(
        (&four["bytes_read"], &four["bytes_written"], &four["stable_writes"]),
        (&json!(4096), &json!(4096), &json!(0))
    );
    assert_eq!(entry(&activity, "exports", "/")["operations"]["write"], 6);
    assert_eq!(
        entry(&activity, "exports", "/x")["operations"],
        json!({ "write": 1, "create": 2, "remove": 1 })
    );
    assert_eq!(entry(&activity, "users", "1001")["operations"]["write"], 6);
    assert_eq!(entry(&activity, "users", "1002")["operations"]["write"], 1);
    let one = entry(&activity, "files", "one");
    assert_eq!((&one["export"], &one["shared"]), (&json!("/"), &json!(true)));
    assert_eq!(
        one["operations"],
        json!({ "read": 3, "write": 6, "commit": 1, "getattr": 1, "open": 2 }),
        "the operations of both clients"
    );
    let two = entry(&activity, "files", "two");
    assert_eq!(
        (&two["export"], &two["shared"], &two["bytes_written"]),
        (&json!("/x"), &Value::Null, &json!(100))
    );
    assert_eq!(activity["new_files"]["made"], 4);
    let hour = activity["working_sets"].as_array().unwrap().last().unwrap();
    // Six blocks at the begin of `one`, one at 1 MiB, one at 3 MiB, and one of `two`: nothing is read at 2 MiB. The
    // estimate is one less if two blocks share a register.
    let blocks = hour["bytes"].as_u64().unwrap() / 4096;
    assert!((8..=11).contains(&blocks) && hour["complete"] == json!(false), "{hour}");
}

#[test]
fn the_verbs_show_the_profile_and_forget_it() {
    let server = served("");
    use_version_3(&server);
    let table = server.ask(&["stat", "--by", "file"]);
    assert!(table.contains("FILE") && table.contains("/x: two"), "{table}");
    let by: Value =
        serde_json::from_str(&server.ask(&["stat", "--by", "client", "--json", "--top", "1"])).unwrap();
    assert_eq!(by["entries"][0]["operations"]["write"], 6);
    let text = server.ask(&["profile"]);
    for part in ["127.0.0.2", "1001", "DIRECTORY", "REQUEST SIZE", "8 KiB", "WORKING SET"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let page = server.home().join("profile.html");
    server.ask(&["profile", "--html", page.to_str().unwrap()]);
    assert!(std::fs::read_to_string(page).unwrap().contains("127.0.0.2"));
    server.ask(&["profile", "reset"]);
    let activity = profile(&server);
    assert_eq!((&activity["total"]["operations"], &activity["files"]["entries"]), (&json!({}), &json!([])));
    let failed = server.try_ask(&["profile", "--html", "/nope/x"]);
    assert!(!failed.status.success() && failed.stdout.is_empty());
}

#[test]
fn nothing_is_counted_with_the_profile_off_until_a_reload() {
    let server = served("profile = false\n");
    use_version_3(&server);
    let activity = profile(&server);
    assert_eq!((&activity["enabled"], &activity["total"]["operations"]), (&json!(false), &json!({})));
    let file = server.home().join("forebay.toml");
    let text = std::fs::read_to_string(&file).unwrap().replace("profile = false", "profile = true");
    std::fs::write(&file, text).unwrap();
    server.ask(&["reload"]);
    server.connect().root();
    let mut c = server.connect();
    let root = c.root();
    c.attr(&root);
    let activity = profile(&server);
    assert_eq!(
        (&activity["enabled"], &activity["total"]["operations"]),
        (&json!(true), &json!({ "getattr": 1 }))
    );
    assert_eq!(entry(&activity, "files", "/")["operations"], json!({ "getattr": 1 }));
}

/// Runs `forebay bench replay`. Returns the result of its only phase, or the error.
fn replay(server: &Server, trace: &std::path::Path, flags: &[&str]) -> Result<Value, String> {
    let url = format!("nfs://{}/", server.address());
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["bench", "replay", "-o", "-", "--url", &url]).args(flags).arg(trace);
    let output = command.output().unwrap();
    match output.status.success() {
        true => {
            let report: Value = serde_json::from_slice(&output.stdout).unwrap();
            Ok(report["phases"][0]["runs"][0].clone())
        }
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

/// Returns the number of calls of a procedure in the result of a replay.
fn calls(run: &Value, name: &str) -> u64 {
    let procedures = run["procedures"].as_array().unwrap();
    procedures.iter().find(|one| one["procedure"] == name).map_or(0, |one| one["count"].as_u64().unwrap())
}

#[test]
fn a_trace_is_recorded_and_replayed_and_a_part_of_one_is_refused() {
    let server = served("");
    let path = server.home().join("trace");
    let file = path.to_str().unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    let mut c = server.connect_from([127, 0, 0, 2]);
    let root = c.root();
    let one = c.new_file(&root, b"one", 0o666);
    server.ask(&["profile", "reset"]);
    let told = std::thread::scope(|scope| {
        let recorder = scope.spawn(|| {
            let _done = DoneAtEnd(&done);
            server.try_ask(&["profile", "record", file, "--seconds", "1"])
        });
        let mut round = 0;
        while !done.load(std::sync::atomic::Ordering::SeqCst) {
            c.write(&one, round % 64 * 4096, &[7; 4096], StableHow::Unstable).unwrap();
            c.read(&one, 0, 4096).unwrap();
            c.attr(&one);
            round += 1;
        }
        recorder.join().unwrap()
    });
    let told = String::from_utf8(told.stderr).unwrap();
    let recorded: u64 = told
        .split(" has ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .map_or(0, |number| number.replace(',', "").parse().unwrap());
    assert!(recorded > 3, "{told}");
    let bytes = std::fs::read(&path).unwrap();
    assert!(!bytes.windows(3).any(|part| part == b"one"), "no names");
    for flags in [&["--fast", "--no-fill"][..], &["--depth", "4"]] {
        let run = replay(&server, &path, flags).unwrap();
        assert_eq!(run["operations"], recorded, "{run}");
        let (reads, writes, looks) = (calls(&run, "READ"), calls(&run, "WRITE"), calls(&run, "GETATTR"));
        assert_eq!(reads + writes + looks, recorded);
        assert!(reads.abs_diff(writes) <= 1 && reads.abs_diff(looks) <= 1, "{run}");
    }
    assert!(!server.data.join("a/forebay-bench").exists(), "its files are removed");
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let refused = replay(&server, &path, &[]).unwrap_err();
    assert!(refused.contains("cut short") && refused.lines().count() == 1, "{refused}");
    // A read behind the end of the file, at 2^60. Without it, filling would not end.
    let behind = [0, 0, 0, 1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10, 0];
    let header = &bytes[..15];
    std::fs::write(&path, [header, &behind].concat()).unwrap();
    assert_eq!(replay(&server, &path, &[]).unwrap()["operations"], 1);
    // The number of a client that the trace has not named yet, and that of a file.
    for damaged in [[0, 0xff, 0xff, 0xff, 0xff, 0x0f, 3, 1], [0, 0, 3, 0xff, 0xff, 0xff, 0xff, 0x0f]] {
        std::fs::write(&path, [header, &damaged].concat()).unwrap();
        let refused = replay(&server, &path, &[]).unwrap_err();
        assert!(refused.contains("damaged after 0 operations"), "{refused}");
    }
    let refused = replay(&server, &server.home().join("forebay.toml"), &[]).unwrap_err();
    assert!(refused.contains("it is no trace"), "{refused}");
}

#[test]
fn a_recording_that_is_interrupted_has_an_end() {
    let server = served("");
    let path = server.home().join("trace");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["profile", "record"]).arg(&path).arg("--state-dir").arg(&server.state);
    let mut recorder = command.spawn().unwrap();
    let mut c = server.connect();
    let root = c.root();
    // The header has 15 bytes.
    wait_for(|| {
        c.attr(&root);
        std::fs::metadata(&path).is_ok_and(|file| file.len() > 15)
    });
    rustix::process::kill_process(rustix::process::Pid::from_child(&recorder), rustix::process::Signal::INT)
        .unwrap();
    assert!(recorder.wait().unwrap().success());
    let bytes = std::fs::read(&path).unwrap();
    let end = bytes.windows(3).rposition(|mark| mark == [0, 0, 31]).expect("no end");
    assert!(bytes.len() - end <= 3 + 2 * 10, "nothing follows the end");
}
