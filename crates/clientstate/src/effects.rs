//! The consequences of a call: records for the log, and actions for the server.

use std::sync::Arc;

use crate::record::Record;
use crate::{
    ClientId, Cookie, CopyEnd, CopyProgress, FileKey, LockKind, NlmOwner, OwnerName, Range, RequestId,
    StateId,
};

/// The promise that a reply makes about the records of its request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// There are no records.
    #[default]
    None,
    /// The records go to the log, and the reply does not wait for them.
    Loose,
    /// The reply and the actions wait until the records are durable.
    BeforeReply,
}

/// The consequences of one or several calls.
///
/// All records of a request, with that of its reply, go to the log in one piece and in the order of the calls. So
/// after a crash a request has happened with its reply, or has not happened.
#[derive(Debug, Default)]
pub struct Effects {
    /// Records in their order.
    pub records: Vec<Record>,
    /// The promise about these records.
    pub durability: Durability,
    /// Actions, to be carried out when the records have the promised durability.
    pub actions: Vec<Action>,
}

impl Effects {
    /// Adds a record for the log. The reply waits for it if any record of the call asks for that.
    pub(crate) fn log(&mut self, durability: Durability, record: Record) {
        self.records.push(record);
        self.durability = self.durability.max(durability);
    }

    pub(crate) fn act(&mut self, action: Action) {
        self.actions.push(action);
    }
}

/// Something that the server has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send CB_RECALL to a client.
    Recall {
        /// The client.
        client: ClientId,
        /// The delegation.
        stateid: StateId,
        /// Its file.
        file: FileKey,
        /// The request that got the delegation, if that is known. Its reply may still be on the way.
        granted_in: Option<RequestId>,
    },
    /// Send CB_NOTIFY_LOCK to a client: a lock for which it waits may be free.
    NotifyLock {
        /// The client.
        client: ClientId,
        /// The lock owner that waits.
        owner: OwnerName,
        /// The file.
        file: FileKey,
    },
    /// Send CB_OFFLOAD to a client, then say `CopyProgress::told`.
    TellCopy {
        /// The client.
        client: ClientId,
        /// The copy.
        stateid: StateId,
        /// The file that was written.
        file: FileKey,
        /// The end of the copy.
        end: CopyEnd,
        /// The bytes copied.
        progress: Arc<CopyProgress>,
        /// The COPY, if that is known. Its reply may still be on the way.
        asked_in: Option<RequestId>,
    },
    /// Send GRANTED to an NLM host, repeatedly, until `State::nlm_granted` has the answer.
    Granted(Granted),
    /// The server no longer knows the client. Cancel call-backs to it.
    ClientGone(ClientId),
    /// No client has a kept file open any more: see `State::keep_removed`. Remove it, then say `State::end_removal`,
    /// or `State::put_off_removal` if it cannot be removed now.
    FileUnused(FileKey),
}

/// A blocked NLM lock that was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The number by which the answer refers to the grant.
    pub ticket: u64,
    /// The owner of the lock.
    pub owner: NlmOwner,
    /// The cookie of the request.
    pub cookie: Cookie,
    /// The file.
    pub file: FileKey,
    /// The range.
    pub range: Range,
    /// The kind.
    pub kind: LockKind,
}
