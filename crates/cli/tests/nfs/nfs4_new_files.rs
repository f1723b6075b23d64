//! New files of NFSv4 clients, and programs of the host that use them.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use forebay_wire::nfs4::{
    Attributes, CloseArgs, CreateHow, Fattr, Nfsstat4, Op, OpenHow, StableHow4, WriteArgs,
};

use crate::harness::*;
use crate::nfs4::{Client4, putfh};

/// Nobody can execute a file that is open for changes.
#[test]
fn the_host_can_execute_a_new_file_that_its_client_has_closed() {
    needs_root!();
    let home = tempfile::tempdir().unwrap();
    // Where the log has new names, no journal's commit closes files.
    let Some(disk) = LoopDisk::new(home.path(), "xfs", 320 << 20) else { return };
    let server = disk.serve().cached().start();
    let mut client = Client4::connect(&server, b"one");
    for written in [false, true] {
        let name = format!("file-{written}");
        let mut buffer = Vec::new();
        let set = Attributes { mode: Some(0o755), ..Attributes::default() };
        let how = OpenHow::Create(CreateHow::Guarded(Fattr::encoded(&mut buffer, &set)));
        let (open, file) = client.open(name.as_bytes(), how, 0).unwrap();
        let script = b"#!/bin/sh\nexit 7\n";
        if written {
            let write = WriteArgs { stateid: open, offset: 0, stable: StableHow4::FileSync, data: script };
            assert_eq!(client.status(&[putfh(&file), Op::Write(write)]), Nfsstat4::Ok);
        }
        let close = Op::Close(CloseArgs { seqid: 0, open_stateid: open });
        assert_eq!(client.status(&[putfh(&file), close]), Nfsstat4::Ok);
        let path = disk.at.join(&name);
        match written {
            true => server.flush(),
            false => std::fs::write(&path, script).unwrap(),
        }
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(Command::new(&path).status().unwrap().code(), Some(7), "{name}");
    }
}
