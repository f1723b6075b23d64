//! Known pairs of ACLs, and known refusals.

use super::text::{aces, acl, acls};
use crate::nfs4::{flag, kind};
use crate::nfsacl::{self, Entry, Owners, Role, from_list, to_list};
use crate::{Ace, Invalid, Object, PosixAcl, Refusal, Who, from_nfs4, tag, to_nfs4, xattr};

/// Name, object, access ACL, default ACL, NFSv4 ACL.
const PAIRS: [(&str, Object, &str, &str, &str); 9] = [
    (
        "mode 0644",
        Object::File,
        "u::rw-,g::r--,o::r--",
        "",
        "A::OWNER@:rwatTcCy A::GROUP@:rtcy A::EVERYONE@:rtcy",
    ),
    (
        "mode 0755 of a directory",
        Object::Directory,
        "u::rwx,g::r-x,o::r-x",
        "",
        "A::OWNER@:rwaDxtTcCy A::GROUP@:rxtcy A::EVERYONE@:rxtcy",
    ),
    (
        "the group is denied",
        Object::File,
        "u::rw-,g::---,o::r--",
        "",
        "A::OWNER@:rwatTcCy A::GROUP@:tcy D::GROUP@:r A::EVERYONE@:rtcy",
    ),
    (
        "the owner is denied",
        Object::File,
        "u::r--,g::rw-,o::--x",
        "",
        "D::OWNER@:wax A::OWNER@:rtTcCy A::GROUP@:rwatcy D::GROUP@:x A::EVERYONE@:xtcy",
    ),
    (
        "mode 0750 with a named user",
        Object::File,
        "u::rwx,u:7:r--,g::r-x,m::r-x,o::---",
        "",
        "A::OWNER@:rwaxtTcCy D::7:x A::7:rtcy A::GROUP@:rxtcy A::EVERYONE@:tcy",
    ),
    (
        "a mask limits",
        Object::File,
        "u::rw-,u:7:rwx,g::rwx,g:8:-wx,m::r--,o::r--",
        "",
        "A::OWNER@:rwatTcCy A::7:rtcy A::GROUP@:rtcy A:g:8:tcy D:g:8:r A::EVERYONE@:rtcy",
    ),
    (
        "a named group with less than other users",
        Object::Directory,
        "u::rwx,g::r-x,g:8:---,m::r-x,o::r-x",
        "",
        "A::OWNER@:rwaDxtTcCy A::GROUP@:rxtcy A:g:8:tcy D:g:8:rx A::EVERYONE@:rxtcy",
    ),
    (
        "a named user without write permission",
        Object::Directory,
        "u::rwx,u:7:r-x,g::rwx,m::rwx,o::---",
        "",
        "A::OWNER@:rwaDxtTcCy D::7:waD A::7:rxtcy A::GROUP@:rwaDxtcy A::EVERYONE@:tcy",
    ),
    (
        "a default ACL",
        Object::Directory,
        "u::rwx,g::r-x,o::r-x",
        "u::rwx,u:7:rw-,g::---,m::rw-,o::---",
        "A::OWNER@:rwaDxtTcCy A::GROUP@:rxtcy A::EVERYONE@:rxtcy \
         A:fdi:OWNER@:rwaDxtTcCy A:fdi:7:rwaDtcy A:fdi:GROUP@:tcy A:fdi:EVERYONE@:tcy",
    ),
];

#[test]
fn known_pairs_map_in_both_directions() {
    for (name, object, access, default, expected) in PAIRS {
        let acls = acls(access, default);
        let list = to_nfs4(&acls, object);
        assert_eq!(list, aces(expected), "{name}");
        let back = from_nfs4(&list, object).unwrap();
        assert_eq!(back.access, acls.access.effective(), "{name}");
        assert_eq!(back.default, acls.default.map(|acl| acl.effective()), "{name}");
    }
}

#[test]
fn lists_of_clients_become_these_acls() {
    for (name, list, access, default) in [
        ("nothing", "", "u::---,g::---,o::---", ""),
        ("an early deny wins", "D::7:r A::7:rx A::EVERYONE@:r", "u::---,u:7:--x,g::r--,m::r-x,o::r--", ""),
        ("an early allow wins", "A::7:rx D::7:r", "u::---,u:7:r-x,g::---,m::r-x,o::---", ""),
        (
            "a denied group counts for its members",
            "D:g:8:r A::EVERYONE@:rx",
            "u::--x,g::--x,g:8:--x,m::--x,o::r-x",
            "",
        ),
        (
            "a denied group counts for users named later",
            "D::GROUP@:r A::7:rx",
            "u::---,u:7:--x,g::---,m::--x,o::---",
            "",
        ),
        (
            "everyone counts for users named later",
            "A::EVERYONE@:r A::7:x",
            "u::r--,u:7:r-x,g::r--,m::r-x,o::r--",
            "",
        ),
        ("a part of write is none", "A::OWNER@:rwa A::GROUP@:rwaD", "u::r--,g::rwx,o::---", "-"),
        (
            "a default ACL is completed",
            "A::OWNER@:rwaDx A::GROUP@:rx A:d:7:rx D:f:7:w",
            "u::rwx,u:7:r-x,g::r-x,m::r-x,o::---",
            "u::r-x,u:7:r-x,g::r-x,m::r-x,o::---",
        ),
    ] {
        let found = from_nfs4(&aces(list), Object::Directory).unwrap();
        if default == "-" {
            assert_eq!(found.access, acl("u::r--,g::rw-,o::---"), "{name}");
            continue;
        }
        assert_eq!(found, acls(access, default), "{name}");
    }
}

#[test]
fn lists_that_posix_cannot_express_are_refused() {
    let ace = |kind, flags| Ace { kind, flags, mask: 1, who: Who::Everyone };
    for (ace, object, refusal) in [
        (ace(kind::AUDIT, 0), Object::File, Refusal::Kind(2)),
        (ace(kind::ALARM, 0), Object::Directory, Refusal::Kind(3)),
        (ace(4, 0), Object::Directory, Refusal::Kind(4)),
        (ace(0, flag::NO_PROPAGATE_INHERIT | flag::FILE_INHERIT), Object::Directory, Refusal::Flags(4)),
        (ace(0, flag::SUCCESSFUL_ACCESS), Object::File, Refusal::Flags(0x10)),
        (ace(0, flag::FAILED_ACCESS), Object::File, Refusal::Flags(0x20)),
        (ace(0, flag::INHERITED), Object::File, Refusal::Flags(0x80)),
        (ace(0, 0x100), Object::File, Refusal::Flags(0x100)),
        (ace(0, flag::FILE_INHERIT), Object::File, Refusal::InheritableOnFile),
        (ace(0, flag::INHERIT_ONLY), Object::Directory, Refusal::InheritOnly),
        (
            Ace { who: Who::User(u32::MAX), ..ace(0, 0) },
            Object::File,
            Invalid::Id { tag: 2, id: u32::MAX }.into(),
        ),
    ] {
        assert_eq!(from_nfs4(&[ace], object), Err(refusal));
    }
}

#[test]
fn a_mode_is_an_acl_and_chmod_changes_the_mask() {
    for mode in 0..0o1000 {
        assert_eq!(PosixAcl::from_mode(mode).mode(), mode);
    }
    let mut changed = acl("u::rw-,u:7:rwx,g::rwx,m::rwx,o::---");
    changed.set_mode(0o604);
    assert_eq!(changed, acl("u::rw-,u:7:rwx,g::rwx,m::---,o::r--"));
    let mut minimal = acl("u::rw-,g::r--,o::---");
    minimal.set_mode(0o751);
    assert_eq!(minimal, PosixAcl::from_mode(0o751));
}

#[test]
fn lists_of_nfsacl() {
    let entry = |tag, id, permissions| Entry { tag, id, permissions };
    let owners = Owners { uid: 5, gid: 6 };
    let list = to_list(&acl("u::rw-,g::r--,o::---"), Role::Access, owners).unwrap();
    assert_eq!(list, [entry(1, 5, 6), entry(4, 6, 4), entry(0x10, 0, 4), entry(0x20, 0, 0)]);
    let list = to_list(&acl("u::rwx,u:7:r--,g::r-x,m::rwx,o::---"), Role::Default, owners).unwrap();
    let tags: Vec<_> = list.iter().map(|entry| entry.tag).collect();
    assert_eq!(tags, [0x1001, 0x1002, 0x1004, 0x1010, 0x1020]);

    let base = [entry(0x20, 0, 0), entry(0x10, 0, 0o14), entry(4, 6, 4), entry(1, 5, 6)];
    assert_eq!(from_list(&[]), Ok(None));
    assert_eq!(
        from_list(&base),
        Ok(Some(acl("u::rw-,g::r--,o::---"))),
        "a mask like the group's entry is dropped"
    );
    let without_mask = [base[0], base[2], base[3]];
    assert_eq!(from_list(&without_mask), Ok(Some(acl("u::rw-,g::r--,o::---"))));
    let mut other_mask = base;
    other_mask[1].permissions = 6;
    assert_eq!(from_list(&other_mask), Ok(Some(acl("u::rw-,g::r--,m::rw-,o::---"))));
    for (extra, invalid) in [
        (entry(0x40, 0, 0), Invalid::Tag(0x40)),
        (entry(2, 7, 8), Invalid::Permissions { tag: 2, bits: 8 }),
        (entry(8, u32::MAX, 0), Invalid::Id { tag: 8, id: u32::MAX }),
        (entry(0x1020, 0, 0), Invalid::Twice { tag: 0x20, id: u32::MAX }),
    ] {
        assert_eq!(from_list(&[&base[..], &[extra]].concat()), Err(invalid));
    }
    let named = [&without_mask[..], &[entry(2, 7, 0)]].concat();
    assert_eq!(from_list(&named), Err(Invalid::Missing { tag: tag::MASK }));
    let many = vec![entry(2, 7, 0); nfsacl::MAX_ENTRIES + 1];
    assert_eq!(from_list(&many), Err(Invalid::TooMany { count: 1025, max: 1024 }));
}

#[test]
fn bytes_that_are_no_acl_are_refused() {
    let good = xattr::encode(&acl("u::rw-,u:7:r--,u:9:r--,g::r--,m::r--,o::---"));
    let damaged = |at: usize, byte| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        xattr::decode(&bytes).unwrap_err()
    };
    assert_eq!(damaged(0, 1), Invalid::Version(1));
    assert_eq!(damaged(4, 0x10), Invalid::Order { tag: 2 });
    assert_eq!(damaged(6, 8), Invalid::Permissions { tag: 1, bits: 8 });
    assert_eq!(damaged(8, 0), Invalid::Id { tag: 1, id: 0xffff_ff00 });
    assert_eq!(damaged(24, 7), Invalid::Twice { tag: 2, id: 7 });
    assert_eq!(damaged(44, 0x40), Invalid::Tag(0x40));
    assert_eq!(damaged(36, 0x20), Invalid::Twice { tag: 0x20, id: u32::MAX });
    assert_eq!(xattr::decode(&good[..good.len() - 1]), Err(Invalid::Length(good.len() - 1)));
    assert_eq!(xattr::decode(&good[..good.len() - 8]), Err(Invalid::Missing { tag: tag::OTHER }));
    assert_eq!(xattr::decode(&good[..4]), Err(Invalid::Missing { tag: tag::USER_OBJ }));
    assert_eq!(xattr::decode(&good[..3]), Err(Invalid::Length(3)));
}
