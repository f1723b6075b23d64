//! Fuzzes ACLs: the bytes of an extended attribute, and an NFSv4 ACL of 13 bytes for each entry. A decoded or mapped
//! ACL must survive all conversions.
#![no_main]

use forebay_acl::nfsacl::{Owners, Role, from_list, to_list};
use forebay_acl::{Ace, Acls, Object, PosixAcl, Who, from_nfs4, to_nfs4, xattr};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(access) = xattr::decode(bytes) {
        check(&access);
    }
    let aces: Vec<_> = bytes.as_chunks().0.iter().map(ace).collect();
    for object in [Object::File, Object::Directory] {
        let Ok(acls) = from_nfs4(&aces, object) else { continue };
        assert_eq!(from_nfs4(&to_nfs4(&acls, object), object).as_ref(), Ok(&acls));
        check(&acls.access);
    }
});

fn ace([kind, flags, m0, m1, m2, m3, who, id @ .., _, _]: &[u8; 13]) -> Ace {
    let id = u32::from_le_bytes(*id);
    let who = match who % 5 {
        0 => Who::Owner,
        1 => Who::OwningGroup,
        2 => Who::Everyone,
        3 => Who::User(id),
        _ => Who::Group(id),
    };
    Ace { kind: (*kind).into(), flags: (*flags).into(), mask: u32::from_le_bytes([*m0, *m1, *m2, *m3]), who }
}

/// Asserts that an ACL survives its conversions.
fn check(acl: &PosixAcl) {
    assert_eq!(xattr::decode(&xattr::encode(acl)).as_ref(), Ok(acl));
    let acls = Acls { access: acl.clone(), default: Some(acl.clone()) };
    let back = from_nfs4(&to_nfs4(&acls, Object::Directory), Object::Directory);
    assert_eq!(back, Ok(Acls { access: acl.effective(), default: Some(acl.effective()) }));
    if let Ok(list) = to_list(acl, Role::Access, Owners { uid: 0, gid: 0 }) {
        let again = from_list(&list).expect("a list of our own is valid").expect("it is not empty");
        assert_eq!(again.effective(), acl.effective());
    }
}
