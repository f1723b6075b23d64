//! The start of an engine: a pool is recovered, then put into service.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::core::env::Env;
use crate::core::settings::Settings;
use crate::engine::{Engine, start_tasks};
use crate::log::user_records::UserRecord;
use crate::pool::Pool;
use crate::recover::backing_sizes::look_up_sizes;
use crate::recover::cuts::finish_cuts;
use crate::recover::disowned::{log_disowned, recall_disowned};
use crate::recover::load_clean::run_warm;
use crate::recover::outcome::{OpenError, Recovered};
use crate::recover::progress::RecoveryProgress;
use crate::recover::{self, Begun};

/// An engine that has read its devices and has not sent a request to its backing store yet. Its user may first bring
/// the store to the state that the user records describe. See [`Engine::begin`].
pub struct Opening(Begun);

impl Opening {
    /// Returns the user records found in the log; see [`Recovered::notes`].
    pub fn notes(&self) -> &[UserRecord] {
        &self.0.recovered.notes
    }

    /// Returns true if the log has objects with changes that the backing store may lack.
    pub fn holds_changes(&self) -> bool {
        !self.0.unsure.is_empty()
    }

    /// Returns the number of objects with changes on the devices, for each volume.
    pub fn volumes(&self) -> BTreeMap<u32, usize> {
        let mut volumes = BTreeMap::new();
        for object in &self.0.unsure {
            *volumes.entry(self.0.core.env.backing.volume(&object.key)).or_default() += 1;
        }
        volumes
    }

    /// Puts the engine into service.
    ///
    /// # Errors
    /// See [`OpenError`]. An error loses no data on the devices.
    pub async fn finish(self) -> Result<(Arc<Engine>, Recovered), OpenError> {
        let Begun { core, unsure, cold, recovered, progress } = self.0;
        let noted = recall_disowned(&core).await?;
        look_up_sizes(&core, unsure, &progress).await?;
        start_tasks(&core);
        core.log.started().await.map_err(OpenError::Engine)?;
        finish_cuts(&core).await?;
        log_disowned(&core, noted).await.map_err(OpenError::Engine)?;
        if !cold.is_empty() {
            core.start("forebay-warm", |core| run_warm(core, cold));
        }
        let dirty_blocks = core.usage().dirty_blocks;
        Ok((Arc::new(Engine { core }), Recovered { dirty_blocks, ..recovered }))
    }
}

impl Engine {
    /// Puts a pool into service: recovers its contents and starts the engine's tasks.
    ///
    /// # Errors
    /// See [`OpenError`]. An error loses no data on the devices.
    pub async fn open(
        pool: Pool,
        env: Env,
        settings: Settings,
    ) -> Result<(Arc<Engine>, Recovered), OpenError> {
        Engine::begin(pool, env, settings).await?.finish().await
    }

    /// Recovers the contents of a pool, for [`Opening::finish`] to put it into service. A caller that does not finish
    /// may begin again.
    ///
    /// # Errors
    /// See [`OpenError`]. An error loses no data on the devices.
    pub async fn begin(pool: Pool, env: Env, settings: Settings) -> Result<Opening, OpenError> {
        Engine::begin_reporting(pool, env, settings, Arc::default()).await
    }

    /// Recovers the contents of a pool, as [`Engine::begin`], and reports its progress. `progress` counts headers of
    /// segments, then segments of the log. While [`Opening::finish`] runs, it counts files with changes.
    ///
    /// # Errors
    /// See [`OpenError`]. An error loses no data on the devices.
    pub async fn begin_reporting(
        pool: Pool,
        env: Env,
        settings: Settings,
        progress: Arc<RecoveryProgress>,
    ) -> Result<Opening, OpenError> {
        recover::begin(pool, env, settings, progress).await.map(Opening)
    }
}
