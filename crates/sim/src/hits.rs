//! The number of injected faults of each class. A class that a whole run never hit proves nothing, so it fails the run.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! faults {
    ($($name:ident $text:literal,)*) => {
        /// A class of fault.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Fault {
            $(#[doc = $text] $name,)*
        }

        /// Every class, in the order of the enum.
        pub const FAULTS: &[(Fault, &str)] = &[$((Fault::$name, $text),)*];
    };
}

faults! {
    Kill "the process killed",
    PowerCut "power cut",
    CutInRecovery "power cut or kill inside recovery",
    Subset "only some unflushed writes survived a cut",
    TornSector "a write torn at a sector",
    TornByte "a write torn at a byte",
    LegsDiffer "two devices kept different unflushed writes",
    LostWrite "a write reported done and lost",
    MisdirectedWrite "a write that went elsewhere",
    MisdirectedRead "a read of another place",
    BitRot "bit rot",
    LatentPassing "a sector unreadable for a while",
    LatentLasting "a sector unreadable until rewritten",
    WriteError "a device write that failed",
    FlushError "a device flush that failed",
    SlowDevice "a device that became slow",
    Vanished "a device that went away in service",
    VanishedOnRead "a device that went away, noticed by a reader",
    HeaderRot "the header of a segment rotten",
    LostInTurn "a device lost after another one's copies were made good",
    AllGone "every device gone in service",
    Disowned "what devices held that were gone was overwritten without them",
    LostAtRestart "a device missing at a restart",
    ReturnedStale "a device that came back stale",
    Wiped "a device replaced by a blank one",
    Swapped "devices given in another order",
    DroppedFlush "a device that drops flushed data",
    BothDropped "both devices drop flushed data",
    BothRotten "both copies of a block rotten",
    Destroyed "a frame of the log destroyed on every device",
    BackingCut "unsynced backing writes partly lost in a cut",
    BackingError "a backing operation failed with EIO",
    SyncError "a failed fsync that dropped pages",
    NoSpace "ENOSPC",
    Quota "EDQUOT",
    Hang "a backing operation that hung",
    Stuck "a volume that did not answer until it was healed",
    Removed "an object removed while in use",
    ClockJump "the clock jumped ahead",
    TimeBack "the time of day went back",
    DeviceAdded "a device added in service",
    DeviceRemoved "a device removed in service",
    DiedInRemoval "a device gone for good while another one was being removed",
    DiedAfterRemoval "a device gone for good after another one was removed",
    RemovalKept "a device that was to be removed and stayed",
    RemovalBusy "a removal refused because of another one",
    NoneLeft "every device removed or gone for good at a restart",
    ModeSwitch "the mode switched in service",
    PolicyChanged "the policy of an object changed in service",
    KeptByPriority "a block that nobody had read, written again for its high priority",
    WroteAtOnce "a write accepted without waiting",
    WroteWaiting "a write that waited for the log",
    WroteDirectly "a write past the log",
    WroteUnsynced "an unstable write past the log",
    Committed "a COMMIT that synced a file",
    CommitLost "a COMMIT of a file whose sync failed",
    ReadAtOnce "a read from memory without waiting",
    ReadFromSsd "a read from the cache devices by an event loop",
    ReadFromSsdInVain "a read from the cache devices that had to begin again",
    ReadPlain "a read past the cache",
    Hole "a hole made in an object",
    HoleOverDirty "a hole over dirty blocks",
    HoleCut "a hole, an allocation or a clone in progress at a crash",
    Allocated "space reserved within an object",
    AllocatedBehind "space reserved behind the end of an object",
    Cloned "blocks shared with another object",
    ClonedWithin "blocks shared within an object",
    CloneRefused "a clone of blocks that were cut off meanwhile, or into the middle of an object that grew",
    CloneOfDirty "a clone of dirty blocks",
    CloneOverDirty "a clone over dirty blocks",
    CloneOfEnd "a clone of the end of an object",
    DeviceHung "a cache device that did not answer",
    AnsweredInTime "operations of a cache device that ended before its deadline",
    AnsweredLate "operations of a cache device that ended after it was lost",
    AddedAgain "a device that had dropped out added again",
    AddedAnew "a device that had dropped out added as a new one",
    GoneInTurn "a device gone after another one was added again",
    StaleAlone "devices refused as all of them were out of date",
    Incomplete "devices refused as others have what they lack",
    Alone "a device in use opened without the other one",
    Foreign "a device of another pool, or with another's data, in a member's place or beside it",
    Twice "a device given twice",
    ForeignAdded "a device of another pool, or with another's data, to be added",
    PathsSwapped "devices found under each other's names",
    WaitedForRoom "a write that waited for room in the log",
    LogFull "a log without a free segment",
    LargeSegment "a pool with segments above 1 MiB",
    FullFrame "a frame of as many blocks as a frame takes",
    Crowded "a dozen writes under way on one object",
    NotesLetGo "notes let go in service",
    NotesCarried "notes that were needed still when others were let go",
    NamesLost "a change in the log that the file system had lost",
    NamesAhead "a change in the file system that the log had lost",
    NamesHalf "a change half in the file system",
    NamesCheckpoint "a checkpoint with changes behind it",
    NamesOtherOrder "changes in the log in another order than they were made",
    NamesMadeAgain "an object made again",
    NamesSetAside "an object set aside",
    NamesMeddled "somebody else's file put there before recovery",
    NamesCutInRecovery "power cut inside recovery of names",
    NamesCutAgain "power cut inside recovery of names, and again",
    JoinedPowerCut "power cut of the server, the devices and the file system",
    JoinedKill "the server killed",
    JoinedStop "a clean stop",
    JoinedInRecovery "power cut or kill inside recovery",
    JoinedInReconciling "power cut or kill while the tree was made equal to the log",
    JoinedLost "a change in the log that the file system had lost",
    JoinedAhead "a change in the file system that the log had lost",
    JoinedMadeAgain "a file made again",
    JoinedDirtyMadeAgain "a file made again with contents in the log",
    JoinedTaken "a name that recovery took from what had it",
    JoinedIntent "a RENAME in a slot that the log did not have",
    JoinedNoSlot "a RENAME that waited for a slot",
    JoinedCheckpoint "a checkpoint in service",
    JoinedHang "a journal that did not answer for a while",
    JoinedLate "a commit that was waited for no more",
    JoinedBusy "a change that had to come again",
    JoinedJournalFailed "a journal that failed",
    JoinedCarried "a note carried along while the journal failed",
    JoinedStopWithout "a stop without a checkpoint",
    JoinedLetGo "notes let go in service",
    JoinedDirect "a write past the log",
    JoinedDirectUnstable "an unstable write past the log",
    JoinedCommit "a COMMIT of unstable writes past the log",
    JoinedDirectOfNew "a write past the log of a file touched since the checkpoint",
    JoinedHole "a hole made in a file",
    JoinedHoleOfNew "a hole or a clone in a file touched since the checkpoint",
    JoinedClone "blocks shared by files",
    JoinedCut "a file cut or grown",
    JoinedCutOfNew "a file cut or grown that was touched since the checkpoint",
    JoinedAgainUnderWay "a request sent again while the first was under way",
    JoinedAgainAnswered "a request sent again that had been answered",
    JoinedAgainLogged "a request sent again after a restart, with its answer in the log",
    JoinedAgainLost "a request sent again after a restart that the log had lost",
    JoinedBrief "a file made, changed and removed at once",
    JoinedUnsynced "contents in the page cache lost",
    JoinedRemoved "a file removed with contents that were not destaged",
    JoinedDeviceLost "a device lost",
}

/// The subject of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worlds {
    /// The engine, on devices that fail.
    Engine,
    /// Trees of names, and their recovery.
    Names,
    /// The engine and names, and a server above them.
    Joined,
}

impl Fault {
    /// Returns the kind of worlds that the fault belongs to.
    pub fn worlds(self) -> Worlds {
        match self as usize {
            joined if joined >= Fault::JoinedPowerCut as usize => Worlds::Joined,
            names if names >= Fault::NamesLost as usize => Worlds::Names,
            _ => Worlds::Engine,
        }
    }
}

/// The number of hits of each class.
#[derive(Debug)]
pub struct Hits([AtomicU64; FAULTS.len()]);

impl Default for Hits {
    fn default() -> Self {
        Hits(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Hits {
    /// Counts one hit.
    pub fn hit(&self, fault: Fault) {
        self.hits(fault, 1);
    }

    /// Counts several hits.
    pub fn hits(&self, fault: Fault, times: u64) {
        self.0[fault as usize].fetch_add(times, Ordering::Relaxed);
    }

    /// Returns the number of hits of `fault`.
    pub fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize].load(Ordering::Relaxed)
    }

    /// Adds the hits of another run.
    pub fn add(&self, other: &Hits) {
        for (mine, theirs) in self.0.iter().zip(&other.0) {
            mine.fetch_add(theirs.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }
}
