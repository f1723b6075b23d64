//! The start of the cache behind an opened pool, as a chain of states. Each state is made only from the one before, so
//! no step can be left out or come too early.
//!
//! | state | what holds from then on | what is still untouched |
//! |---|---|---|
//! | [`Claimed`] | the pool is the one of the served directories, which is recorded durably | the log is not read |
//! | [`Replayed`] | the engine has read its log, and the log fits the served file systems | no directory is changed |
//! | [`Reconciled`] | the names and attributes of the directories are equal to the log | no file's data is asked for |
//! | served | the engine serves, and the answers to the last changes are known again | |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_config::{Settings, format_size};
use forebay_control::{EventLog, Severity};
use forebay_engine::buffer::BLOCK;
use forebay_engine::io::{Backing as _, Disowned, Witness};
use forebay_engine::pool::Pool;
use forebay_engine::{Engine, Env, Event, OpenError, Opening, Recovered};
use forebay_nfs::Nfs;
use forebay_runtime::{SystemClock, Threads, block_on_apart};
use forebay_vfs::{Downtime, Recovery, Store, Vfs};
use forebay_volume::store::Store as AllStores;

use crate::cache::{CacheMonitor, engine_mode};
use crate::error::Error;
use crate::event_report::{report, tell_checkpoint, tell_lost};
use crate::identity::Identities;
use crate::in_use::InUse;
use crate::under_way::UnderWay;
use crate::volumes::Volumes;

/// The parts of the server that the steps of the start use.
pub(crate) struct Context<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) vfs: &'a Arc<Vfs>,
    pub(crate) nfs: &'a Nfs,
    pub(crate) identities: &'a mut Identities,
    pub(crate) events: &'a Arc<EventLog>,
    pub(crate) under_way: &'a Arc<UnderWay>,
    pub(crate) watch: &'a Arc<CacheMonitor>,
    pub(crate) in_use: &'a InUse,
    pub(crate) volumes: &'a Volumes,
}

/// The pool belongs to the served directories, and both say so.
pub(crate) struct Claimed<'a> {
    context: Context<'a>,
    pool: Pool,
    store: Store,
    downtime: Downtime,
    /// True if the directories were served without the pool since it was in use.
    is_outdated: bool,
}

/// The engine has read its log.
pub(crate) struct Replayed<'a> {
    context: Context<'a>,
    opening: Opening,
    threads: Arc<Threads>,
    begun: Instant,
    uuid: u128,
    store: Store,
    stores: AllStores,
    downtime: Downtime,
    /// True if the directories were served without the pool since it was in use, or if its log was dropped.
    is_outdated: bool,
}

/// The directories' names and attributes are equal to the log.
pub(crate) struct Reconciled<'a> {
    replayed: Replayed<'a>,
    recovery: Recovery,
}

impl<'a> Claimed<'a> {
    /// Checks that the pool belongs to the served directories, and then records durably that it does. The pool holds no
    /// copies of their data if it is `fresh`.
    ///
    /// # Errors
    /// The pool belongs to other directories: nothing was written. The state directory or a directory cannot be
    /// written.
    pub(crate) fn new(context: Context<'a>, mut pool: Pool, fresh: bool) -> Result<Self, Error> {
        let Context { settings, vfs, events, in_use, .. } = context;
        let failed = |source| Error::StateDir { path: settings.state_dir.clone(), source };
        let uuid = pool.uuid;
        // This check comes before any write, to the pool or to a directory.
        context.identities.check_pool(settings, &pool, vfs, in_use.may_hold(uuid)?)?;
        let identities = &*context.identities;
        let numbers = identities.numbers(vfs);
        let store = vfs.store(&settings.state_dir, &numbers, &identities.renumbered()).map_err(failed)?;
        let log = events.clone();
        store.on_lost(move |file| tell_lost(&log, file));
        identities.claim(settings, &mut pool, vfs, &store)?;
        let downtime = vfs.own(&store, &settings.state_dir, uuid, fresh).map_err(failed)?;
        let is_outdated = in_use.is_outdated(uuid, fresh)?;
        if is_outdated || !context.watch.roster.knows(uuid) {
            // The last pool, or absent devices of this one, may have had acknowledged data that is lost now.
            vfs.verifier.lost();
        }
        Ok(Claimed { context, pool, store, downtime, is_outdated })
    }

    /// Has the engine read its log. `names` are the paths of the devices, for messages.
    ///
    /// # Errors
    /// The log cannot be read, holds changes from before another server's time, or holds data of a file system that is
    /// not served. No directory was changed.
    pub(crate) fn replay(self, names: &[String]) -> Result<Replayed<'a>, Error> {
        let Claimed { context, pool, store, downtime, is_outdated } = self;
        let Context { settings, vfs, events, under_way, watch, in_use, .. } = context;
        let (uuid, threads) = (pool.uuid, Arc::new(Threads::new()));
        let numbers = context.identities.numbers(vfs).into_iter().map(|(_, number)| number).collect();
        let stores = AllStores::new(Arc::new(store.clone()), numbers);
        context.volumes.register(&stores);
        let (log, monitor, weak) = (events.clone(), watch.clone(), Arc::downgrade(vfs));
        let progress = under_way.clone();
        let dropped = Arc::new(AtomicBool::new(false));
        let (last, is_dropped) = (in_use.clone(), dropped.clone());
        let env = Env {
            clock: Arc::new(SystemClock::new()),
            spawn: threads.clone(),
            backing: Arc::new(stores.clone()),
            witness: Some(Arc::new(watch.roster.clone()) as Arc<dyn Witness>),
            deliver: Arc::new(|run: &mut dyn FnMut()| forebay_rpc::batch(run)),
            events: Arc::new(move |event| {
                match &event {
                    Event::DeviceLate { device, .. } => progress.silent(device),
                    Event::LogDropped => {
                        is_dropped.store(true, Ordering::Release);
                        last.unset_last();
                    }
                    _ => {}
                }
                report(&log, &monitor, &weak, &event);
            }),
        };
        let chosen = forebay_engine::Settings {
            mode: engine_mode(settings.mode),
            ram: settings.cache.ram,
            ..forebay_engine::Settings::default()
        };
        let begun = Instant::now();
        under_way.step("recovering the cache");
        let counts = under_way.recovery.clone();
        let opening = block_on_apart(Engine::begin_reporting(pool, env, chosen, counts)).map_err(unusable)?;
        if is_outdated && holds_changes(&opening, vfs, (&store, &stores), uuid)? {
            return Err(Error::CacheOutdated(names.join(" and ")));
        }
        let takes = |number| store.takes(number) || stores.takes(number);
        let unserved = opening.volumes().into_iter().find(|(number, _)| !takes(*number));
        if let Some((number, files)) = unserved {
            let described = context.identities.described(number);
            let filesystem = described.unwrap_or_else(|| "another file system".to_owned());
            return Err(Error::NotServed { files, filesystem });
        }
        in_use.set(uuid, names)?;
        // The log had the state of clients. They may reclaim it, as from a pool that is out of date.
        let is_outdated = is_outdated || dropped.load(Ordering::Acquire);
        Ok(Replayed { context, opening, threads, begun, uuid, store, stores, downtime, is_outdated })
    }
}

impl<'a> Replayed<'a> {
    /// Makes the names and attributes of the directories equal to the log. The engine asks for files only after that,
    /// since it treats a missing file as removed.
    ///
    /// # Errors
    /// A directory or the state directory cannot be read or written.
    pub(crate) fn reconcile(self) -> Result<Reconciled<'a>, Error> {
        let Context { settings, vfs, under_way, .. } = self.context;
        under_way.step("recovering names and attributes");
        let (log, notes) = (self.uuid as u64, self.opening.notes());
        let recovery = vfs.recover(&self.store, &settings.state_dir, (log, self.is_outdated), notes);
        let recovery = recovery.map_err(|error| Error::Cache(error.to_string()))?;
        Ok(Reconciled { replayed: self, recovery })
    }
}

impl Reconciled<'_> {
    /// Puts the engine into service in front of the directories.
    ///
    /// # Errors
    /// The cache devices cannot be written, or the directories cannot be watched.
    pub(crate) fn serve(self) -> Result<(Arc<Engine>, Arc<Threads>), Error> {
        let Reconciled { replayed, recovery } = self;
        let Replayed { context, opening, threads, begun, uuid, store, stores, downtime, is_outdated } =
            replayed;
        let Context { settings, vfs, nfs, events, under_way, in_use, volumes, .. } = context;
        under_way.step("recovering files with data that only the cache has");
        let (engine, recovered) = block_on_apart(opening.finish()).map_err(unusable)?;
        tell_recovered(events, &recovered, begun.elapsed());
        for aside in &recovery.set_aside {
            events.add(Severity::Warning, "set-aside", aside.clone(), &[]);
        }
        let (log, weak) = (events.clone(), Arc::downgrade(vfs));
        let told = Arc::new(move |news| tell_checkpoint(&log, &weak, news));
        nfs.recall(&vfs.set_cache(engine.clone(), &store, downtime, recovery, told)?)?;
        volumes.serve(&engine, &stores, is_outdated)?;
        nfs.begin().map_err(|source| Error::StateDir { path: settings.state_dir.clone(), source })?;
        // Nothing that is out of date counts any more, durably.
        in_use.set_last(uuid)?;
        Ok((engine, threads))
    }
}

/// Returns true if the pool has changes that the served directories, or the volumes, may lack. The state of clients
/// and the replies to them are no such changes. Changes nothing.
fn holds_changes(
    opening: &Opening,
    vfs: &Vfs,
    (store, stores): (&Store, &AllStores),
    uuid: u128,
) -> Result<bool, Error> {
    let failed = |error: &dyn std::fmt::Display| Error::Cache(error.to_string());
    let operations = vfs.has_operations(store, uuid as u64, opening.notes());
    let disowned = block_on_apart(stores.disowned(uuid)).map_err(|error| failed(&error))?;
    // A truncation that was begun without devices is carried out by this start.
    let is_cut = |(_, what): &(_, Disowned)| matches!(what, Disowned::Cut { .. });
    Ok(opening.holds_changes() || operations.map_err(|error| failed(&error))? || disowned.iter().any(is_cut))
}

/// Returns the error that ends the start: the engine cannot use its devices.
fn unusable(error: OpenError) -> Error {
    Error::Cache(error.to_string())
}

/// Adds an event with the amount of dirty data that the recovery found, if there is any.
fn tell_recovered(events: &EventLog, recovered: &Recovered, took: Duration) {
    if recovered.dirty_blocks > 0 {
        let dirty = format_size(recovered.dirty_blocks * BLOCK as u64);
        let message = format!("the cache is back after {:.1} s with {dirty} dirty", took.as_secs_f64());
        events.add(Severity::Info, "recovered", message, &[("dirty", &dirty)]);
    }
}
