//! The NBD door of a server: the volumes for clients on TCP and Unix sockets.

use std::sync::Arc;

use forebay_block::{Config, Door};
use forebay_config::Settings;
use forebay_tls::Keyring;

use crate::error::Error;
use crate::volumes::Volumes;

/// Opens the door that the settings name; `None` if they name none.
///
/// # Errors
/// An address cannot be listened on, or would be served without protection.
pub(crate) fn open(
    settings: &Settings,
    keyring: &Arc<Keyring>,
    volumes: &Arc<Volumes>,
) -> Result<Option<Door>, Error> {
    let nbd = &settings.nbd;
    if nbd.listen.is_empty() && nbd.sockets.is_empty() {
        return Ok(None);
    }
    let config = Config {
        listen: nbd.listen.clone(),
        sockets: nbd.sockets.clone(),
        insecure: nbd.insecure,
        tls: settings.tls.is_some().then(|| keyring.clone()),
        kernel_tls: settings.kernel_tls,
        client_certificate: nbd.client_certificate,
        threads: settings.limits.threads,
        stall_timeout: settings.limits.stall_timeout,
        busy_poll: settings.limits.busy_poll,
        ..Config::default()
    };
    let door = Door::start(&config, volumes.clone()).map_err(|error| Error::Nbd(error.to_string()))?;
    let socket = nbd.sockets.first().map(|path| path.display().to_string());
    let address = socket.or_else(|| door.local_addrs().first().map(ToString::to_string));
    volumes.has_door(address.unwrap_or_default());
    Ok(Some(door))
}
