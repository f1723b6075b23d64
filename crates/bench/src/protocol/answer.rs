//! Answers, whatever the version.

use std::fmt;

use anyhow::{Result, anyhow};
use forebay_wire::nfs3::{Nfsstat3, StableHow};
use forebay_wire::nfs4::Nfsstat4;
use forebay_wire::{DecodeError, Reader};

use super::{Handle, Open, Operation, Version, v3, v4};

/// The failure of a request, as the server tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Nfs3(Nfsstat3),
    Nfs4(Nfsstat4),
}

impl Status {
    /// Returns true if there is no object of this name.
    pub(crate) fn is_missing(self) -> bool {
        matches!(self, Status::Nfs3(Nfsstat3::Noent) | Status::Nfs4(Nfsstat4::Noent))
    }

    /// Returns true if there is an object of this name already.
    pub(crate) fn is_existing(self) -> bool {
        matches!(self, Status::Nfs3(Nfsstat3::Exist) | Status::Nfs4(Nfsstat4::Exist))
    }

    /// Returns true if the client shall send the request again later.
    pub(crate) fn is_later(self) -> bool {
        matches!(self, Status::Nfs3(Nfsstat3::Jukebox) | Status::Nfs4(Nfsstat4::Delay))
    }

    /// Returns true if the server has forgotten the session, for example because its lease has expired.
    pub(crate) fn is_session_lost(self) -> bool {
        matches!(self, Status::Nfs4(Nfsstat4::Badsession | Nfsstat4::Deadsession))
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Status::Nfs3(status) => status.fmt(f),
            Status::Nfs4(status) => status.fmt(f),
        }
    }
}

/// The reason why an answer has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    Status(Status),
    /// The answer cannot be decoded.
    Malformed(DecodeError),
    /// The COMPOUND has succeeded without the result.
    Missing,
}

impl From<DecodeError> for Fault {
    fn from(error: DecodeError) -> Self {
        Fault::Malformed(error)
    }
}

impl Fault {
    /// Returns one sentence about the failure of an operation on the object `what`.
    pub(crate) fn of(self, operation: Operation, what: &str) -> anyhow::Error {
        let name = operation.name();
        match self {
            Fault::Status(status) => anyhow!("{name} of {what} failed: {status}"),
            Fault::Malformed(error) => anyhow!("the reply to {name} of {what} cannot be decoded: {error}"),
            Fault::Missing => anyhow!("the reply to {name} of {what} has no result of the operation"),
        }
    }
}

/// An object that was made, found or opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Made {
    /// A server of NFSv3 may leave it out.
    pub(crate) handle: Option<Handle>,
    pub(crate) open: Open,
}

/// The attributes that clients look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) size: u64,
    pub(crate) is_dir: bool,
}

/// The result of a WRITE.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    pub(crate) count: u32,
    pub(crate) committed: StableHow,
    pub(crate) verifier: [u8; 8],
}

/// An answer that is not decoded yet. Each method decodes the result of the requests that it names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer<'a> {
    version: Version,
    operation: Operation,
    body: Reader<'a>,
}

impl<'a> Answer<'a> {
    /// Returns the answer to a request that `operation` carries out. `body` begins behind the RPC header.
    pub(crate) fn new(version: Version, operation: Operation, body: Reader<'a>) -> Self {
        Self { version, operation, body }
    }

    pub(crate) fn operation(&self) -> Operation {
        self.operation
    }

    /// Names the operation and the object in a failure.
    #[inline]
    pub(crate) fn named<T>(&self, result: Result<T, Fault>, what: impl FnOnce() -> String) -> Result<T> {
        result.map_err(|fault| fault.of(self.operation, &what()))
    }

    /// Checks that the request succeeded: SETATTR, ACCESS, REMOVE, RMDIR, RENAME, CLOSE.
    #[inline]
    pub(crate) fn done(&self) -> Result<(), Fault> {
        match self.version {
            Version::V3 => v3::done(self.body),
            Version::V41 => v4::done(self.body),
        }
    }

    /// Returns the object that LOOKUP or OPEN found.
    #[inline]
    pub(crate) fn found(&self) -> Result<Made, Fault> {
        match self.version {
            Version::V3 => v3::found(self.body),
            Version::V41 => v4::made(self.body),
        }
    }

    /// Returns the object that CREATE, MKDIR or a creating OPEN made.
    #[inline]
    pub(crate) fn made(&self) -> Result<Made, Fault> {
        match self.version {
            Version::V3 => v3::made(self.body),
            Version::V41 => v4::made(self.body),
        }
    }

    /// Returns the attributes that GETATTR asked for.
    #[inline]
    pub(crate) fn attributes(&self) -> Result<Attributes, Fault> {
        match self.version {
            Version::V3 => v3::attributes(self.body),
            Version::V41 => v4::attributes(self.body),
        }
    }

    /// Returns the data of READ.
    #[inline]
    pub(crate) fn data(&self) -> Result<&'a [u8], Fault> {
        match self.version {
            Version::V3 => v3::data(self.body),
            Version::V41 => v4::data(self.body),
        }
    }

    /// Reads the reply to a WRITE. A refusal of the server is a fault with its status.
    #[inline]
    pub(crate) fn written(&self) -> Result<Written, Fault> {
        match self.version {
            Version::V3 => v3::written(self.body),
            Version::V41 => v4::written(self.body),
        }
    }

    /// Returns the verifier of COMMIT.
    #[inline]
    pub(crate) fn committed(&self) -> Result<[u8; 8], Fault> {
        match self.version {
            Version::V3 => v3::committed(self.body),
            Version::V41 => v4::committed(self.body),
        }
    }

    /// Calls `each` with the cookie, the name and the attributes of every entry of a listing. Returns the verifier, and
    /// true at the end of the directory. A server may leave attributes out.
    pub(crate) fn listing(
        &self,
        each: impl FnMut(u64, &[u8], Option<Attributes>),
    ) -> Result<([u8; 8], bool), Fault> {
        match self.version {
            Version::V3 => v3::listing(self.body, each),
            Version::V41 => v4::listing(self.body, each),
        }
    }
}
