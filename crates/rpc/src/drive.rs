//! The turns of a connection's writers, over the state in [`Outlet`].

use std::collections::VecDeque;

use crate::outlet::{Outlet, Weigh};

/// The number of chunks that a writer takes at once: as many as one vectored send covers.
const AT_ONCE: usize = 32;

/// The result of a writer's attempt, with the bytes written.
pub(crate) enum Wrote {
    All(usize),
    Full(usize),
    Failed,
}

/// The interface of a connection to the functions of this module. A model checker has an implementation of its own.
pub(crate) trait Wire {
    type Chunk: Weigh;
    fn with_outlet<R>(&self, f: impl FnOnce(&mut Outlet<Self::Chunk>) -> R) -> R;
    /// Writes from the front of `batch`, and removes the written bytes.
    fn write(&self, batch: &mut VecDeque<Self::Chunk>) -> Wrote;
    /// Returns the number of deferred records that are not answered yet.
    fn inflight(&self) -> usize;
    /// Records that the socket failed, so that the event loop closes the connection.
    fn failed(&self);
}

/// Ends a deferred request: `depart` removes it from the counts, `chunk` is its reply. Counts and queue change under
/// one lock. So a loop about to pause sees both or is woken. A loop about to close never finds the connection idle
/// while a reply is pending. Returns two values: whether the caller is now the writer, who has to [`write_out`], and
/// whether the loop has to be woken.
pub(crate) fn submit<W: Wire>(wire: &W, chunk: Option<W::Chunk>, depart: impl FnOnce()) -> (bool, bool) {
    wire.with_outlet(|outlet| {
        depart();
        let writer = chunk.is_some_and(|chunk| outlet.push(chunk));
        (writer, outlet.lessened(wire.inflight()))
    })
}

/// Runs the turn of a writer that [`submit`] appointed. Returns whether the loop has to be woken.
pub(crate) fn write_out<W: Wire>(wire: &W) -> bool {
    let mut batch = VecDeque::new();
    let more = wire.with_outlet(|outlet| outlet.take(&mut batch, AT_ONCE));
    drive(wire, batch, more)
}

/// Sends replies that are not queued. `attempt` gets whether it may write. It returns the bytes written and the rest,
/// or none if the socket failed. `offer` returns none then, else the number of bytes that now wait. Only for the event
/// loop, which examines its reasons to wait afterwards: it is not woken for the reductions made here.
pub(crate) fn offer<W: Wire>(
    wire: &W,
    attempt: impl FnOnce(bool) -> Option<(usize, VecDeque<W::Chunk>)>,
) -> Option<usize> {
    let may_write = wire.with_outlet(Outlet::begin);
    let (sent, mut rest) = attempt(may_write)?;
    let mut batch = VecDeque::new();
    let (more, waiting) = wire.with_outlet(|outlet| {
        let mut writer = may_write;
        if may_write {
            outlet.wrote(sent, 0);
            outlet.count(&rest);
            writer = rest.is_empty() || outlet.blocked(&mut rest);
        } else {
            for chunk in rest {
                writer |= outlet.push(chunk);
            }
        }
        (writer && outlet.take(&mut batch, AT_ONCE), outlet.bytes())
    });
    if !more {
        return Some(waiting);
    }
    drive(wire, batch, true);
    Some(wire.with_outlet(|outlet| outlet.bytes()))
}

/// Begins a turn of the event loop: continues to write if the socket became writable. Returns the number of waiting
/// bytes. After the call the loop has to examine its reasons to wait, because it is not woken for the reductions made
/// here.
pub(crate) fn resume<W: Wire>(wire: &W, writable: bool) -> usize {
    let mut batch = VecDeque::new();
    let (writer, waiting) = wire.with_outlet(|outlet| {
        let writer = writable && outlet.writable() && outlet.take(&mut batch, AT_ONCE);
        (writer, outlet.bytes())
    });
    if !writer {
        return waiting;
    }
    drive(wire, batch, true);
    wire.with_outlet(|outlet| outlet.bytes())
}

/// Returns true if nothing is in flight or unsent. Otherwise the loop is woken when that may have changed.
pub(crate) fn drained<W: Wire>(wire: &W) -> bool {
    wire.with_outlet(|outlet| {
        let drained = wire.inflight() == 0 && outlet.idle();
        outlet.watch((!drained).then_some(usize::MAX));
        drained
    })
}

/// Runs the writer's turn: writes until nothing is queued or the socket is full. `more` = `batch` is not empty. Returns
/// whether the event loop has to be woken because requests or bytes became fewer.
fn drive<W: Wire>(wire: &W, mut batch: VecDeque<W::Chunk>, mut more: bool) -> bool {
    let mut tell = false;
    while more {
        let (written, full) = match wire.write(&mut batch) {
            Wrote::All(n) => (n, false),
            Wrote::Full(n) => (n, true),
            Wrote::Failed => {
                wire.with_outlet(Outlet::close);
                wire.failed();
                return true;
            }
        };
        more = wire.with_outlet(|outlet| {
            outlet.wrote(written, written);
            let go_on = !full || outlet.blocked(&mut batch);
            let more = go_on && outlet.take(&mut batch, AT_ONCE);
            tell |= (written > 0 || !more) && outlet.lessened(wire.inflight());
            more
        });
    }
    tell
}

#[cfg(test)]
mod tests;
