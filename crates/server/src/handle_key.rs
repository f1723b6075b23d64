//! The secret of file handles. The state directory has it, and so does the pool: with a new state directory, or on
//! another host, the clients' handles and NFSv4 state stay valid.
//!
//! | the state directory | the pool | the start |
//! |---|---|---|
//! | has none | not read yet; a device is found with one | takes that one |
//! | has none | not read yet; no device can be read | takes a random one, and keeps it once the pool is opened |
//! | has none, a random one was taken | has another one | writes the pool's, and fails: the next one takes it |
//! | has one | has none | records the state directory's in the pool |
//! | has one | has another one, and knows a served export | fails: clients have handles of the pool's key |
//! | has one | has another one, and knows no served export | records the state directory's in the pool |

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use forebay_config::Settings;
use forebay_engine::buffer::BLOCK;
use forebay_engine::pool::Superblock;
use forebay_vfs::{HANDLE_KEY, Owner, decode_owner, handle_secret, keep_handle_secret};

use crate::error::Error;
use crate::{cache, devices};

/// The secret of a start.
#[derive(Default)]
pub(crate) struct HandleSecret {
    pub(crate) bytes: [u8; 16],
    /// True if the state directory does not have it yet.
    is_new: bool,
    /// The pool's owner, from which the secret is.
    pub(crate) owner: Owner,
}

impl HandleSecret {
    /// Finds the secret: in the state directory, else on a cache device, else at random. A random one without a cache
    /// is written at once.
    ///
    /// # Errors
    /// The state directory cannot be read or written.
    pub(crate) fn find(settings: &Settings) -> Result<Self, Error> {
        let state_dir = &settings.state_dir;
        let failed = |source| Error::StateDir { path: state_dir.clone(), source };
        if let Some(bytes) = handle_secret(state_dir).map_err(failed)? {
            return Ok(HandleSecret { bytes, ..HandleSecret::default() });
        }
        let paths = devices::paths(settings).map(|(paths, _)| paths);
        let owner = paths.iter().flatten().find_map(|path| owner_on(path)).unwrap_or_default();
        let bytes = owner.secret.unwrap_or_else(|| cache::random().to_le_bytes());
        if paths.is_none() {
            keep_handle_secret(state_dir, bytes).map_err(failed)?;
        }
        Ok(HandleSecret { bytes, is_new: true, owner })
    }

    /// Compares the secret with the one in the opened pool, if that has one. Keeps a new secret in the state directory
    /// then. `is_known`: the pool knows a served export.
    ///
    /// # Errors
    /// The pool has another one, and the state directory had none: the next start takes the pool's. The pool has
    /// another one for a served export. The state directory cannot be written.
    pub(crate) fn keep(
        &self,
        state_dir: &Path,
        recorded: Option<[u8; 16]>,
        is_known: bool,
    ) -> Result<(), Error> {
        if !self.is_new {
            let differs = is_known && recorded.is_some_and(|recorded| recorded != self.bytes);
            return if differs { Err(Error::OtherHandleKey(state_dir.join(HANDLE_KEY))) } else { Ok(()) };
        }
        let secret = recorded.unwrap_or(self.bytes);
        keep_handle_secret(state_dir, secret)
            .map_err(|source| Error::StateDir { path: state_dir.to_owned(), source })?;
        if secret == self.bytes { Ok(()) } else { Err(Error::HandleKeyRestored(state_dir.to_owned())) }
    }
}

/// Returns the owner of the pool on a device, if its first superblock is whole and has a secret. Another program may
/// have the device open.
fn owner_on(path: &Path) -> Option<Owner> {
    let mut block = [0; BLOCK];
    // A pipe would hold up the start until somebody writes. The opening of the pool refuses it.
    let device = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    device.read_exact_at(&mut block, 0).ok()?;
    let owner = decode_owner(&Superblock::decode(&block).ok()?.owner)?;
    owner.secret.is_some().then_some(owner)
}
