//! The turns of a connection's writers, over the state in [`Outlet`].

use std::collections::VecDeque;

use crate::outlet::{Outlet, Weigh};

/// Chunks a writer takes at once: what one vectored send covers.
const AT_ONCE: usize = 32;

/// How a writer's attempt ended; the bytes it wrote.
pub(crate) enum Wrote {
    All(usize),
    Full(usize),
    Failed,
}

/// What the functions here need of a connection; a model checker puts its own in.
pub(crate) trait Wire {
    type Chunk: Weigh;
    fn with_outlet<R>(&self, f: impl FnOnce(&mut Outlet<Self::Chunk>) -> R) -> R;
    /// Writes from the front of `batch`, removing what is written.
    fn write(&self, batch: &mut VecDeque<Self::Chunk>) -> Wrote;
    /// Deferred records not answered yet.
    fn inflight(&self) -> usize;
    /// The socket failed; the event loop has to close the connection.
    fn failed(&self);
}

/// A deferred request is done with: `depart` takes it off the counts, `chunk` is its reply. Counts and queue
/// change under one lock: a loop about to pause sees both or is told, and a loop about to close never sees
/// nothing in flight while a reply is still to come. Returns whether the caller is now the writer, who has to
/// [`write_out`], and whether the loop has to be told.
pub(crate) fn submit<W: Wire>(wire: &W, chunk: Option<W::Chunk>, depart: impl FnOnce()) -> (bool, bool) {
    wire.with_outlet(|outlet| {
        depart();
        let writer = chunk.is_some_and(|chunk| outlet.push(chunk));
        (writer, outlet.lessened(wire.inflight()))
    })
}

/// The turn of a writer made so by [`submit`]. Returns whether the loop has to be told.
pub(crate) fn write_out<W: Wire>(wire: &W) -> bool {
    let mut batch = VecDeque::new();
    let more = wire.with_outlet(|outlet| outlet.take(&mut batch, AT_ONCE));
    drive(wire, batch, more)
}

/// Sends replies that are not queued. `attempt` is told whether it may write; it returns the bytes written and
/// what remains, or none if the socket failed. Returns none then, else the bytes that now wait. Only for the
/// loop, which looks afterwards at what it waits for: it is not told of what became fewer here.
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

/// The event loop's start of a turn: goes on writing if the socket became writable. Returns the bytes waiting. As
/// after [`offer`], the loop has to look at what it waits for.
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

/// Whether nothing is in flight or unsent; else the loop is told when that may have changed.
pub(crate) fn drained<W: Wire>(wire: &W) -> bool {
    wire.with_outlet(|outlet| {
        let drained = wire.inflight() == 0 && outlet.idle();
        outlet.watch((!drained).then_some(usize::MAX));
        drained
    })
}

/// The writer's turn: writes until nothing is queued or the socket is full. `more` = `batch` holds something.
/// Returns whether the event loop has to be told that something became fewer.
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
