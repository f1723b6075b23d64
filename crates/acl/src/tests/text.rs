//! ACLs as short texts: `u::rw-,u:1:r--,g::r--,m::r--,o::---` and, as in nfs4_acl(5), `A:g:7:rxtcy`.

use crate::nfs4::{flag, kind, mask};
use crate::{Ace, Acls, Entries, Named, Permissions, PosixAcl, Who};

pub(crate) fn permissions(text: &str) -> Permissions {
    let bits = text.bytes().map(|letter| match letter {
        b'r' => 4,
        b'w' => 2,
        b'x' => 1,
        _ => 0,
    });
    Permissions::from_bits(bits.sum()).unwrap()
}

pub(crate) fn acl(text: &str) -> PosixAcl {
    let none = Permissions::NONE;
    let mut entries =
        Entries { user_obj: none, users: vec![], group_obj: none, groups: vec![], mask: None, other: none };
    for entry in text.split(',') {
        let [tag, id, set] = entry.split(':').collect::<Vec<_>>()[..] else { panic!("{entry}") };
        let set = permissions(set);
        let named = || Named { id: id.parse().unwrap(), permissions: set };
        match (tag, id) {
            ("u", "") => entries.user_obj = set,
            ("u", _) => entries.users.push(named()),
            ("g", "") => entries.group_obj = set,
            ("g", _) => entries.groups.push(named()),
            ("m", _) => entries.mask = Some(set),
            ("o", _) => entries.other = set,
            _ => panic!("{entry}"),
        }
    }
    PosixAcl::new(entries).unwrap()
}

/// Returns access and default ACL; an empty text is no default ACL.
pub(crate) fn acls(access: &str, default: &str) -> Acls {
    Acls { access: acl(access), default: (!default.is_empty()).then(|| acl(default)) }
}

fn ace(text: &str) -> Ace {
    let [kind, flags, who, operations] = text.split(':').collect::<Vec<_>>()[..] else { panic!("{text}") };
    let kind = if kind == "A" { kind::ALLOW } else { kind::DENY };
    let flags = flags.bytes().fold(0, |set, letter| {
        set | match letter {
            b'f' => flag::FILE_INHERIT,
            b'd' => flag::DIRECTORY_INHERIT,
            b'i' => flag::INHERIT_ONLY,
            b'g' => flag::IDENTIFIER_GROUP,
            _ => panic!("{text}"),
        }
    });
    let mask = operations.bytes().fold(0, |set, letter| {
        set | match letter {
            b'r' => mask::READ_DATA,
            b'w' => mask::WRITE_DATA,
            b'a' => mask::APPEND_DATA,
            b'D' => mask::DELETE_CHILD,
            b'x' => mask::EXECUTE,
            b't' => mask::READ_ATTRIBUTES,
            b'T' => mask::WRITE_ATTRIBUTES,
            b'c' => mask::READ_ACL,
            b'C' => mask::WRITE_ACL,
            b'y' => mask::SYNCHRONIZE,
            _ => panic!("{text}"),
        }
    });
    let id = || who.parse().unwrap();
    let numbered = || if flags & flag::IDENTIFIER_GROUP != 0 { Who::Group(id()) } else { Who::User(id()) };
    Ace { kind, flags, mask, who: Who::from_special_name(who.as_bytes()).unwrap_or_else(numbered) }
}

pub(crate) fn aces(text: &str) -> Vec<Ace> {
    text.split_whitespace().map(ace).collect()
}
