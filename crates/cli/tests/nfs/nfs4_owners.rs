//! Owners and groups of NFSv4 as names of a domain (`idmap_domain`). Every host has the users root and daemon.

use std::os::unix::fs::{MetadataExt, chown};

use forebay_acl::nfs4::kind;
use forebay_wire::nfs4::{
    Ace, Attributes, Bitmap, CreateArgs, CreateHow, CreateType, Fattr, GetattrArgs, Nfsstat4,
    ObjectAttributes, Op, OpResult, OpenHow, ReaddirArgs, SetattrArgs, Stateid, attr,
};
use forebay_wire::{Array, Opaque};

use crate::harness::*;
use crate::nfs4::{Client4, putfh};

const DOMAIN: &str = "idmap_domain = 'example.org'\n";
const EXPORT: &str = "[[export]]\npath = '@/data'\nname = '/'\n[[export.client]]\nnetworks = ['127.0.0.0/8']\nsquash = 'none'\n";
/// A user whom no host knows.
const NOBODY: u32 = 4_000_000;

/// Returns a server with a file of each of these users.
fn serving(domain: &str) -> Server {
    Serve::new().exports(&format!("{domain}{EXPORT}")).start_on(|data| {
        for user in [0, 1, NOBODY] {
            let path = data.join(user.to_string());
            std::fs::write(&path, "x").unwrap();
            chown(&path, Some(user), Some(user)).unwrap();
        }
    })
}

fn attributes(owner: &str, group: &str, see: impl FnOnce(Fattr<'_>)) {
    let [owner, owner_group] = [owner, group].map(|text| (!text.is_empty()).then_some(text.as_bytes()));
    let set = Attributes { owner, owner_group, ..Attributes::default() };
    see(Fattr::encoded(&mut Vec::new(), &set));
}

/// A client in the root of a server.
struct Rig {
    server: Server,
    client: Client4,
}

impl Rig {
    fn new(domain: &str) -> Self {
        let server = serving(domain);
        let client = Client4::connect(&server, b"one");
        Rig { server, client }
    }

    fn find(&self, name: &str) -> Vec<u8> {
        let mut c = self.server.connect();
        let root = c.root();
        c.find(&root, name.as_bytes()).as_bytes().to_vec()
    }

    /// Returns the owner and the group of a file.
    fn owner(&mut self, name: &str) -> [String; 2] {
        let request = Bitmap::of(&[attr::OWNER, attr::OWNER_GROUP]);
        let file = self.find(name);
        self.client.run(&[putfh(&file), Op::Getattr(GetattrArgs { request })], |status, results| {
            let Some(OpResult::Getattr(Ok(got))) = results.get(1) else { panic!("{status:?}") };
            texts(&got.attributes.attributes().unwrap())
        })
    }

    /// Sets the owner and the group of a file, unless they are empty.
    fn set(&mut self, name: &str, owner: &str, group: &str) -> Nfsstat4 {
        let file = self.find(name);
        let mut status = Nfsstat4::Ok;
        attributes(owner, group, |attributes| {
            let set = Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attributes });
            status = self.client.status(&[putfh(&file), set]);
        });
        status
    }

    /// Compares the owner and the group of a file with these.
    fn verify(&mut self, name: &str, owner: &str, group: &str) -> Nfsstat4 {
        let file = self.find(name);
        let mut status = Nfsstat4::Ok;
        attributes(owner, group, |attributes| {
            status = self.client.status(&[putfh(&file), Op::Verify(ObjectAttributes { attributes })]);
        });
        status
    }

    /// Returns the names of the root with their owners, in the order of the names.
    fn list(&mut self) -> Vec<(String, [String; 2])> {
        let request = Bitmap::of(&[attr::OWNER, attr::OWNER_GROUP]);
        let args = ReaddirArgs { cookie: 0, cookieverf: [0; 8], dircount: 4096, maxcount: 4096, request };
        let mut found: Vec<_> =
            self.client.run(&[Op::Putrootfh(()), Op::Readdir(args)], |status, results| {
                let Some(OpResult::Readdir(Ok(listing))) = results.get(1) else { panic!("{status:?}") };
                let entry = |entry: forebay_wire::nfs4::DirEntry<'_>| {
                    let name = String::from_utf8(entry.name.to_vec()).unwrap();
                    (name, texts(&entry.attributes.attributes().unwrap()))
                };
                listing.entries.into_iter().map(entry).collect()
            });
        found.retain(|(name, _)| name.parse::<u32>().is_ok());
        found.sort();
        found
    }

    /// Returns the owner and the group of a file as the host sees them.
    fn on_host(&self, name: &str) -> [u32; 2] {
        let found = self.server.data.join(name).metadata().unwrap();
        [found.uid(), found.gid()]
    }
}

fn texts(attributes: &Attributes<'_>) -> [String; 2] {
    [attributes.owner, attributes.owner_group].map(|text| String::from_utf8(text.unwrap().to_vec()).unwrap())
}

#[test]
fn without_a_domain_owners_are_numbers_in_both_directions() {
    needs_root!();
    let mut rig = Rig::new("");
    assert_eq!(rig.owner("1"), ["1", "1"]);
    assert_eq!(rig.set("1", "daemon@example.org", ""), Nfsstat4::Badowner);
    assert_eq!(rig.set("1", "7", "8"), Nfsstat4::Ok);
    assert_eq!(rig.owner("1"), ["7", "8"]);
}

#[test]
fn replies_have_names_that_the_host_knows_and_requests_may() {
    needs_root!();
    let mut rig = Rig::new(DOMAIN);
    let number = NOBODY.to_string();
    // No name is remembered yet.
    let names = ["root", "daemon"].map(|name| format!("{name}@example.org"));
    let [root, daemon] = names.each_ref().map(|name| [name.clone(), name.clone()]);
    let nobody = [number.clone(), number.clone()];
    let listed = [("0", root.clone()), ("1", daemon.clone()), (&number, nobody.clone())];
    assert_eq!(rig.list(), listed.map(|(name, owner)| (name.to_owned(), owner)));
    assert_eq!([rig.owner("0"), rig.owner("1"), rig.owner(&number)], [root.clone(), daemon.clone(), nobody]);

    assert_eq!(rig.set("0", "daemon@EXAMPLE.org", "daemon@example.org"), Nfsstat4::Ok);
    assert_eq!((rig.owner("0"), rig.on_host("0")), (daemon, [1, 1]));
    for bad in ["no-such-user@example.org", "daemon@other.org", "daemon", "@example.org"] {
        assert_eq!(rig.set("0", bad, ""), Nfsstat4::Badowner, "{bad}");
        assert_eq!(rig.set("0", "", bad), Nfsstat4::Badowner, "{bad}");
    }
    // A Linux client with AUTH_SYS sends numbers.
    assert_eq!(rig.set("0", "0", "12345"), Nfsstat4::Ok);
    assert_eq!((rig.owner("0"), rig.on_host("0")), ([root[0].clone(), "12345".into()], [0, 12345]));
    for (owner, group) in [("root@example.org", "12345"), ("0", "12345"), ("0", ""), ("root@example.org", "")]
    {
        assert_eq!(rig.verify("0", owner, group), Nfsstat4::Ok, "{owner} {group}");
    }
    assert_eq!(rig.verify("0", "daemon@example.org", ""), Nfsstat4::NotSame);
    assert_eq!(rig.verify("0", "1", ""), Nfsstat4::NotSame);
}

#[test]
fn new_inodes_and_lists_take_names() {
    needs_root!();
    let mut rig = Rig::new(DOMAIN);
    attributes("daemon@example.org", "root@example.org", |attributes| {
        rig.client.open(b"file", OpenHow::Create(CreateHow::Guarded(attributes)), 0).unwrap();
        let make = Op::Create(CreateArgs { objtype: CreateType::Dir, name: b"dir", attributes });
        assert_eq!(rig.client.status(&[Op::Putrootfh(()), make]), Nfsstat4::Ok);
    });
    attributes("daemon@other.org", "", |attributes| {
        let how = OpenHow::Create(CreateHow::Guarded(attributes));
        assert_eq!(rig.client.open(b"none", how, 0), Err(Nfsstat4::Badowner));
    });
    assert!(!rig.server.data.join("none").exists());
    assert_eq!([rig.on_host("file"), rig.on_host("dir")], [[1, 0]; 2]);

    let file = rig.find("file");
    let mut set = |who: &str| {
        let ace = |principal| Ace { kind: kind::ALLOW, flag: 0, access_mask: 1, principal };
        let mut list = Vec::new();
        let acl = Array::encoded(&mut list, &[ace(who.as_bytes()), ace(b"OWNER@")]).unwrap();
        let mut buffer = Vec::new();
        let values = Attributes { acl: Some(acl), ..Attributes::default() };
        let attributes = Fattr::encoded(&mut buffer, &values);
        let set = Op::Setattr(SetattrArgs { stateid: Stateid::ANONYMOUS, attributes });
        rig.client.status(&[putfh(&file), set])
    };
    assert_eq!(set("daemon@other.org"), Nfsstat4::Badowner);
    assert_eq!(set("12345"), Nfsstat4::Ok);
    assert_eq!(set("bin@example.org"), Nfsstat4::Ok);
    let ask = Op::Getattr(GetattrArgs { request: Bitmap::of(&[attr::ACL]) });
    let file = Op::Putfh(forebay_wire::nfs4::HandleArgs { object: Opaque(&file) });
    rig.client.run(&[file, ask], |status, results| {
        let Some(OpResult::Getattr(Ok(got))) = results.get(1) else { panic!("{status:?}") };
        let list = got.attributes.attributes().unwrap().acl.unwrap();
        assert!(list.iter().any(|ace| ace.principal == b"bin@example.org"), "{list:?}");
    });
}

#[test]
fn a_reload_changes_the_domain() {
    needs_root!();
    let mut rig = Rig::new("");
    assert_eq!(rig.owner("1"), ["1", "1"]);
    let steps = [
        (DOMAIN, "idmap_domain: none -> \"example.org\"", "daemon@example.org"),
        ("idmap_domain = 'b.org'\n", "idmap_domain: \"example.org\" -> \"b.org\"", "daemon@b.org"),
        ("", "idmap_domain: \"b.org\" -> none", "1"),
    ];
    for (domain, line, owner) in steps {
        rig.server.configure(&format!("{domain}{EXPORT}"));
        let said = rig.server.ask(&["reload", "--json"]);
        let changed: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert_eq!(changed["changed"][0], line);
        assert_eq!(rig.owner("1"), [owner; 2]);
    }
    rig.server.configure(&format!("idmap_domain = 'not a domain'\n{EXPORT}"));
    assert_eq!(rig.server.try_ask(&["reload"]).status.code(), Some(2));
}
