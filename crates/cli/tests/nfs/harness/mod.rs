//! Helpers of every test: a server, a client, and assertions.

use std::sync::atomic::{AtomicBool, Ordering};

mod array;
mod calls;
mod client;
mod copies;
mod database;
mod disk;
mod filter;
mod locks;
mod random;
mod realm;
mod relay;
mod server;
mod silent;

pub(crate) use array::{Array, Hanging};
pub(crate) use calls::{Listed, Page, Place, ReadDone, START, call, status_of};
pub(crate) use client::{Client, User, decode, user};
pub(crate) use copies::Copies;
pub(crate) use disk::{LoopDisk, serve_at};
pub(crate) use locks::{Bytes, COOKIE, Host, OWNER, Process, Reaction, add_address, enter_own_network, make};
pub(crate) use random::Random;
pub(crate) use realm::{Context, NULL, REALM, Realm};
pub(crate) use relay::Relay;
pub(crate) use server::{Asker, Killed, Serve, Server};
pub(crate) use silent::Silent;

pub(crate) use forebay_wire::nfs3::*;
pub(crate) use forebay_wire::{mount3, rpc};

/// Ends the test if it needs root and does not run as root.
macro_rules! needs_root {
    () => {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not run: {} needs root", module_path!());
            return;
        }
    };
}

/// Returns true if the kernel's change times are coarse (before Linux 6.13). An inode that enters the server's memory
/// then has a later one than in the file system.
pub(crate) fn has_coarse_times() -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < (6, 13)
}

/// The status of a result.
pub(crate) trait Status {
    fn status(&self) -> Nfsstat3;
}

impl<T, F> Status for Result<T, Failed<F>> {
    fn status(&self) -> Nfsstat3 {
        self.as_ref().err().map_or(Nfsstat3::Ok, |failed| failed.status)
    }
}

/// Asserts that weak cache consistency data is present and agrees with the attributes read before and after the
/// change.
#[track_caller]
pub(crate) fn assert_wcc(wcc: &WccData, before: &Fattr3, after: &Fattr3) {
    assert_eq!(wcc.before, Some(WccAttr::from(before)), "attributes before");
    assert_eq!(wcc.after.as_ref(), Some(after), "attributes after");
}

/// Returns attributes with mode bits only, as most creations send.
pub(crate) fn mode(mode: u32) -> Sattr3 {
    Sattr3 { mode: Some(mode), ..Sattr3::default() }
}

/// Returns attributes with a size only.
pub(crate) fn size(size: u64) -> Sattr3 {
    Sattr3 { size: Some(size), ..Sattr3::default() }
}

/// Returns a time that the client sets.
pub(crate) fn at(seconds: u32, nseconds: u32) -> SetTime {
    SetTime::ClientTime(Nfstime3 { seconds, nseconds })
}

/// Returns a name in a directory.
pub(crate) fn name<'a>(dir: &FileHandle, name: &'a [u8]) -> DirOpArgs<'a> {
    DirOpArgs { dir: *dir, name }
}

/// A guard that tells threads to end when it is dropped, even if its owner panics. Otherwise the test would hang
/// without a message.
pub(crate) struct DoneAtEnd<'a>(pub(crate) &'a AtomicBool);

impl Drop for DoneAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Repeats a check until it succeeds. A working server needs seconds at most.
pub(crate) fn wait_for(mut so: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !so() {
        assert!(begun.elapsed().as_secs() < 60, "it did not come to pass");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}
