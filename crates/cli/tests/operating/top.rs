//! A test of `forebay top` in a terminal emulator, against a real server.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{LocalModes, tcgetattr};

use crate::unattended::Unattended;

/// A program in a terminal of 80 by 24 characters.
struct Emulated {
    child: Child,
    master: File,
    slave: OwnedFd,
    screen: vt100::Parser,
}

impl Emulated {
    fn start(mut command: Command) -> Self {
        let (mut master, mut slave) = (-1, -1);
        let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the pointers are to live values or null, which openpty(3) permits.
        let opened = unsafe {
            libc::openpty(
                &raw mut master,
                &raw mut slave,
                std::ptr::null_mut(),
                std::ptr::null(),
                &raw const size,
            )
        };
        assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: both descriptors are open, and nothing else owns them.
        let (master, slave) = unsafe { (File::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let end = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(end()).stdout(end()).stderr(end());
        // A session of its own has no other terminal whose size counts.
        // SAFETY: setsid(2) is safe between fork and exec.
        unsafe { command.pre_exec(|| rustix::process::setsid().map(drop).map_err(Into::into)) };
        let [rows, columns] = [24, 80].map(|count| NonZero::new(count).unwrap());
        let screen = vt100::Parser::new(rows, columns, 0);
        Emulated { child: command.spawn().unwrap(), master, slave, screen }
    }

    /// Reads what the program draws until the screen is as wanted. Returns the screen.
    #[track_caller]
    fn until(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let contents = self.screen.screen().contents();
            if wanted(&contents) {
                return contents;
            }
            assert!(begun.elapsed().as_secs() < 60, "the screen is not as wanted:\n{contents}");
            let mut polled = [PollFd::new(&self.master, PollFlags::IN)];
            let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
            assert_eq!(poll(&mut polled, Some(&minute)), Ok(1), "nothing more is drawn:\n{contents}");
            self.read();
        }
    }

    /// Reads what a program that has ended has drawn last.
    fn read_rest(&mut self) {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        while poll(&mut [PollFd::new(&self.master, PollFlags::IN)], Some(&now)) == Ok(1) {
            self.read();
        }
    }

    fn read(&mut self) {
        let mut bytes = [0; 4096];
        let count = self.master.read(&mut bytes).unwrap();
        self.screen.process(&bytes[..count]);
    }

    fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(self.slave.as_fd()).unwrap().local_modes.contains(LocalModes::ICANON)
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a command that shows a server live, with an update each `interval` seconds.
fn top_each(server: &Unattended, interval: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(["top", "--interval", interval, "--state-dir"]).arg(server.state()).env("TERM", "xterm");
    command
}

/// Returns a command that shows a server live.
fn top(server: &Unattended) -> Command {
    top_each(server, "0.05")
}

#[test]
fn top_has_rows_of_the_cache_and_its_devices() {
    let caches = tempfile::TempDir::new().unwrap();
    let [first, second] = ["a", "b"].map(|name| caches.path().join(name).to_str().unwrap().to_owned());
    let flags = ["--cache-in-memory", "--cache-size", "64MiB", "--cache", &first, "--cache", &second];
    let server = Unattended::start(&flags, Stdio::null());
    let mut terminal = Emulated::start(top(&server));
    let rows = ["dirty ", "destage MiB/s", "reads from memory", "to the SSDs"];
    terminal.until(|screen| rows.iter().all(|row| screen.contains(row)));
    terminal.press("5");
    terminal.until(|screen| screen.contains("DEVICE▼") && screen.matches("healthy").count() == 2);
    let has_rates = |line: &str| line.contains("healthy") && !line.trim_end().ends_with('-');
    terminal.until(|screen| screen.lines().filter(|line| has_rates(line)).count() == 2);
    terminal.press("q");
    assert!(terminal.child.wait().unwrap().success());
    server.stop();
}

#[test]
fn top_runs_in_a_terminal_and_restores_it() {
    let server = Unattended::start(&["--mode", "pass-through"], Stdio::null());
    let mut terminal = Emulated::start(top(&server));
    let screen = terminal.until(|screen| screen.contains("q quits"));
    assert!(screen.contains("syncs/s") && !screen.contains("dirty"), "there is no cache: {screen}");
    assert!(screen.starts_with(" 1 Overview "), "{screen}");
    assert!(screen.contains("OK  mode pass-through") && screen.contains("ops/s"), "{screen}");
    assert!(terminal.is_raw() && terminal.screen.screen().alternate_screen());

    terminal.press("3");
    terminal.until(|screen| screen.contains("EXPORT▼"));
    terminal.press("s");
    terminal.until(|screen| screen.contains("OPS/s▼") && screen.contains("/data"));
    terminal.press("/nowhere\r");
    terminal.until(|screen| screen.contains("filter: nowhere  0 of 1 rows"));
    terminal.press("/\x7f\x7f\x7f\x7f\x7f\x7f\x7fdata\r");
    terminal.until(|screen| screen.contains("filter: data  1 of 1 rows"));
    terminal.press("4");
    terminal.until(|screen| screen.contains("No file has been used since the server started."));
    terminal.press("p");
    terminal.until(|screen| screen.contains("PAUSED"));
    terminal.press("p?");
    terminal.until(|screen| screen.contains("Help") && !screen.contains("PAUSED"));

    // The view survives its server, and continues with the next one.
    let dir = server.stop();
    terminal.until(|screen| screen.contains("NO ANSWER, last figures"));
    let server = Unattended::start_in(dir, &["--mode", "pass-through"], Stdio::null());
    terminal.until(|screen| screen.contains("OK  mode pass-through"));

    terminal.press("q");
    assert!(terminal.child.wait().unwrap().success());
    terminal.read_rest();
    assert!(!terminal.is_raw(), "the terminal takes whole lines again");
    let screen = terminal.screen.screen();
    assert!(!screen.alternate_screen() && !screen.hide_cursor());
    server.stop();
}

#[test]
fn a_signal_restores_the_terminal_before_it_ends_top() {
    let server = Unattended::start(&["--mode", "pass-through"], Stdio::null());
    for signal in [Signal::TERM, Signal::HUP, Signal::INT] {
        // No update ends the wait for a key.
        let mut terminal = Emulated::start(top_each(&server, "3600"));
        terminal.until(|screen| screen.contains("q quits"));
        assert!(terminal.is_raw());
        let pid = Pid::from_child(&terminal.child);
        kill_process(pid, signal).unwrap();
        assert_eq!(terminal.child.wait().unwrap().signal(), Some(signal.as_raw()));
        terminal.read_rest();
        assert!(!terminal.is_raw(), "the terminal takes whole lines again");
        let screen = terminal.screen.screen();
        assert!(!screen.alternate_screen() && !screen.hide_cursor());
    }
    server.stop();
}

#[test]
fn top_without_a_terminal_names_the_verb_for_files() {
    let output = crate::common::forebay(&["top"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(crate::common::text(&output.stderr).contains("forebay stat 1"));
}
