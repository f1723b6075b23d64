//! The hooks of the profile and of the limits of exports. The profile counts each procedure of NFSv3 and each operation
//! of NFSv4 once.
//!
//! A request notes its caller and its file in its [`Head`](crate::request::Head), when both are known.
//! The request is counted together with its latency. So a request that an event loop tries and a worker carries out
//! counts once, and the answer to a retransmission does not count.

use std::time::Instant;

use forebay_profile::{
    FileId, Kind, Moved, NO_EXPORT, NO_USER, Operation, Profile, Snapshot, Subject, file_key,
};
use forebay_wire::nfs3::{FileHandle, Procedure};
use forebay_wire::xdr::{Decode, Reader};

use crate::caller::{Caller, client_address};
use crate::export_rates::ExportRates;
use crate::request::Call;
use crate::shared::Shared;

/// The profile with the moment that its times count from, and the limits of exports.
pub(crate) struct Profiled {
    pub(crate) profile: Profile,
    /// The limits of exports.
    pub(crate) rates: ExportRates,
    began: Instant,
}

/// The caller and the file of a request.
#[derive(Clone, Copy)]
pub(crate) struct About {
    subject: Subject,
    /// The key of the file.
    file: u64,
}

impl Profiled {
    pub(crate) fn new(enabled: bool) -> Self {
        Profiled { profile: Profile::new(enabled), rates: ExportRates::default(), began: Instant::now() }
    }

    /// Returns everything that was counted, and the moment that its times count from.
    pub(crate) fn snapshot(&self, top: usize) -> (Snapshot, Instant) {
        (self.profile.snapshot(top, self.began.elapsed()), self.began)
    }

    pub(crate) fn reset(&self) {
        self.profile.reset(self.began.elapsed());
    }

    /// Counts a file that was made. `handle` is one that this server has issued.
    pub(crate) fn made(&self, handle: &[u8]) {
        if self.profile.is_enabled() {
            self.profile.count_made(file_key(handle), self.began.elapsed());
        }
    }

    fn count(&self, operation: &Operation, at: Instant, id: impl FnOnce() -> FileId) {
        self.profile.count(operation, at.saturating_duration_since(self.began), id);
    }
}

impl Call<'_> {
    /// Notes who the request is of, and that it is about this file. The handle was checked.
    pub(crate) fn is_about(&self, subject: Subject, handle: &FileHandle) {
        self.head.about.set(Some(About { subject, file: file_key(handle.as_bytes()) }));
    }

    /// Notes the range of a READ or WRITE that succeeded.
    pub(crate) fn has_moved(&self, offset: u64, len: usize, stable: bool) {
        self.head.moved.set(Some(Moved { offset, len: len as u32, stable }));
    }

    /// Returns the subject of a request that is about no file.
    fn stranger(&self) -> Subject {
        let user = self.head.user.as_ref().map_or(NO_USER, |user| user.uid);
        Subject::new(client_address(self.peer), NO_EXPORT, user)
    }
}

impl Shared {
    /// Counts a procedure of NFSv3 in the profile, and for the limit of its export. `arrived` is when the request
    /// arrived: to ask the clock again would cost more than the rest of this function.
    pub(crate) fn profile_nfs3(&self, call: &Call<'_>, procedure: Procedure, failed: bool, arrived: Instant) {
        let about = call.head.about.get();
        if let Some(about) = about {
            let bytes = call.head.moved.get().map_or(0, |moved| moved.len as usize);
            self.profiled.rates.count(call.peer, about.subject.export(), bytes);
        }
        if !self.profiled.profile.is_enabled() {
            return;
        }
        let (subject, file) = match about {
            Some(About { subject, file }) => (subject, file),
            None => (call.stranger(), 0),
        };
        let moved = call.head.moved.get();
        let operation = Operation { subject, kind: kind_of_procedure(procedure), failed, file, moved };
        self.profiled.count(&operation, arrived, || handle_in(call, file));
    }

    /// Counts an operation of NFSv4 in the profile, and for the limit of its export. `at` is the current place, if it
    /// is an inode.
    pub(crate) fn profile_nfs4(
        &self,
        call: &Call<'_>,
        done: Done,
        at: Option<(&FileHandle, &Caller)>,
        now: Instant,
    ) {
        let Done { kind, failed, moved } = done;
        if let Some((_, caller)) = at {
            let bytes = moved.map_or(0, |moved| moved.len as usize);
            self.profiled.rates.count(call.peer, caller.subject.export(), bytes);
        }
        if !self.profiled.profile.is_enabled() {
            return;
        }
        let (subject, file) = match at {
            Some((handle, caller)) => (caller.subject, file_key(handle.as_bytes())),
            None => (call.stranger(), 0),
        };
        let operation = Operation { subject, kind, failed, file, moved };
        let id = || FileId::new(at.map_or(&[], |(handle, _)| handle.as_bytes()));
        self.profiled.count(&operation, now, id);
    }
}

/// An operation of NFSv4 that was carried out.
pub(crate) struct Done {
    pub(crate) kind: Kind,
    pub(crate) failed: bool,
    pub(crate) moved: Option<Moved>,
}

/// Returns the handle in the arguments whose key is `file`. Arguments begin with a handle, and those of RENAME and LINK
/// have a second one.
fn handle_in(call: &Call<'_>, file: u64) -> FileId {
    let mut args = Reader::new(call.rest());
    let first = FileHandle::decode(&mut args).ok();
    let handle = first.filter(|handle| file_key(handle.as_bytes()) == file);
    FileId::new(handle.as_ref().map_or(&[], FileHandle::as_bytes))
}

/// Returns the kind under which the profile counts a procedure of NFSv3.
fn kind_of_procedure(procedure: Procedure) -> Kind {
    match procedure {
        Procedure::Read => Kind::Read,
        Procedure::Write => Kind::Write,
        Procedure::Commit => Kind::Commit,
        Procedure::Getattr => Kind::Getattr,
        Procedure::Lookup | Procedure::Readlink => Kind::Lookup,
        Procedure::Access => Kind::Access,
        Procedure::Readdir | Procedure::Readdirplus => Kind::Readdir,
        Procedure::Setattr => Kind::Setattr,
        Procedure::Create | Procedure::Mkdir | Procedure::Symlink | Procedure::Mknod | Procedure::Link => {
            Kind::Create
        }
        Procedure::Remove | Procedure::Rmdir => Kind::Remove,
        Procedure::Rename => Kind::Rename,
        Procedure::Null | Procedure::Fsstat | Procedure::Fsinfo | Procedure::Pathconf => Kind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_procedure_without_a_kind_of_its_own_counts_as_the_nearest() {
        assert_eq!(kind_of_procedure(Procedure::Mknod), Kind::Create);
    }
}
