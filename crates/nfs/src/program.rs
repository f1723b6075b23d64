//! The RPC programs of the port. The service knows of a program only the functions of [`Program`].
//!
//! A program is a variant of [`Program`] and a module with its procedures. The service first attempts a call on the
//! event loop. Then it attempts the request with its ticket, and last it gives the request to the workers of its kind.
//! A program that has done a part of the request leaves that part in the [`Request`], and the worker goes on from
//! there.

use std::sync::Arc;
use std::time::Instant;

use forebay_rpc::{Reply, Workers};
use forebay_vfs::{Outcome, Wait};
use forebay_wire::rpc::{CallHeader, ReplyStatus};
use forebay_wire::{mount3, nfs3, nfsacl3, nlm4, nsm};

use crate::nfs4::program as nfs4;
use crate::nsm::is_served;
use crate::read::SsdReply;
use crate::request::{Call, Request};
use crate::result::success;
use crate::shared::Shared;

/// A program, with the procedure that a call names.
#[derive(Clone, Copy)]
pub(crate) enum Program {
    Nfs3(nfs3::Procedure),
    Nfs4(nfs4::Procedure),
    Mount3(mount3::Procedure),
    Nfsacl3(nfsacl3::Procedure),
    Nlm4(nlm4::Procedure),
    Nsm(nsm::Procedure),
}

/// The programs that a server may leave out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Served {
    pub(crate) nfs4: bool,
    /// NLM and NSM.
    pub(crate) locks: bool,
}

/// The kind of a request, and of the workers that carry it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// READ and COMMIT, and their like of NFSv4.
    Data,
    /// WRITE. Only a WRITE may wait for room in the cache.
    Writes,
    /// All other requests: names and attributes do not queue behind slow data.
    Names,
}

impl Program {
    /// Fails unless the program and the version that a header names are served.
    pub(crate) fn number(header: &CallHeader<'_>, served: Served) -> Result<(), ReplyStatus> {
        let (low, high) = match header.prog {
            nfs3::PROGRAM if served.nfs4 => (nfs3::VERSION, forebay_wire::nfs4::VERSION),
            nfs3::PROGRAM => (nfs3::VERSION, nfs3::VERSION),
            mount3::PROGRAM => (mount3::VERSION, mount3::VERSION),
            nfsacl3::PROGRAM => (nfsacl3::VERSION, nfsacl3::VERSION),
            nlm4::PROGRAM if served.locks => (nlm4::VERSION, nlm4::VERSION),
            nsm::PROGRAM if served.locks => (nsm::VERSION, nsm::VERSION),
            _ => return Err(ReplyStatus::ProgUnavail),
        };
        if (low..=high).contains(&header.vers) {
            Ok(())
        } else {
            Err(ReplyStatus::ProgMismatch { low, high })
        }
    }

    /// Returns the program and the procedure that a header names.
    pub(crate) fn find(header: &CallHeader<'_>, served: Served) -> Result<Self, ReplyStatus> {
        Self::number(header, served)?;
        let found = match (header.prog, header.vers) {
            (nfs3::PROGRAM, nfs3::VERSION) => nfs3::Procedure::try_from(header.proc).map(Program::Nfs3).ok(),
            (nfsacl3::PROGRAM, _) => nfsacl3::Procedure::try_from(header.proc).map(Program::Nfsacl3).ok(),
            (nfs3::PROGRAM, _) => nfs4::Procedure::try_from(header.proc).map(Program::Nfs4).ok(),
            (nlm4::PROGRAM, _) => nlm4::Procedure::try_from(header.proc).map(Program::Nlm4).ok(),
            (nsm::PROGRAM, _) => {
                let procedure = nsm::Procedure::try_from(header.proc).ok();
                procedure.filter(|procedure| is_served(*procedure)).map(Program::Nsm)
            }
            _ => mount3::Procedure::try_from(header.proc).map(Program::Mount3).ok(),
        };
        found.ok_or(ReplyStatus::ProcUnavail)
    }

    /// Returns the kind of workers that usually carry out the request.
    pub(crate) fn kind(self) -> Kind {
        match self {
            Program::Nfs3(nfs3::Procedure::Write) => Kind::Writes,
            Program::Nfs3(nfs3::Procedure::Read | nfs3::Procedure::Commit) => Kind::Data,
            _ => Kind::Names,
        }
    }

    /// Tries the call on the event loop. If the outcome is `Done`, `reply` is complete. Otherwise the request goes on,
    /// and `reply` is not used.
    pub(crate) fn attempt(
        self,
        shared: &Shared,
        call: &Call<'_>,
        reply: &mut Reply<'_>,
        arrived: Instant,
    ) -> Outcome<(), SsdReply> {
        match self {
            Program::Nfs3(procedure) => shared.attempt_nfs3(procedure, call, reply, arrived),
            Program::Nfs4(procedure) => shared.attempt_nfs4(procedure, call, reply, arrived),
            Program::Mount3(mount3::Procedure::Null)
            | Program::Nfsacl3(nfsacl3::Procedure::Null)
            | Program::Nlm4(nlm4::Procedure::Null)
            | Program::Nsm(nsm::Procedure::Null) => {
                success(reply.head(), call.xid());
                Outcome::Done(())
            }
            Program::Mount3(_) | Program::Nfsacl3(_) | Program::Nlm4(_) | Program::Nsm(_) => Outcome::Wait,
        }
    }

    /// Tries a request on the event loop that cannot be tried without its ticket. Returns the request if a worker has
    /// to carry it out.
    pub(crate) fn attempt_deferred(self, shared: &Arc<Shared>, request: Request) -> Option<Request> {
        match self {
            Program::Nfs3(write @ nfs3::Procedure::Write) if shared.vfs.writes_in_memory() => {
                shared.change(write, request, Wait::No)
            }
            Program::Nfs4(_) => shared.attempt_deferred_nfs4(request),
            _ => Some(request),
        }
    }

    /// Carries out the request on a worker and answers. Waits as long as necessary.
    pub(crate) fn carry_out(self, shared: &Arc<Shared>, request: Request) {
        match self {
            Program::Nfs3(procedure) => shared.carry_out_nfs3(procedure, request),
            Program::Nfs4(_) => shared.carry_out_nfs4(request),
            Program::Mount3(procedure) => shared.carry_out_mount3(procedure, request),
            Program::Nfsacl3(procedure) => shared.carry_out_nfsacl(procedure, request),
            Program::Nlm4(procedure) => shared.carry_out_nlm(procedure, request),
            Program::Nsm(_) => shared.carry_out_nsm(request),
        }
    }

    /// Answers a request that too many other requests precede: the client tries again later.
    pub(crate) fn turn_away(self, shared: &Arc<Shared>, request: Request, workers: &Workers<Request>) {
        match self {
            Program::Nfs3(procedure) => shared.turn_away_nfs3(procedure, request),
            Program::Nfs4(_) => shared.turn_away_nfs4(request, workers),
            Program::Mount3(_) => shared.turn_away_mount3(request),
            Program::Nfsacl3(_) => shared.turn_away_nfsacl(request),
            Program::Nlm4(procedure) => shared.turn_away_nlm(procedure, request),
            Program::Nsm(_) => shared.turn_away_nsm(request),
        }
    }
}
