//! Tests of `manage_gids`: the groups of a user come from the host's user database.

use std::os::unix::fs::{PermissionsExt, chown};

use crate::harness::*;

const USER: u32 = 7000;
/// Groups in the database: more than AUTH_SYS carries, and more than the server asks for at first.
const GROUPS: std::ops::RangeInclusive<u32> = 7001..=7080;
/// A group that is not in the database.
const CLAIMED: u32 = 7999;

/// Returns a server whose host knows the user and its groups, with a file for each of three groups.
fn server(manage: bool) -> Server {
    let groups: String = GROUPS.map(|gid| format!("g{gid}:x:{gid}:jo\n")).collect();
    let passwd = format!("root:x:0:0::/:/bin/sh\njo:x:{USER}:{USER}::/:/bin/sh\n");
    let toml = format!(
        "[[export]]\npath='@/data'\nname='/'\n[[export.client]]\nnetworks=['127.0.0.1']\nmanage_gids={manage}\n"
    );
    Serve::new().exports(&toml).users(&passwd, &format!("root:x:0:\njo:x:{USER}:\n{groups}")).start_on(
        |data| {
            for gid in [*GROUPS.start(), *GROUPS.end(), CLAIMED] {
                let path = data.join(gid.to_string());
                std::fs::write(&path, "x").unwrap();
                chown(&path, Some(0), Some(gid)).unwrap();
                std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
            }
        },
    )
}

/// Returns true if the user may read the file of a group.
fn reads(server: &Server, gid: u32, sent: &[u32]) -> bool {
    let mut c = server.connect();
    let root = c.root();
    c.user = user(USER, USER, sent);
    let file = c.find(&root, gid.to_string().as_bytes());
    match c.read(&file, 0, 1).status() {
        Nfsstat3::Ok => true,
        Nfsstat3::Acces => false,
        status => panic!("{status:?}"),
    }
}

#[test]
fn a_user_has_all_groups_of_the_database_and_none_that_the_request_claims() {
    needs_root!();
    let server = server(true);
    for gid in [*GROUPS.start(), *GROUPS.end()] {
        assert!(reads(&server, gid, &[]), "{gid}");
    }
    assert!(!reads(&server, CLAIMED, &[CLAIMED]));
}

#[test]
fn without_manage_gids_a_user_has_the_groups_of_the_request() {
    needs_root!();
    let server = server(false);
    assert!(!reads(&server, *GROUPS.end(), &[]));
    assert!(reads(&server, *GROUPS.end(), &[*GROUPS.end()]));
    assert!(reads(&server, CLAIMED, &[CLAIMED]));
}
