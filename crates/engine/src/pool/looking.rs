//! The contents of devices are read, to open a pool.

use std::sync::Arc;

use super::geometry::Copy;
use super::identify::{Contents, look};
use crate::io::{Device, DeviceError};
use crate::wait::all;

/// The contents of a device, and the superblock copy to be written first.
pub(super) type Looked = (Result<Contents, DeviceError>, Copy);

/// Reads the contents of a device and makes them durable.
pub(super) async fn look_durably(device: &dyn Device) -> Looked {
    let mut looked = look(device).await;
    // A server that was killed may have left the superblock in the device's cache. Its other copy is overwritten next,
    // and a power cut may tear all data that was never flushed.
    if let Ok((Contents::Pool(_), _)) = looked
        && let Err(error) = device.flush().await
    {
        looked = Err(error);
    }
    match looked {
        Ok((contents, copy)) => (Ok(contents), copy),
        Err(error) => (Err(error), Copy::A),
    }
}

/// Reads all devices side by side, without a deadline.
pub(super) async fn look_at_all(devices: &[Arc<dyn Device>]) -> Vec<Looked> {
    all(devices.iter().map(|device| Box::pin(look_durably(device.as_ref()))).collect()).await
}
