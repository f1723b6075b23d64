//! Properties of all ACLs over small identities.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::model::{identities, nfs4_permits, posix_permits};
use crate::nfs4::{flag, mask};
use crate::nfsacl::{Owners, Role, from_list, to_list};
use crate::{Ace, Acls, Entries, Named, Object, Permissions, PosixAcl, Who, from_nfs4, to_nfs4, xattr};

fn permissions() -> impl Strategy<Value = Permissions> {
    (0..8u32).prop_map(Permissions::truncated)
}

fn named() -> impl Strategy<Value = Vec<Named>> {
    let all = btree_map(0..3u32, permissions(), 0..3);
    all.prop_map(|all| all.into_iter().map(|(id, permissions)| Named { id, permissions }).collect())
}

fn acl() -> impl Strategy<Value = PosixAcl> {
    let single = (permissions(), permissions(), permissions(), permissions(), any::<bool>());
    (single, named(), named()).prop_map(|((user_obj, group_obj, other, mask, masked), users, groups)| {
        let is_named = !users.is_empty() || !groups.is_empty();
        let mask = (is_named || masked).then_some(mask);
        PosixAcl::new(Entries { user_obj, users, group_obj, groups, mask, other }).unwrap()
    })
}

fn object() -> impl Strategy<Value = Object> {
    prop_oneof![Just(Object::File), Just(Object::Directory)]
}

fn ace(flags: u32) -> impl Strategy<Value = Ace> {
    let special = prop_oneof![Just(Who::Owner), Just(Who::OwningGroup), Just(Who::Everyone)];
    let who = prop_oneof![special, (0..3u32).prop_map(Who::User), (0..3u32).prop_map(Who::Group)];
    let operations =
        mask::READ_DATA | mask::WRITE_DATA | mask::APPEND_DATA | mask::EXECUTE | mask::DELETE_CHILD;
    (0..2u32, any::<u32>(), any::<u32>(), who).prop_map(move |(kind, some, bits, who)| {
        // Half of the masks are whole, so that permissions are granted often.
        let mask = if bits & 0x8000_0000 != 0 { operations } else { bits & operations };
        Ace { kind, flags: flags & some, mask, who }
    })
}

/// The operations that permissions stand for, without the code of the mapping.
fn operations(wanted: Permissions, object: Object) -> u32 {
    let write = match object {
        Object::File => mask::WRITE_DATA | mask::APPEND_DATA,
        Object::Directory => mask::ADD_FILE | mask::ADD_SUBDIRECTORY | mask::DELETE_CHILD,
    };
    let rows = [
        (Permissions::READ, mask::READ_DATA),
        (Permissions::WRITE, write),
        (Permissions::EXECUTE, mask::EXECUTE),
    ];
    rows.into_iter().filter(|row| wanted.contains(row.0)).map(|row| row.1).sum()
}

/// Asserts that whatever `acl` permits is permitted by `aces`.
fn grants_no_more(acl: &PosixAcl, aces: &[Ace], object: Object) {
    for user in identities() {
        for wanted in (1..8).map(Permissions::truncated).filter(|wanted| posix_permits(acl, user, *wanted)) {
            let bits = operations(wanted, object);
            assert!(nfs4_permits(aces, user, bits), "{user:?} gets {wanted:?} by {acl:?}, not by {aces:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn the_way_to_nfs4_and_back_returns_the_effective_acl(
        access in acl(), default in proptest::option::of(acl()), object in object(),
    ) {
        let acls = Acls { access, default };
        let back = from_nfs4(&to_nfs4(&acls, object), object).unwrap();
        prop_assert_eq!(&back.access, &acls.access.effective());
        let default = acls.default.filter(|_| object == Object::Directory).map(|acl| acl.effective());
        prop_assert_eq!(&back.default, &default);
        // The second round trip changes nothing.
        prop_assert_eq!(from_nfs4(&to_nfs4(&back, object), object).unwrap(), back);
    }

    #[test]
    fn the_effective_acl_and_its_nfs4_acl_permit_each_permission_alike(acl in acl(), object in object()) {
        let aces = to_nfs4(&Acls { access: acl.clone(), default: None }, object);
        grants_no_more(&acl, &aces, object);
        for user in identities() {
            for wanted in [Permissions::READ, Permissions::WRITE, Permissions::EXECUTE] {
                let permitted = posix_permits(&acl, user, wanted);
                prop_assert_eq!(permitted, posix_permits(&acl.effective(), user, wanted));
                prop_assert_eq!(permitted, nfs4_permits(&aces, user, operations(wanted, object)));
            }
        }
    }

    #[test]
    fn the_way_from_nfs4_grants_no_more(aces in vec(ace(0), 0..8), object in object()) {
        grants_no_more(&from_nfs4(&aces, object).unwrap().access, &aces, object);
    }

    #[test]
    fn the_default_acl_grants_no_more_if_it_is_complete(
        mut aces in vec(ace(flag::FILE_INHERIT | flag::DIRECTORY_INHERIT), 0..8), at in any::<[prop::sample::Index; 3]>(),
    ) {
        let flags = flag::DIRECTORY_INHERIT | flag::INHERIT_ONLY;
        for (who, at) in [Who::Owner, Who::OwningGroup, Who::Everyone].into_iter().zip(at) {
            let at = at.index(aces.len() + 1);
            aces.insert(at, Ace { kind: 0, flags, mask: mask::READ_DATA, who });
        }
        let acls = from_nfs4(&aces, Object::Directory).unwrap();
        let inherits = |ace: &Ace| ace.flags & (flag::FILE_INHERIT | flag::DIRECTORY_INHERIT) != 0;
        let (inherited, applied): (Vec<_>, Vec<_>) =
            (aces.iter().copied().filter(inherits).collect(),
             aces.iter().copied().filter(|ace| ace.flags & flag::INHERIT_ONLY == 0).collect());
        grants_no_more(&acls.default.unwrap(), &inherited, Object::Directory);
        grants_no_more(&acls.access, &applied, Object::Directory);
    }

    #[test]
    fn an_xattr_decodes_to_what_was_encoded(acl in acl()) {
        prop_assert_eq!(xattr::decode(&xattr::encode(&acl)), Ok(acl));
    }

    #[test]
    fn malformed_bytes_never_panic(acl in acl(), at in any::<prop::sample::Index>(), byte: u8, bytes in vec(any::<u8>(), 0..80)) {
        let _ = xattr::decode(&bytes);
        let mut damaged = xattr::encode(&acl);
        let at = at.index(damaged.len());
        prop_assert!(xattr::decode(&damaged[..at]).is_err(), "the last entry is missing");
        damaged[at] = byte;
        if let Ok(acl) = xattr::decode(&damaged) {
            prop_assert_eq!(xattr::decode(&xattr::encode(&acl)), Ok(acl));
        }
    }

    #[test]
    fn a_list_returns_the_acl(acl in acl()) {
        let list = to_list(&acl, Role::Default, Owners { uid: 5, gid: 6 }).unwrap();
        prop_assert!(list.len() >= 4 && list.is_sorted_by_key(|entry| entry.tag));
        let mut expected = acl.into_entries();
        if expected.users.is_empty() && expected.groups.is_empty() && expected.mask == Some(expected.group_obj) {
            expected.mask = None;
        }
        prop_assert_eq!(from_list(&list), Ok(Some(PosixAcl::new(expected).unwrap())));
    }
}
