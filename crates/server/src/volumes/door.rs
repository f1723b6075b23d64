//! The NBD door of a server: the volumes for clients on TCP and Unix sockets.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_block::{Config, Door, Error as DoorError, Refusal};
use forebay_config::Settings;
use forebay_control::{EventLog, Severity};
use forebay_rpc::{Contenders, StartError};
use forebay_tls::Keyring;

use crate::error::Error;
use crate::volumes::Volumes;

/// The time between two attempts to listen.
const RETRY: Duration = Duration::from_secs(5);

/// The NBD service of a server. While its address is in use, the server serves everything else, and tries again.
pub(crate) struct NbdDoor {
    open: Option<Door>,
    /// The attempts to open the door, and their end.
    attempts: Option<(Sender<()>, JoinHandle<Option<Door>>)>,
}

/// Checks that the settings give no client access without protection.
///
/// # Errors
/// An address would be served without protection.
pub(crate) fn check(settings: &Settings, keyring: &Arc<Keyring>) -> Result<(), Error> {
    config(settings, keyring).check().map_err(|error| Error::Nbd(error.to_string()))
}

/// Returns true if the settings name an address for NBD.
pub(crate) fn is_wanted(settings: &Settings) -> bool {
    !(settings.nbd.listen.is_empty() && settings.nbd.sockets.is_empty())
}

fn config(settings: &Settings, keyring: &Arc<Keyring>) -> Config {
    let nbd = &settings.nbd;
    Config {
        listen: nbd.listen.clone(),
        sockets: nbd.sockets.clone(),
        insecure: nbd.insecure,
        tls: settings.tls.is_some().then(|| keyring.clone()),
        kernel_tls: settings.kernel_tls,
        client_certificate: nbd.client_certificate,
        threads: settings.limits.threads,
        // The setting of the NFS server holds for both, and changes in service.
        shared_inflight: usize::MAX,
        stall_timeout: settings.limits.stall_timeout,
        busy_poll: settings.limits.busy_poll,
        ..Config::default()
    }
}

impl NbdDoor {
    /// Opens the door that the settings name, and tries again if that fails. Returns `None` if they name none. Its
    /// clients wait for the same devices as those of `contenders`.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub(crate) fn open(
        settings: &Settings,
        keyring: &Arc<Keyring>,
        volumes: &Arc<Volumes>,
        events: &Arc<EventLog>,
        contenders: &Contenders,
    ) -> std::io::Result<Option<Self>> {
        if !is_wanted(settings) {
            return Ok(None);
        }
        let config = Config { contenders: contenders.clone(), ..config(settings, keyring) };
        if let Some(door) = attempt(&config, volumes, events) {
            return Ok(Some(NbdDoor { open: Some(door), attempts: None }));
        }
        let (stop, stopped) = channel();
        let (volumes, events) = (volumes.clone(), events.clone());
        let attempts = std::thread::Builder::new().name("forebay-nbd-open".into()).spawn(move || {
            while stopped.recv_timeout(RETRY) == Err(RecvTimeoutError::Timeout) {
                if let Some(door) = attempt(&config, &volumes, &events) {
                    return Some(door);
                }
            }
            None
        })?;
        Ok(Some(NbdDoor { open: None, attempts: Some((stop, attempts)) }))
    }

    /// Stops serving NBD, as [`Door::stop`].
    pub(crate) fn stop(self, drain: Duration) {
        let late = self.attempts.and_then(|(stop, attempts)| {
            drop(stop);
            attempts.join().ok().flatten()
        });
        self.open.into_iter().chain(late).for_each(|door| door.stop(drain));
    }
}

/// Tries to open the door once. An event and [`Volumes::troubles`] say why that fails, and when it works at last.
fn attempt(config: &Config, volumes: &Arc<Volumes>, events: &Arc<EventLog>) -> Option<Door> {
    let before = volumes.door_trouble.lock().clone();
    let log = events.clone();
    let tell = Box::new(move |why, address| tell_refused(&log, why, address));
    match Door::start(config, volumes.clone(), tell) {
        Ok(door) => {
            let socket = config.sockets.first().map(|path| path.display().to_string());
            let address = socket.or_else(|| door.local_addrs().first().map(ToString::to_string));
            let address = address.unwrap_or_default();
            if before.is_some() {
                let message = format!("volumes are served over NBD at {address}");
                events.add(Severity::Info, "nbd", message, &[]);
            }
            *volumes.door_trouble.lock() = None;
            volumes.has_door(address);
            Some(door)
        }
        Err(error) => {
            let trouble = sentence(&error);
            if before.as_ref() != Some(&trouble) {
                events.add(Severity::Warning, "nbd", trouble.clone(), &[]);
            }
            *volumes.door_trouble.lock() = Some(trouble);
            None
        }
    }
}

/// Tells of a client that was refused.
fn tell_refused(events: &EventLog, why: Refusal, address: Option<IpAddr>) {
    let client = address.map_or_else(|| "of a Unix socket".to_owned(), |address| address.to_string());
    let (reason, sentence) = match why {
        Refusal::Crowded if address.is_none() => {
            ("crowded", "the Unix sockets have as many connections as they may have; end some of them")
        }
        Refusal::Crowded => {
            ("crowded", "its address has as many connections as one address may have; end some of them")
        }
        Refusal::Full => ("full", "NBD has as many connections as it may have; end some of them"),
    };
    let message = format!("NBD client {client} was refused: {sentence}");
    let fields: [(&str, &dyn ToString); 2] = [("client", &client), ("reason", &reason)];
    events.add(Severity::Warning, "client-refused", message, &fields);
}

/// Returns the reason why the door is shut, with the remedy.
fn sentence(error: &DoorError) -> String {
    const REMEDY: &str = "or set `listen` under [nbd]";
    match error {
        DoorError::Start(StartError::Listen { addr, source }) if source.kind() == ErrorKind::AddrInUse => {
            format!(
                "NBD is not served: port {} on {} is in use; stop the program that uses it, {REMEDY}",
                addr.port(),
                addr.ip()
            )
        }
        DoorError::Start(StartError::ListenAt { path, source }) if source.kind() == ErrorKind::AddrInUse => {
            let is_socket = path.metadata().is_ok_and(|metadata| metadata.file_type().is_socket());
            let trouble = match is_socket {
                true => "is in use; stop the program that uses it",
                false => "is there, and is not a socket; remove it",
            };
            format!("NBD is not served: {} {trouble}, {REMEDY}", path.display())
        }
        DoorError::Start(_) => format!("{error}; mend that, {REMEDY}"),
        error => error.to_string(),
    }
}
