//! The tasks that give up silent devices: while a pool is recovered, while the engine is in service, and while the
//! engine stops.

use forebay_common::lock::atomic::Ordering;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::buffer::Buffer;
use crate::core::Core;
use crate::core::env::Env;
use crate::event::Event;
use crate::io::{Device, DeviceError};
use crate::log::mirror_io::lose;
use crate::planted_bugs;
use crate::pool::deadline::{GivenUp, TICKS, Ticks, Watched};

/// Gives up silent devices while a pool is recovered. Recovery sees their operations fail, and records that they are
/// lost. Never ends.
pub(crate) async fn watch_until_service(
    devices: Vec<Arc<Watched>>,
    ticks: Arc<Ticks>,
    env: Env,
    deadline: Duration,
) {
    loop {
        env.clock.sleep(deadline / TICKS).await;
        ticks.advance();
        for device in late_ones(devices.clone(), &env, deadline).await {
            if planted_bugs::active("a device is waited for while the pool is recovered") {
                continue;
            }
            device.give_up(GivenUp::Late);
        }
    }
}

/// Reports the late devices. Returns them if another device answers: the caller then gives them up.
async fn late_ones(mut devices: Vec<Arc<Watched>>, env: &Env, deadline: Duration) -> Vec<Arc<Watched>> {
    devices.retain(|device| device.given_up().is_none());
    let (mut late, well): (Vec<_>, Vec<_>) = devices.into_iter().partition(|device| device.is_late());
    well.iter().for_each(|device| device.forget_told());
    for device in late.iter().filter(|device| device.is_untold()) {
        tell_late(device, env, deadline);
    }
    if late.is_empty() || !any_answers(&well, env, deadline / TICKS).await {
        return Vec::new();
    }
    late.retain(|device| device.is_late());
    late
}

fn tell_late(device: &Watched, env: &Env, after: Duration) {
    (env.events)(Event::DeviceLate { device: device.name().to_owned(), after });
}

/// Returns true if one of the devices answers a read of its superblock within `time`. A device without an operation in
/// flight may be as silent as the late ones.
async fn any_answers(devices: &[Arc<Watched>], env: &Env, time: Duration) -> bool {
    if planted_bugs::active("a device that owes no answer is taken for one that answers") {
        return !devices.is_empty();
    }
    let mut reads: Vec<_> = devices.iter().map(|device| device.read(0, Buffer::zeroed(1))).collect();
    let mut over = env.clock.sleep(time);
    poll_fn(|context| {
        let mut answered = false;
        reads.retain_mut(|read| match read.as_mut().poll(context) {
            Poll::Ready((_, result)) => {
                answered |= !result.is_err_and(DeviceError::is_final);
                false
            }
            Poll::Pending => true,
        });
        if answered || reads.is_empty() || over.as_mut().poll(context).is_ready() {
            return Poll::Ready(answered);
        }
        Poll::Pending
    })
    .await
}

/// Gives up devices that do not answer, until the engine closes.
pub(crate) async fn run_device_watch(core: Arc<Core>) {
    let ticks = &core.ticks;
    let is_busy = || {
        let newcomer = core.members.newcomer();
        core.devices.read().iter().flatten().chain(&newcomer).any(|device| device.under_way() > 0)
    };
    while !core.closing() {
        let ready = || {
            ticks.idle.store(true, Ordering::SeqCst);
            (core.closing() || is_busy()).then_some(())
        };
        ticks.begun.until(ready).await;
        ticks.idle.store(false, Ordering::SeqCst);
        core.rest(core.settings.device_deadline / TICKS).await;
        // The pause is cut short when the engine closes, so it is no tick.
        if !core.closing() {
            end_tick(&core).await;
        }
    }
}

/// Gives up devices that do not answer, while the engine stops. The last writes of a stop come after all other tasks
/// have ended. Never ends.
pub(crate) async fn watch_until_stopped(core: &Core) {
    loop {
        core.env.clock.sleep(core.settings.device_deadline / TICKS).await;
        if !planted_bugs::active("a device is waited for while the engine stops") {
            end_tick(core).await;
        }
    }
}

/// Counts a tick, and gives up the devices that are late by then.
async fn end_tick(core: &Core) {
    core.ticks.advance();
    give_up_newcomer(core);
    give_up_late(core).await;
}

/// Gives up the late devices, if another device answers.
async fn give_up_late(core: &Core) {
    let devices: Vec<_> = core.devices.read().iter().flatten().cloned().collect();
    let late = late_ones(devices, &core.env, core.settings.device_deadline).await;
    for device in late {
        if planted_bugs::active("a device that does not answer is waited for") {
            continue;
        }
        device.give_up(GivenUp::Late);
        let is_it =
            |other: &Option<Arc<Watched>>| other.as_ref().is_some_and(|other| Arc::ptr_eq(other, &device));
        let index = core.devices.read().iter().position(is_it);
        if let Some(index) = index {
            lose(core, index as u16).await;
        }
    }
}

/// Gives up a device that is late while it is added. That costs no redundancy, so no other device has to prove that it
/// answers. If all members are late as well, the engine waits for the newcomer as for them.
fn give_up_newcomer(core: &Core) {
    let Some(newcomer) = core.members.newcomer().filter(|newcomer| newcomer.is_late()) else { return };
    if newcomer.is_untold() {
        tell_late(&newcomer, &core.env, core.settings.device_deadline);
    }
    let devices: Vec<_> = core.devices.read().iter().flatten().cloned().collect();
    if planted_bugs::active("a device that is being added is waited for") {
        return;
    }
    if devices.is_empty() || devices.iter().any(|device| !device.is_late()) {
        newcomer.give_up(GivenUp::Late);
    }
}

/// Wakes the watch, so that it ends.
pub(crate) fn wake_device_watch(core: &Core) {
    core.ticks.begun.wake();
}
