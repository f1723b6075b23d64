//! An NFSv3 host with NLM locks.

use std::collections::BTreeMap;

use forebay_clientstate::*;

use crate::client::{BYTES, FILES};
use crate::rng::Rng;
use crate::server::{Server, file_key, file_of_host, name};

pub(crate) struct Host {
    owner: NlmOwner,
    /// For each byte: 0 free, 1 read, 2 write.
    pub(crate) files: BTreeMap<u8, [u8; BYTES as usize]>,
    /// A request that was not answered, or that waits.
    pub(crate) outstanding: Option<Wish>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wish {
    pub(crate) file: u8,
    range: Range,
    /// `None` to unlock.
    kind: Option<LockKind>,
}

impl Host {
    pub(crate) fn new(index: usize) -> Self {
        let host = HostKey::new(format!("host {index}").as_bytes(), &[10, 0, 0, index as u8]).unwrap();
        Host {
            owner: NlmOwner { host, opaque: name("p"), svid: 1 },
            files: BTreeMap::new(),
            outstanding: None,
        }
    }

    pub(crate) fn owner(&self) -> LockOwner {
        LockOwner::Nlm(self.owner.clone())
    }

    pub(crate) fn step(&mut self, server: &mut Server, rng: &mut Rng, now: Now) {
        let wish = self.outstanding.unwrap_or_else(|| {
            let (one, two) = (rng.below(BYTES), rng.below(BYTES));
            let range = Range { first: one.min(two), last: one.max(two) };
            let kind = [None, Some(LockKind::Read), Some(LockKind::Write)][rng.below(3) as usize];
            Wish { file: rng.below(FILES.into()) as u8, range, kind }
        });
        self.outstanding = Some(wish);
        let (file, owner) = (file_of_host(wish.file), self.owner.clone());
        let Some(kind) = wish.kind else {
            let done =
                server.call(rng, now, |state, fx| state.nlm_unlock(&owner, &file, wish.range, now, fx));
            if done.is_some() && !rng.chance(10) {
                self.believe(wish);
            }
            return;
        };
        let args = NlmLock {
            owner,
            file,
            range: wish.range,
            kind,
            blocks: true,
            is_reclaim: false,
            cookie: Cookie::new(b"").unwrap(),
            state: 3,
        };
        let answer = server.call(rng, now, |state, fx| state.nlm_lock(&args, now, fx));
        match answer {
            _ if rng.chance(10) => {}
            None | Some(NlmAnswer::Retry | NlmAnswer::Blocked) => {}
            Some(NlmAnswer::Granted) => self.believe(wish),
            Some(NlmAnswer::Deadlock) => self.outstanding = None,
            Some(answer) => panic!("{args:?}: {answer:?}"),
        }
    }

    fn believe(&mut self, wish: Wish) {
        let bytes = self.files.entry(wish.file).or_default();
        bytes[wish.range.first as usize..=wish.range.last as usize]
            .fill(wish.kind.map_or(0, |kind| kind as u8 + 1));
        self.outstanding = None;
    }

    /// Answers GRANTED. A host that does not wait for the lock any more refuses it.
    pub(crate) fn granted(&mut self, granted: &Granted, server: &mut Server, rng: &mut Rng, now: Now) {
        if granted.owner != self.owner || !server.state.nlm_is_granting(granted.ticket) {
            return;
        }
        let wish = self.outstanding;
        let is_wanted = wish.is_some_and(|wish| {
            (file_key(wish.file), wish.range, wish.kind)
                == (granted.file.clone(), granted.range, Some(granted.kind))
        });
        let answered =
            server.call(rng, now, |state, fx| state.nlm_granted(granted.ticket, is_wanted, now, fx));
        if let (Some(true), Some(wish), true) = (answered, wish, is_wanted) {
            self.believe(wish);
        }
    }

    /// Unlocks everything.
    pub(crate) fn leave(&mut self, server: &mut Server, now: Now) {
        let fx = &mut Effects::default();
        for file in 0..FILES {
            let range = Range { first: 0, last: u64::MAX };
            server.state.nlm_unlock(&self.owner, &file_key(file), range, now, fx);
        }
        server.actions.append(&mut fx.actions);
        (self.files, self.outstanding) = (BTreeMap::new(), None);
    }
}
