//! Copies of a world that go on after the reply: every client that waits for the end of one is told, over crashes.

use std::sync::Arc;

use forebay_clientstate::*;

use crate::client::Client;
use crate::rng::Rng;
use crate::server::{Server, file_key, file_of};

/// A copy that a client waits for.
struct Waiting {
    client: ClientId,
    copy: StateId,
    begun: u64,
}

/// The copies that clients know of, and call-backs on their way.
#[derive(Default)]
pub(crate) struct Copies {
    waiting: Vec<Waiting>,
    /// The call-backs die with the server.
    calls: Vec<(ClientId, StateId, Arc<CopyProgress>)>,
    crashes: u64,
}

impl Copies {
    /// Begins, ends or cancels a copy.
    pub(crate) fn step(&mut self, clients: &[Client], server: &mut Server, rng: &mut Rng, now: Now) {
        let known = rng.below(self.waiting.len() as u64 + 2) as usize;
        let Some(Waiting { client, copy, .. }) = self.waiting.get(known) else {
            let client = &clients[rng.below(clients.len() as u64) as usize];
            if client.is_certain(now) {
                self.begin(client.id, server, rng, now);
            }
            return;
        };
        let (client, copy) = (*client, *copy);
        if rng.chance(70) {
            let end = CopyEnd { status: 0, is_stable: true, verifier: [0; 8] };
            server.call(rng, now, |state, fx| state.end_copy(copy, end, fx));
        } else {
            server.call(rng, now, |state, fx| state.offload_cancel(client, copy, &file_key(1), fx));
            // A client whose cancellation is not answered cancels again. It waits no longer.
            self.waiting.retain(|waiting| waiting.copy != copy);
        }
    }

    fn begin(&mut self, client: ClientId, server: &mut Server, rng: &mut Rng, now: Now) {
        let args = BeginCopy { client, request: None, source: file_key(0), target: file_of(client, 1) };
        let begun = server.call(rng, now, |state, fx| state.begin_copy(&args, fx)).flatten();
        // The reply may be lost. Then the client asks again for another copy.
        if let Some((copy, _)) = begun.filter(|_| !rng.chance(10)) {
            server.hit("copy");
            self.waiting.push(Waiting { client, copy, begun: server.crashes });
        }
    }

    /// Takes a call-back of the server.
    pub(crate) fn called(&mut self, client: ClientId, copy: StateId, progress: &Arc<CopyProgress>) {
        self.calls.push((client, copy, progress.clone()));
    }

    /// Delivers some of the call-backs. The others are sent again later.
    pub(crate) fn deliver(&mut self, server: &mut Server, rng: &mut Rng) {
        if std::mem::replace(&mut self.crashes, server.crashes) != server.crashes {
            self.calls.clear();
        }
        for (client, copy, progress) in std::mem::take(&mut self.calls) {
            if rng.chance(60) {
                self.calls.push((client, copy, progress));
                continue;
            }
            let is_late = |waiting: &Waiting| waiting.copy == copy && waiting.begun < server.crashes;
            if self.waiting.iter().any(is_late) {
                server.hit("copy told after a crash");
            }
            self.waiting.retain(|waiting| waiting.copy != copy);
            progress.told();
        }
    }

    /// Lets all copies end. Then no client waits that still has its state.
    pub(crate) fn end(&mut self, server: &mut Server, rng: &mut Rng, now: Now) {
        let end = CopyEnd { status: 0, is_stable: true, verifier: [0; 8] };
        for Waiting { copy, .. } in &self.waiting {
            let mut fx = Effects::default();
            server.state.end_copy(*copy, end, &mut fx);
            server.state.tick(now, &mut fx);
            server.actions.append(&mut fx.actions);
        }
        for action in &server.actions {
            if let Action::TellCopy { client, stateid, progress, .. } = action {
                self.calls.push((*client, *stateid, progress.clone()));
            }
        }
        while !self.calls.is_empty() {
            self.deliver(server, rng);
        }
        let known = server.state.client_ids();
        let left = self.waiting.iter().find(|waiting| known.contains(&waiting.client));
        assert!(left.is_none(), "a client waits for a copy for ever");
    }
}
