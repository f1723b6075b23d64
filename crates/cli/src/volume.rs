//! `forebay volume`: block volumes of a running server.

use anyhow::bail;
use forebay_config::format_size;
use forebay_control::{VolumeRequest, VolumeStatus};

use crate::output::{self, Align, Table, printable};
use crate::volume_args::{Common, ModeChoice, VolumeCommand};
use crate::{Exit, control};

/// Runs `forebay volume`.
pub(crate) fn volume(command: VolumeCommand) -> anyhow::Result<Exit> {
    match command {
        VolumeCommand::List { common } => {
            let volumes = control::find(&common.target)?.volume(VolumeRequest::List { name: None })?;
            match common.json {
                true => output::json(&volumes)?,
                false if volumes.is_empty() => {
                    output::note("There is no volume; `forebay volume create` makes one.")
                }
                false => output::result(&table(&volumes).render(0))?,
            }
        }
        VolumeCommand::Show { name, common } => {
            let volume = ask(&common, VolumeRequest::List { name: Some(name.name) })?;
            show(&common, &volume, |volume| output::result(&describe(volume)))?;
        }
        VolumeCommand::Create { name, backing, mode, read_only, common } => {
            let (name, backing) = (name.name, crate::data_args::device(backing)?);
            let volume = ask(&common, VolumeRequest::Create { name, backing, mode, read_only })?;
            show(&common, &volume, |volume| {
                let (name, size) = (&volume.name, format_size(volume.size_bytes));
                output::note(&format!(
                    "Volume {name} is {} ({size}); `forebay volume attach {name}` makes a device of it.",
                    volume.backing.display()
                ));
                volume.caution.iter().for_each(|caution| output::note(&format!("Caution: {caution}.")));
                Ok(())
            })?;
        }
        VolumeCommand::Remove { name, give_up, common } => {
            let request = VolumeRequest::Remove { name: name.name.clone(), give_up };
            let left = control::find(&common.target)?.volume(request)?;
            match common.json {
                true => output::json(&left)?,
                false => output::note(&format!(
                    "Volume {} is removed. Its backing device is an ordinary device again.",
                    name.name
                )),
            }
        }
        VolumeCommand::Resize { name, size, common } => {
            let volume = ask(&common, VolumeRequest::Resize { name: name.name, size })?;
            show(&common, &volume, |volume| {
                output::note(&format!("Volume {} has {}.", volume.name, format_size(volume.size_bytes)));
                Ok(())
            })?;
        }
        VolumeCommand::Mode { name, mode: None, common } => {
            let volume = ask(&common, VolumeRequest::List { name: Some(name.name) })?;
            show(&common, &volume, |volume| output::result(&format!("{}\n", shown_mode(volume))))?;
        }
        VolumeCommand::Mode { name, mode: Some(ModeChoice(mode)), common } => {
            let volume = ask(&common, VolumeRequest::Mode { name: name.name, mode })?;
            show(&common, &volume, |volume| output::result(&format!("{}\n", shown_mode(volume))))?;
        }
        VolumeCommand::Flush { name, common } => {
            let volume = ask(&common, VolumeRequest::Flush { name: name.name })?;
            show(&common, &volume, |volume| {
                output::note(&format!(
                    "{} has everything that was written before.",
                    volume.backing.display()
                ));
                Ok(())
            })?;
        }
        VolumeCommand::Attach { name, nbd, common } => {
            let name = name.name;
            let request = match nbd {
                true => VolumeRequest::List { name: Some(name) },
                false => VolumeRequest::Attach { name },
            };
            attached(&common, &ask(&common, request)?, nbd)?;
        }
        VolumeCommand::Detach { name, common } => {
            let had = ask(&common, VolumeRequest::List { name: Some(name.name.clone()) })?.device;
            let volume = ask(&common, VolumeRequest::Detach { name: name.name })?;
            show(&common, &volume, |volume| detached(volume, had.as_deref()))?;
        }
    }
    Ok(Exit::Done)
}

/// Sends a request about one volume.
fn ask(common: &Common, request: VolumeRequest) -> anyhow::Result<VolumeStatus> {
    let mut volumes = control::find(&common.target)?.volume(request)?;
    let Some(volume) = volumes.pop() else { bail!("the server has answered without a volume") };
    Ok(volume)
}

/// Prints a volume as JSON if the user asks for that, else with `human`.
fn show(
    common: &Common,
    volume: &VolumeStatus,
    human: impl FnOnce(&VolumeStatus) -> std::io::Result<()>,
) -> anyhow::Result<()> {
    match common.json {
        true => output::json(volume)?,
        false => human(volume)?,
    }
    Ok(())
}

/// Shows the device of a volume, or the command that gives a client of NBD a device.
fn attached(common: &Common, volume: &VolumeStatus, nbd: bool) -> anyhow::Result<()> {
    let line = match &volume.device {
        Some(device) if !nbd => device.display().to_string(),
        _ => attach_line(volume)?,
    };
    if let Some(reason) = volume.no_device.as_ref().filter(|_| !common.json) {
        output::note(&format!("There is no block device here: {reason}. A client of NBD gets one with:"));
    }
    show(common, volume, |_| output::result(&format!("{line}\n")))
}

/// Says that the backing device has everything, and how a client of NBD ends its device.
fn detached(volume: &VolumeStatus, had: Option<&std::path::Path>) -> std::io::Result<()> {
    let backing = volume.backing.display();
    match had {
        Some(device) => {
            output::note(&format!("{} is removed. {backing} has everything.", device.display()));
            Ok(())
        }
        None => {
            output::note(&format!("{backing} has everything. End the client's device with:"));
            output::result("nbd-client -d /dev/nbd0\n")
        }
    }
}

/// Returns the command that gives a client a device of the volume. The device has sectors of 512 bytes, the default of
/// `nbd-client`: XFS does not mount on a device with larger sectors than the one that it was made on.
fn attach_line(volume: &VolumeStatus) -> anyhow::Result<String> {
    if let Some(reason) = &volume.reason {
        bail!("volume {} is not served: {reason}", volume.name);
    }
    let Some(address) = &volume.nbd else {
        bail!(
            "volume {} has no door: {}the server does not serve NBD; start it with `--nbd 127.0.0.1:10809`",
            volume.name,
            volume.no_device.as_ref().map(|reason| format!("{reason}; and ")).unwrap_or_default()
        );
    };
    Ok(match address.rsplit_once(':') {
        Some((host, port)) if !address.starts_with('/') => {
            format!("nbd-client {} {port} /dev/nbd0 -N {} -t 30", host.trim_matches(['[', ']']), volume.name)
        }
        _ => format!("nbd-client -unix {address} /dev/nbd0 -N {} -t 30", volume.name),
    })
}

/// Returns the mode in force of a volume, with its own mode if that differs.
fn shown_mode(volume: &VolumeStatus) -> String {
    match volume.own_mode {
        None => format!("{} (the server's)", volume.mode),
        Some(own) if own == volume.mode => own.to_string(),
        Some(own) => format!("{} (chosen: {own})", volume.mode),
    }
}

/// Returns the table of volumes.
pub(crate) fn table(volumes: &[VolumeStatus]) -> Table {
    let columns = [
        ("VOLUME", Align::Left),
        ("BACKING", Align::Left),
        ("SIZE", Align::Right),
        ("DIRTY", Align::Right),
        ("MODE", Align::Left),
        ("DEVICE", Align::Left),
        ("STATE", Align::Left),
    ];
    let mut table = Table::new(&columns);
    for volume in volumes {
        table.row(vec![
            printable(&volume.name),
            printable(&volume.backing.to_string_lossy()),
            format_size(volume.size_bytes),
            format_size(volume.dirty_bytes),
            shown_mode(volume),
            volume.device.as_ref().map_or("-".to_owned(), |device| printable(&device.to_string_lossy())),
            printable(&volume.state),
        ]);
    }
    table
}

/// Returns the status of a volume as lines of name and value.
fn describe(volume: &VolumeStatus) -> String {
    let mut lines = vec![
        ("volume", printable(&volume.name)),
        ("uuid", printable(&volume.uuid)),
        ("backing", printable(&volume.backing.to_string_lossy())),
        ("size", format_size(volume.size_bytes)),
        ("mode", shown_mode(volume)),
        ("dirty", format_size(volume.dirty_bytes)),
        (
            "requests",
            format!(
                "{} reads ({}), {} writes ({}), {} flushes, {} discarded, {} failed",
                output::count(volume.reads),
                format_size(volume.read_bytes),
                output::count(volume.writes),
                format_size(volume.written_bytes),
                output::count(volume.flushes),
                format_size(volume.discarded_bytes),
                output::count(volume.errors)
            ),
        ),
        ("state", printable(&volume.state)),
    ];
    lines.extend(volume.serial.iter().map(|serial| ("serial", printable(serial))));
    lines.extend(volume.device.iter().map(|device| ("device", printable(&device.to_string_lossy()))));
    lines.extend(volume.nbd.iter().map(|address| ("nbd", printable(address))));
    lines.extend(volume.reason.iter().map(|reason| ("refused", printable(reason))));
    if volume.read_only {
        lines.push(("access", "read-only".to_owned()));
    }
    lines.iter().map(|(name, text)| format!("{name:<12} {text}\n")).collect()
}
