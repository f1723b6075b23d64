//! The cache engine's part of an inode, and the keys by which the engine knows files.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use forebay_engine::io::Key;
use forebay_engine::{CachedObject as Cached, Policy};

use crate::caches::access_time::ShownAccess;
use crate::caches::overlay::{Overlay, Undestaged};
use crate::caches::streams::ReadStream;
use crate::sys::KernelHandle;

/// The cache's part of an inode.
#[derive(Debug, Default)]
pub(crate) struct Link {
    cached: OnceLock<Arc<Cached>>,
    pub(crate) reads: ReadStream,
    pub(crate) access: ShownAccess,
    /// The policy, and the low bits of the generation in which it was found: see
    /// [`Policies`](crate::caches::policies::Policies).
    policy: AtomicU64,
}

/// The bits of a policy's number.
const POLICY_BITS: u32 = 42;

impl Link {
    /// Returns the engine's object, if there is one.
    pub(crate) fn get(&self) -> Option<&Arc<Cached>> {
        self.cached.get()
    }

    /// Sets the engine's object, unless there is one already. Returns the object that counts.
    pub(crate) fn get_or_set(&self, cached: Arc<Cached>) -> &Arc<Cached> {
        self.cached.get_or_init(|| cached)
    }

    /// Returns the policy that was found in this generation.
    pub(crate) fn policy(&self, generation: u64) -> Option<Policy> {
        let stamp = self.policy.load(Ordering::Acquire);
        (stamp >> POLICY_BITS == generation % (1 << (64 - POLICY_BITS)))
            .then(|| Policy::from_bits(stamp % (1 << POLICY_BITS)))
    }

    /// Records the policy that was found in this generation.
    pub(crate) fn set_policy(&self, generation: u64, policy: Policy) {
        self.policy.store(generation << POLICY_BITS | policy.to_bits(), Ordering::Release);
    }

    /// Returns the engine's corrections to the file's attributes. The caller asks for them before the backing file's
    /// attributes, so that the two together are never older than now.
    pub(crate) fn overlay(&self) -> Option<Overlay<&Cached>> {
        self.cached.get().map(|cached| Overlay::new(&**cached))
    }

    /// Returns true if the cached contents have to be refreshed before a read or a write, because an external change
    /// modified the file. Returns false while the file has contents that only the cache has; those win.
    pub(crate) fn is_suspect(&self) -> bool {
        self.get().is_some_and(|cached| cached.is_suspect() && Undestaged::of(cached).is_none())
    }
}

/// Returns the key of a file: file system, handle type, kernel handle.
pub(crate) fn key(number: u32, kernel: &KernelHandle) -> Key {
    let mut bytes = smallvec::SmallVec::<[u8; 64]>::new();
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.extend_from_slice(&(kernel.kind as i16).to_le_bytes());
    bytes.extend_from_slice(kernel.as_slice());
    Key::new(&bytes).unwrap_or_else(|| unreachable!("at most 6 + 40 bytes"))
}

/// Returns the file system's number and the kernel handle in a key; `None` if it is not one of ours.
pub(crate) fn parse_key(key: &Key) -> Option<(u32, KernelHandle)> {
    let (number, rest) = key.as_bytes().split_first_chunk::<4>()?;
    let (kind, handle) = rest.split_first_chunk::<2>()?;
    let kernel = KernelHandle::new(i16::from_le_bytes(*kind).into(), handle)?;
    Some((u32::from_le_bytes(*number), kernel))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::KERNEL_HANDLE_MAX;

    #[test]
    fn a_key_holds_what_it_was_made_of() {
        for len in [8, 12, 40] {
            let mut kernel = KernelHandle { kind: -1, len, bytes: [0; KERNEL_HANDLE_MAX] };
            kernel.bytes[..usize::from(len)].fill(len);
            assert_eq!(parse_key(&key(0x1234_5678, &kernel)), Some((0x1234_5678, kernel)));
        }
        assert_eq!(parse_key(&Key::new(b"short").unwrap()), None);
    }
}
