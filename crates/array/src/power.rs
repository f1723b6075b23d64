//! Makes and removes arrays, and cuts their power.

use crate::daemon::control::{Answer, Ask, ask};
use crate::daemon::{self, Daemon, Fault, Status};
use crate::error::{ArrayError, Doing};
use crate::host;
use crate::model::Model;
use crate::sim::Array;
use crate::state::{self, FileSystem, Home, Phase, State};
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time that a daemon may take to end after it was told to.
const FAREWELL: Duration = Duration::from_secs(5);

/// The parameters of an array to make.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Directory that holds the state directories of all arrays.
    pub base: PathBuf,
    /// The array's name.
    pub name: String,
    /// The array's model.
    pub model: Model,
    /// Size of the block device in bytes; rounded down to whole stripes.
    pub size: u64,
    /// Directory for the sparse file with the data.
    pub image_dir: PathBuf,
    /// The file system to make.
    pub fs: FileSystem,
    /// Mount point of the file system; `None` means a directory in the array's state directory.
    pub mount: Option<PathBuf>,
}

/// Prints a lengthy step to standard error, if that is a terminal.
fn progress(text: &str) {
    if io::stderr().is_terminal() {
        _ = writeln!(io::stderr(), "{text} ...");
    }
}

/// Makes an array, or powers an array on again if its power was cut or its daemon died. An array that is up stays as
/// it is.
///
/// `invocation` is the list of arguments with which this program runs [`serve`].
///
/// # Errors
/// [`ArrayError`]. Everything that was set up is removed again.
pub fn up(plan: &Plan, invocation: &[&str]) -> Result<State, ArrayError> {
    host::check("array up")?;
    let home = Home::lock(&plan.base, &plan.name)?;
    let mut state = wanted(plan, &home)?;
    let fresh = match home.load()? {
        Some(old) => {
            let same = State { device: None, pid: None, phase: Phase::Starting, ..old.clone() };
            if same != (State { made_mount: old.made_mount, ..state.clone() }) {
                return Err(ArrayError::Differs(old.name, describe(&same)));
            }
            if old.phase == Phase::Up && state::alive(&home.directory) {
                return Ok(old);
            }
            state.made_mount = old.made_mount;
            dismantle(&home, &old, true)?;
            old.phase == Phase::Starting
        }
        None => true,
    };
    match build(&home, &mut state, fresh, invocation) {
        Ok(()) => Ok(state),
        Err(e) => {
            dismantle(&home, &state, true)?;
            if fresh {
                discard(home, &state)?;
            }
            Err(e)
        }
    }
}

/// Returns the state of an array that is to be made. Fails if the size is too small for the file system. Makes
/// nothing.
fn wanted(plan: &Plan, home: &Home) -> Result<State, ArrayError> {
    let size = Array::new(&plan.model, plan.size).size();
    let least = if plan.fs == FileSystem::Xfs { 320 << 20 } else { 64 << 20 };
    if size < least {
        let why = format!("the size must be at least {} MiB for this file system", (least >> 20) + 20);
        return Err(ArrayError::Argument(why));
    }
    let mount = match &plan.mount {
        Some(path) => std::path::absolute(path).doing(|| format!("resolve {}", path.display()))?,
        None => home.directory.join("mnt"),
    };
    let made_mount = plan.mount.is_some() && !mount.exists();
    Ok(State {
        name: plan.name.clone(),
        model: plan.model.clone(),
        size,
        image: plan.image_dir.join(format!("forebay-array-{}.img", plan.name)),
        fs: plan.fs,
        mount,
        made_mount,
        device: None,
        pid: None,
        phase: Phase::Starting,
    })
}

fn describe(state: &State) -> String {
    format!("model {}, {} MiB, mounted at {}", state.model.name, state.size >> 20, state.mount.display())
}

/// Starts the daemon, attaches the device, and mounts the file system; makes a file system first if the array is
/// `fresh`. Records each step, so that `down` can undo it.
fn build(home: &Home, state: &mut State, fresh: bool, invocation: &[&str]) -> Result<(), ArrayError> {
    let phase = if fresh { Phase::Starting } else { Phase::Cut };
    state.phase = phase;
    home.save(state)?;
    if fresh {
        // A file left over from an earlier array would show old data.
        match fs::remove_file(&state.image) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(e).doing(|| format!("remove {}", state.image.display()));
            }
            _ => {}
        }
    }
    state.pid = Some(start(home, invocation)?);
    home.save(state)?;
    let device = host::attach(&state::fuse(&home.directory), &state.model)?;
    state.device = Some(device.clone());
    home.save(state)?;
    tell(home, state, Fault::Instant)?;
    if fresh {
        progress(&format!("making a file system on {device}"));
        host::make_file_system(state.fs, &device, &state.model)?;
    }
    if state.fs != FileSystem::None {
        fs::create_dir_all(&state.mount).doing(|| format!("make {}", state.mount.display()))?;
        host::mount(state.fs, &device, &state.mount)?;
    }
    tell(home, state, Fault::Clear)?;
    state.phase = Phase::Up;
    home.save(state)
}

/// Starts the daemon and waits until its file is served.
fn start(home: &Home, invocation: &[&str]) -> Result<i32, ArrayError> {
    let log_path = home.directory.join("log");
    let log = File::create(&log_path).doing(|| format!("make {}", log_path.display()))?;
    let mut child = Command::new("/proc/self/exe")
        .arg0("forebay-array")
        .args(invocation)
        .arg("daemon")
        .arg(&home.directory)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .doing(|| "start the array's daemon".to_owned())?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line).doing(|| "read from the array's daemon".to_owned())?;
    }
    if line.trim() != "ready" {
        _ = child.wait();
        let said = fs::read_to_string(&log_path).unwrap_or_default();
        return Err(ArrayError::Program {
            command: "array daemon".to_owned(),
            output: said.trim().to_owned(),
        });
    }
    Ok(child.id() as i32)
}

/// Runs as the daemon: serves the array in `directory` until told to stop. The process leaves the session of its
/// terminal.
///
/// # Errors
/// [`ArrayError`] if the daemon cannot start or loses its connection.
pub fn serve(directory: &Path) -> Result<(), ArrayError> {
    // setsid fails only for the leader of a process group, which needs no new session.
    _ = rustix::process::setsid();
    let unknown = || ArrayError::Unknown(directory.display().to_string());
    let state = state::load(directory)?.ok_or_else(unknown)?;
    let Some(_lock) = state::daemon_lock(directory)? else {
        return Err(ArrayError::Argument(format!("array {} already has a daemon", state.name)));
    };
    let fuse = state::fuse(directory);
    let setup =
        daemon::Setup { directory, fuse: &fuse, image: &state.image, model: &state.model, size: state.size };
    daemon::become_hardware();
    let daemon = Daemon::new(&setup).doing(|| format!("serve {}", state.image.display()))?;
    writeln!(io::stdout(), "ready").doing(|| "report to the starter".to_owned())?;
    daemon.run().doing(|| format!("serve {}", state.image.display()))
}

/// Takes an array down and removes it with its data. Returns false if there is no array of that name.
///
/// # Errors
/// [`ArrayError::Busy`] if files of the array are in use. With `force`, or if the daemon is dead, the array is
/// removed anyway.
pub fn down(base: &Path, name: &str, force: bool) -> Result<bool, ArrayError> {
    host::check("array down")?;
    let home = Home::lock(base, name)?;
    let Some(state) = home.load()? else {
        home.remove()?;
        return Ok(false);
    };
    // The data is about to be removed, so faults end and requests complete at once: no step waits for emulated disks.
    let works = state.phase == Phase::Up
        && ask(&home.directory, &Ask::Inject(Fault::Clear)).is_ok()
        && ask(&home.directory, &Ask::Inject(Fault::Instant)).is_ok();
    if works {
        progress(&format!("unmounting {}", state.mount.display()));
    } else {
        kill(&home, &state);
    }
    if let Err(e) = dismantle(&home, &state, force || !works) {
        _ = ask(&home.directory, &Ask::Inject(Fault::Clear));
        return Err(e);
    }
    discard(home, &state)?;
    Ok(true)
}

/// Removes the data, the state, and the mount point if `up` made it.
fn discard(home: Home, state: &State) -> Result<(), ArrayError> {
    for (path, result) in [
        (&state.image, fs::remove_file(&state.image)),
        (&state.mount, if state.made_mount { fs::remove_dir(&state.mount) } else { Ok(()) }),
    ] {
        match result {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(e).doing(|| format!("remove {}", path.display()));
            }
            _ => {}
        }
    }
    home.remove()
}

/// Removes everything that runs or is mounted. The data stays.
fn dismantle(home: &Home, state: &State, lazily: bool) -> Result<(), ArrayError> {
    let fuse = state::fuse(&home.directory);
    if state.fs != FileSystem::None {
        host::unmount(&state.mount, lazily)?;
    }
    host::detach(&fuse, state.device.as_deref())?;
    if state::alive(&home.directory) {
        _ = ask(&home.directory, &Ask::Stop);
    }
    // Aborts the connection of a daemon that does not respond. The daemon ends when it notices.
    host::unmount(&fuse, true)?;
    let deadline = Instant::now() + FAREWELL;
    while state::alive(&home.directory) {
        if Instant::now() > deadline {
            kill(home, state);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    if let Some(pid) = state.pid.and_then(rustix::process::Pid::from_raw) {
        // If this process started the daemon, it must reap it.
        _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::NOHANG);
    }
    Ok(())
}

/// Kills the daemon, if the process of that number is still the daemon of this array.
fn kill(home: &Home, state: &State) {
    let Some(pid) = state.pid else { return };
    let directory = home.directory.as_os_str().as_encoded_bytes();
    let is_ours = fs::read(format!("/proc/{pid}/cmdline"))
        .is_ok_and(|line| line.split(|b| *b == 0).any(|argument| argument == directory));
    if let Some(pid) = rustix::process::Pid::from_raw(pid).filter(|_| is_ours) {
        _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}

/// Cuts the power and removes the devices. The surviving data stays for the next [`up`].
///
/// Returns the numbers of unflushed blocks of 4 KiB that were lost and that were kept.
///
/// # Errors
/// [`ArrayError`] if there is no such array or its daemon does not answer.
pub fn cut(base: &Path, name: &str, seed: u64) -> Result<(u64, u64), ArrayError> {
    host::check("array cut")?;
    let home = Home::lock(base, name)?;
    let Some(mut state) = home.load()? else {
        home.remove()?;
        return Err(ArrayError::Unknown(name.to_owned()));
    };
    let losses = match query(&home.directory, name, &Ask::Cut { seed })? {
        Answer::Cut(losses) => (losses.lost, losses.kept),
        other => return Err(unexpected(name, other)),
    };
    state.phase = Phase::Cut;
    home.save(&state)?;
    dismantle(&home, &state, true)?;
    Ok(losses)
}

/// Injects a fault, or ends all faults with [`Fault::Clear`].
///
/// # Errors
/// [`ArrayError`] if there is no such array, or its daemon does not answer or refuses.
pub fn inject(base: &Path, name: &str, fault: Fault) -> Result<(), ArrayError> {
    let directory = base.join(name);
    state::load(&directory)?.ok_or_else(|| ArrayError::Unknown(name.to_owned()))?;
    match query(&directory, name, &Ask::Inject(fault))? {
        Answer::Done => Ok(()),
        other => Err(unexpected(name, other)),
    }
}

/// Returns the recorded state of an array, and the status that its daemon reports; `None` if no daemon answers.
///
/// # Errors
/// [`ArrayError::Unknown`] if there is no such array.
pub fn status(base: &Path, name: &str) -> Result<(State, Option<Status>), ArrayError> {
    let directory = base.join(name);
    let state = state::load(&directory)?.ok_or_else(|| ArrayError::Unknown(name.to_owned()))?;
    let status = match ask(&directory, &Ask::Status) {
        Ok(Answer::Status(status)) => Some(*status),
        _ => None,
    };
    Ok((state, status))
}

/// Injects a fault through the control socket. Fails if the daemon refuses the fault or does not answer.
fn tell(home: &Home, state: &State, fault: Fault) -> Result<(), ArrayError> {
    match query(&home.directory, &state.name, &Ask::Inject(fault))? {
        Answer::Done => Ok(()),
        other => Err(unexpected(&state.name, other)),
    }
}

fn query(directory: &Path, name: &str, question: &Ask) -> Result<Answer, ArrayError> {
    ask(directory, question).map_err(|e| ArrayError::Dead(name.to_owned(), e))
}

/// Returns the error for a refusal of the daemon, or for an answer that does not fit the request.
fn unexpected(name: &str, answer: Answer) -> ArrayError {
    let why = if let Answer::Refused(why) = answer {
        why
    } else {
        "its daemon sent an unexpected answer; take the array down and up again".to_owned()
    };
    ArrayError::Refused(name.to_owned(), why)
}
