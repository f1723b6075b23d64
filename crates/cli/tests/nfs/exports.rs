//! Tests of export rules: read-only, networks, ports. A handle of one export must not circumvent the rules of
//! another.

use std::os::unix::fs::PermissionsExt;

use crate::harness::*;

#[test]
fn a_read_only_export_refuses_every_change_and_says_so_in_access() {
    let server = Serve::new().flags(&["--read-only"]).start_on(|data| {
        std::fs::write(data.join("f"), "text").unwrap();
        std::fs::create_dir(data.join("d")).unwrap();
        for name in ["f", "d"] {
            std::fs::set_permissions(data.join(name), PermissionsExt::from_mode(0o777)).unwrap();
        }
    });
    let mut c = server.connect();
    let root = c.root();
    let (f, d) = (c.find(&root, b"f"), c.find(&root, b"d"));
    let before = (c.attr(&root), c.attr(&f), c.attr(&d));
    let rofs = Nfsstat3::Rofs;
    assert_eq!(c.setattr(&f, mode(0o600)).status(), rofs);
    assert_eq!(c.write(&f, 0, b"x", StableHow::FileSync).status(), rofs);
    assert_eq!(c.create(&root, b"n", CreateHow::Unchecked(mode(0o644))).status(), rofs);
    assert_eq!(c.create(&root, b"f", CreateHow::Exclusive([1; 8])).status(), rofs);
    assert_eq!(c.mkdir(&root, b"n", mode(0o755)).status(), rofs);
    assert_eq!(c.symlink(&root, b"n", b"to").status(), rofs);
    assert_eq!(c.mknod(&root, b"n", MknodData::Fifo(mode(0o644))).status(), rofs);
    assert_eq!(c.remove(&root, b"f").status(), rofs);
    assert_eq!(c.rmdir(&root, b"d").status(), rofs);
    assert_eq!(c.rename((&root, b"f"), (&root, b"g")).status(), rofs);
    assert_eq!(c.link(&f, &root, b"g").status(), rofs);
    assert_eq!((c.attr(&root), c.attr(&f), c.attr(&d)), before);
    assert_eq!(c.read(&f, 0, 10).unwrap().data, b"text");
    assert!(c.readdir(&root, (0, [0; 8]), 4096).unwrap().eof);
    let all = 0x3f;
    assert_eq!(c.access(&f, all).unwrap().access, access::READ | access::EXECUTE);
    assert_eq!(c.access(&d, all).unwrap().access, access::READ | access::LOOKUP);
}

const TWO_EXPORTS: &str = r#"
[[export]]
path = "@/data/open"
name = "/open"
[[export.client]]
networks = ["127.0.0.0/8"]
squash = "none"
[[export]]
path = "@/data/closed"
name = "/closed"
[[export.client]]
networks = ["192.0.2.1"]
[[export]]
path = "@/data/ro"
name = "/ro"
[[export.client]]
networks = ["127.0.0.1"]
access = "ro"
[[export.client]]
networks = ["*"]
"#;

/// Returns a handle with one byte changed.
fn handle_with(handle: &FileHandle, at: usize, byte: u8) -> FileHandle {
    let mut bytes = handle.as_bytes().to_vec();
    bytes[at] = byte;
    FileHandle::new(&bytes).unwrap()
}

#[test]
fn each_export_has_its_own_rules_and_its_own_handles() {
    needs_root!();
    let server = Serve::new().exports(TWO_EXPORTS).start_on(|data| {
        for dir in ["open", "closed", "ro"] {
            std::fs::create_dir(data.join(dir)).unwrap();
        }
        std::fs::write(data.join("closed/f"), "secret").unwrap();
        // One inode is in two exports.
        std::fs::hard_link(data.join("closed/f"), data.join("open/f")).unwrap();
        std::fs::hard_link(data.join("closed/f"), data.join("ro/f")).unwrap();
    });
    let mut c = server.connect();
    assert_eq!(c.mnt(b"/closed").unwrap_err(), mount3::Mountstat3::Acces);
    let (open, ro) = (c.mnt(b"/open").unwrap().fhandle, c.mnt(b"/ro").unwrap().fhandle);
    let (in_open, in_ro) = (c.find(&open, b"f"), c.find(&ro, b"f"));
    assert_ne!(in_open, in_ro);
    assert_ne!(c.attr(&in_open).fsid, c.attr(&in_ro).fsid);
    assert_eq!(c.write(&in_open, 0, b"S", StableHow::FileSync).status(), Nfsstat3::Ok);
    assert_eq!(c.write(&in_ro, 0, b"S", StableHow::FileSync).status(), Nfsstat3::Rofs);
    // Objects cannot be moved or linked between exports, and no parent leads to another export.
    assert_eq!(c.link(&in_open, &ro, b"g").status(), Nfsstat3::Rofs);
    assert_eq!(c.link(&in_ro, &open, b"g").status(), Nfsstat3::Rofs);
    assert_eq!(c.rename((&open, b"f"), (&ro, b"g")).status(), Nfsstat3::Rofs);
    assert_eq!(c.lookup(&ro, b"..").unwrap().object, ro);
    // The handle contains the number of its export. With another number, the handle must be invalid.
    for at in 0..in_ro.as_bytes().len() {
        let forged = handle_with(&in_ro, at, in_open.as_bytes()[at]);
        let expected = if forged == in_ro { Nfsstat3::Ok } else { Nfsstat3::Badhandle };
        assert_eq!(c.getattr(&forged).status(), expected, "byte {at}");
    }
}

#[test]
fn exports_of_one_file_system_are_different_devices_to_rename_and_link() {
    let server = Serve::new()
        .exports("[[export]]\npath='@/data/a'\nname='/a'\n[[export]]\npath='@/data/b'\nname='/b'\n")
        .start_on(|data| {
            for dir in ["a", "b"] {
                std::fs::create_dir(data.join(dir)).unwrap();
                std::fs::set_permissions(data.join(dir), PermissionsExt::from_mode(0o777)).unwrap();
            }
            std::fs::write(data.join("a/f"), "").unwrap();
        });
    let mut c = server.connect();
    let (a, b) = (c.mnt(b"/a").unwrap().fhandle, c.mnt(b"/b").unwrap().fhandle);
    let f = c.find(&a, b"f");
    assert_eq!(c.rename((&a, b"f"), (&b, b"f")).status(), Nfsstat3::Xdev);
    assert_eq!(c.link(&f, &b, b"f").status(), Nfsstat3::Xdev);
}

#[test]
fn a_handle_is_worth_nothing_to_clients_outside_the_networks() {
    let rule = |networks: &str| {
        format!(
            "[[export]]\npath='@/data'\nname='/'\nid=7\n[[export.client]]\nnetworks=['{networks}']\nsquash='none'\n"
        )
    };
    let mut server = Serve::new().exports(&rule("127.0.0.0/8")).start();
    let root = server.connect().root();
    server.stop();
    let toml = rule("192.0.2.0/24").replace('@', server.home().to_str().unwrap());
    std::fs::write(server.home().join("forebay.toml"), toml).unwrap();
    server.start();
    // No export admits the client, so its connection is closed without an answer.
    let mut c = server.connect();
    assert_eq!(c.try_call(&root), None);
    // If another export admits the client, the client's request for this export is refused.
    server.stop();
    std::fs::create_dir(server.home().join("other")).unwrap();
    let other = server.home().join("other").display().to_string();
    let toml = rule("192.0.2.0/24").replace('@', server.home().to_str().unwrap());
    let toml = format!("{toml}[[export]]\npath='{other}'\nname='/other'\n");
    std::fs::write(server.home().join("forebay.toml"), toml).unwrap();
    server.start();
    let mut c = server.connect();
    assert_eq!(c.getattr(&root).status(), Nfsstat3::Acces);
    assert_eq!(c.create(&root, b"f", CreateHow::Guarded(mode(0o644))).status(), Nfsstat3::Acces);
    assert_eq!(c.readdir(&root, (0, [0; 8]), 4096).status(), Nfsstat3::Acces);
    assert_eq!(server.status()["refused"]["exports"], 3);
}

/// Returns a connection from a port below 1024.
fn connect_privileged(server: &Server) -> Client {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    for port in (600..1024).rev() {
        let fd = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        let from = std::net::SocketAddr::from(([127, 0, 0, 1], port));
        if bind(&fd, &from).is_ok() && connect(&fd, &server.address()).is_ok() {
            return Client::over(fd.into());
        }
    }
    panic!("no port below 1024 is free");
}

#[test]
fn privileged_ports_where_they_are_asked_for() {
    needs_root!();
    let server = Serve::new().flags(&["--privileged-port"]).start();
    let mut c = server.connect();
    assert_eq!(c.mnt(b"/").unwrap_err(), mount3::Mountstat3::Acces);
    let mut privileged = connect_privileged(&server);
    let root = privileged.root();
    privileged.attr(&root);
    assert_eq!(c.getattr(&root).status(), Nfsstat3::Acces);
    assert_eq!(server.status()["refused"]["ports"], 2);
    assert_eq!(refusals(&server), ["port"]);
}

/// Users of other hosts could act as root if neither root is squashed nor the port is checked.
#[test]
fn a_server_of_root_asks_other_hosts_for_ports_of_root() {
    needs_root!();
    let (asks, warns) = ("from ports below 1024 on other hosts", "can act as root in");
    for (flags, expected) in [
        (&["--allow", "192.0.2.0/24"][..], (true, false)),
        (&["--allow", "192.0.2.0/24", "--squash", "none"], (true, false)),
        (&["--allow", "192.0.2.0/24", "--squash", "none", "--privileged-port=false"], (false, true)),
        (&["--allow", "192.0.2.0/24", "--privileged-port=false"], (false, false)),
        (&["--squash", "none"], (false, false)),
    ] {
        let mut server = Serve::new().flags(flags).start();
        server.signal(rustix::process::Signal::TERM);
        let said = server.wait().1;
        assert_eq!((said.contains(asks), said.contains(warns)), expected, "{flags:?}: {said}");
    }
}

/// Clients on this host may use any port, unless the rule demands otherwise.
#[test]
fn loopback_may_use_any_port() {
    let server = Serve::new().start();
    let mut c = server.connect();
    let root = c.root();
    c.attr(&root);
}

/// The groups come from this host's user database, regardless of the groups in the request.
#[test]
fn groups_of_the_user_database_count_where_they_are_managed() {
    needs_root!();
    let server = Serve::unsquashed().flags(&["--manage-gids"]).start_on(|data| {
        std::fs::write(data.join("f"), "text").unwrap();
        std::os::unix::fs::chown(data.join("f"), Some(0), Some(4321)).unwrap();
        std::fs::set_permissions(data.join("f"), PermissionsExt::from_mode(0o640)).unwrap();
    });
    // A user that the database does not contain claims to be in the file's group.
    let mut c = server.connect().acting_as(user(3_000_000, 3_000_000, &[4321]));
    let root = c.root();
    let file = c.find(&root, b"f");
    assert_eq!(c.read(&file, 0, 4).status(), Nfsstat3::Acces);
    // The user's primary group is the one in the request.
    c.user = user(3_000_000, 4321, &[]);
    assert_eq!(c.read(&file, 0, 4).unwrap().data, b"text");
}

/// Returns the reasons in the events about refused clients.
fn refusals(server: &Server) -> Vec<String> {
    let events = server.ask(&["events", "--json"]);
    let events = events.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let refused = events.filter(|event| event["kind"] == "client-refused");
    refused.map(|event| event["fields"]["reason"].as_str().unwrap().to_owned()).collect()
}

const OPEN_AND_CLOSED: &str = r#"
[[export]]
path = "@/data/open"
name = "/open"
[[export.client]]
networks = ["127.0.0.1", "192.0.2.0/24"]
[[export.client]]
networks = ["198.51.100.0/24"]
[[export]]
path = "@/data/closed"
name = "/closed"
[[export.client]]
networks = ["127.0.0.2"]
"#;

/// Unauthorised clients are refused when they connect, reported once, and counted each time. MOUNT shows a client
/// only the exports that the client may mount.
#[test]
fn strangers_are_refused_and_nobody_learns_of_what_is_for_others() {
    let server = Serve::new().exports(OPEN_AND_CLOSED).start_on(|data| {
        ["open", "closed"].iter().for_each(|dir| std::fs::create_dir(data.join(dir)).unwrap());
    });
    let [mut one, mut two] = [[127, 0, 0, 1], [127, 0, 0, 2]].map(|from| server.connect_from(from));
    one.mnt(b"/open").unwrap();
    two.mnt(b"/closed").unwrap();
    let listed = |c: &mut Client| {
        let bytes = c.mount_call(mount3::Procedure::Export, &());
        let mut reader = forebay_wire::xdr::Reader::new(&bytes);
        let list = <mount3::ExportList<'_> as forebay_wire::xdr::Decode<'_>>::decode(&mut reader).unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let entry = |entry: &mount3::ExportEntry<'_>| {
            (text(entry.directory), entry.groups.0.iter().map(|group| text(group)).collect::<Vec<_>>())
        };
        list.0.iter().map(entry).collect::<Vec<_>>()
    };
    let networks = vec!["127.0.0.1/32".to_owned(), "192.0.2.0/24".to_owned()];
    assert_eq!(listed(&mut one), [("/open".to_owned(), networks)]);
    assert_eq!(listed(&mut two), [("/closed".to_owned(), vec!["127.0.0.2/32".to_owned()])]);
    for (c, own) in [(&mut one, "/open"), (&mut two, "/closed")] {
        let bytes = c.mount_call(mount3::Procedure::Dump, &());
        let mut reader = forebay_wire::xdr::Reader::new(&bytes);
        let list = <mount3::MountList<'_> as forebay_wire::xdr::Decode<'_>>::decode(&mut reader).unwrap();
        let directories: Vec<_> = list.0.iter().map(|mount| mount.directory).collect();
        assert_eq!(directories, [own.as_bytes()], "what another client has mounted");
    }
    // The null procedures and MOUNT are refused as well.
    let mut args = Vec::new();
    forebay_wire::xdr::Encode::encode(&one.mnt(b"/open").unwrap().fhandle, &mut args);
    let (nfs, mount) = ((PROGRAM, VERSION), (mount3::PROGRAM, mount3::VERSION));
    let asked = [(nfs, 0), (nfs, Procedure::Getattr as u32), (mount, 0), (mount, 1), (mount, 5)];
    for ((program, version), procedure) in asked {
        let mut stranger = server.connect_from([127, 0, 0, 3]);
        let call = stranger.call_bytes((program, version, procedure), &args);
        assert_eq!(stranger.try_exchange(&call), None, "procedure {procedure} of {program}");
    }
    assert_eq!(two.mnt(b"/open").unwrap_err(), mount3::Mountstat3::Acces);
    two.user = User::Flavor(6);
    two.call((PROGRAM, VERSION, Procedure::Getattr as u32), &[0; 4]);
    let refused = &server.status()["refused"];
    assert_eq!(
        (&refused["strangers"], &refused["exports"], &refused["auth"]),
        (&5.into(), &1.into(), &1.into())
    );
    assert_eq!(refusals(&server), ["stranger", "export"], "once for each address");
    assert_eq!(server.status()["connections"], 2, "strangers have no place");
    one.mnt(b"/open").unwrap();
}

#[test]
fn handles_from_before_a_crash_are_valid_whichever_export_comes_first() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    let Some(disk) = LoopDisk::new(home.path(), "ext4", 320 << 20) else { return };
    let [a, b] = ["a", "b"].map(|name| disk.at.join(name));
    [&a, &b].iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
    let export = |id: u32, at: &std::path::Path| {
        let (at, client) = (at.display(), "[[export.client]]\nnetworks=['127.0.0.1']\nsquash='none'");
        format!("[[export]]\nid={id}\npath='{at}'\nname='/{id}'\n{client}\n")
    };
    let (first, second) = (export(1, &a), export(2, &b));
    let mut server = Serve::new().exports(&[&first[..], &second].concat()).cached().start();
    let mut c = server.connect();
    let file = {
        let root = c.mnt(b"/2").unwrap().fhandle;
        c.new_file(&root, b"f", 0o644)
    };
    c.write(&file, 0, b"text", StableHow::FileSync).unwrap();
    server.kill();
    // A power cut can leave this state.
    std::fs::remove_file(b.join("f")).unwrap();
    server.start();
    assert_eq!(server.connect().read(&file, 0, 10).unwrap().data, b"text");
    assert!(a.join(".forebay").exists());
    server.stop();
    std::fs::write(server.home().join("forebay.toml"), [&second[..], &first].concat()).unwrap();
    server.start();
    assert_eq!(server.connect().read(&file, 0, 10).unwrap().data, b"text");
    assert!(b.join(".forebay").exists() && !a.join(".forebay").exists());
    server.stop();
}
