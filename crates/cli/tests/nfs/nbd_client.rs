//! Tests of cache devices and backing devices that are exports of NBD servers: nbdkit, and another Forebay.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::*;
use crate::volumes::{CACHE, ESHUTDOWN, FAST_ZERO, FLUSH, FUA, NOT_SUPPORTED, Nbd, READ, TRIM, WRITE_ZEROES};

const BLOCK: usize = 4096;
/// The size of a cache device in bytes.
const LEG: usize = 96 << 20;
/// The size of a backing device in bytes. Its last block is not whole.
const SIZE: usize = (16 << 20) + 3 * 512;

pub(crate) type Words = [&'static [&'static str]; 2];

pub(crate) const PLAIN: Words = [&[], &[]];
/// A filter that takes WRITE_ZEROES away.
const NO_ZEROES: Words = [&["--filter=nozero"], &["zeromode=none"]];
/// A filter that keeps writes in memory until a FLUSH.
const FORGETFUL: Words = [&["--filter=cache"], &["cache=writeback"]];

/// Another plugin, whose FLUSH may fail; see [`Export::fail_flushes`].
pub(crate) const FAILING: Words = [&[], &["eval"]];
/// The plugin of [`FAILING`]: commands of the shell for the file `IMAGE`.
const SHELL: [&str; 8] = [
    "eval",
    "get_size=stat -c %s $IMAGE",
    "pread=dd if=$IMAGE skip=$4 count=$3 iflag=skip_bytes,count_bytes status=none",
    "can_write=exit 0",
    "pwrite=dd of=$IMAGE seek=$4 oflag=seek_bytes conv=notrunc status=none",
    "can_flush=exit 0",
    "flush=if test -e $IMAGE.fails; then echo EIO it fails >&2; exit 1; fi",
    "can_multi_conn=exit 0",
];

/// A nbdkit with a file, on a Unix socket.
pub(crate) struct Export {
    home: tempfile::TempDir,
    /// Words in front of the plugin and behind it.
    words: Words,
    child: Option<Child>,
}

impl Export {
    fn start(words: Words, size: usize) -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::File::create(home.path().join("image")).unwrap().set_len(size as u64).unwrap();
        let mut export = Export { home, words, child: None };
        export.again();
        export
    }

    fn socket(&self) -> PathBuf {
        self.home.path().join("sock")
    }

    fn image(&self) -> PathBuf {
        self.home.path().join("image")
    }

    fn url(&self) -> String {
        format!("nbd+unix:///leg?socket={}", self.socket().display())
    }

    fn again(&mut self) {
        let _ = std::fs::remove_file(self.socket());
        let mut command = Command::new("nbdkit");
        command.args(["-f", "--exit-with-parent", "-U"]).arg(self.socket());
        if self.words == FAILING {
            command.args(SHELL).env("IMAGE", self.image());
        } else {
            command.args(self.words[0]).arg("file").arg(self.image()).args(self.words[1]);
        }
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("nbdkit is installed by `cargo x setup`");
        self.child = Some(child);
        wait_for(|| std::os::unix::net::UnixStream::connect(self.socket()).is_ok());
    }

    /// Sends a signal. After [`Signal::STOP`] no thread of the server runs any more.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(self.child.as_ref().unwrap());
        kill_process(pid, signal).unwrap();
        let is_stopped = |task: std::fs::DirEntry| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
        };
        let tasks = || std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())).unwrap();
        wait_for(|| signal != Signal::STOP || tasks().flatten().all(is_stopped));
    }

    /// Has each FLUSH fail with EIO from now on, or succeed again. Suits [`FAILING`] only.
    pub(crate) fn fail_flushes(&self, fails: bool) {
        let sign = self.home.path().join("image.fails");
        if fails { std::fs::write(sign, "").unwrap() } else { std::fs::remove_file(sign).unwrap() }
    }

    fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
    }
}

/// Starts a server with a cache file and another device.
fn with_leg(url: &str, home: &Path) -> Server {
    let own = home.join("own");
    let flags =
        ["--mode", "write-back", "--cache-size", "64MiB", "--cache", own.to_str().unwrap(), "--cache", url];
    Serve::unsquashed().flags(&flags).start()
}

fn effective(server: &Server) -> String {
    server.status()["effective_mode"].as_str().unwrap().to_owned()
}

fn health(server: &Server) -> String {
    server.status()["health"].to_string()
}

#[test]
fn an_nbd_server_that_dies_under_load_costs_nothing_and_comes_back() {
    let (home, mut export) = (tempfile::tempdir().unwrap(), Export::start(PLAIN, LEG));
    let url = export.url();
    let mut server = with_leg(&url, home.path());
    assert_eq!(effective(&server), "write-back");
    let mut copies = Copies::new(71);
    copies.change(&mut server.connect(), 50);
    let made = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (address, copies, made) = (&server, &mut copies, &made);
        let load = scope.spawn(move || {
            let mut c = address.connect();
            // No change may fail.
            while made.load(Ordering::SeqCst) < 400 {
                copies.change(&mut c, 1);
                made.fetch_add(1, Ordering::SeqCst);
            }
            copies.check(&mut c);
        });
        wait_for(|| made.load(Ordering::SeqCst) >= 100 || load.is_finished());
        export.kill();
        load.join().unwrap();
    });
    assert_eq!(effective(&server), "write-through");
    let events = server.ask(&["events"]);
    assert!(events.contains("device-lost") && events.contains(&url), "{events}");
    assert!(health(&server).contains(&url), "{}", health(&server));
    copies.check_directory(&server.data);

    // The export comes back as it was when the connection was lost.
    export.again();
    server.ask(&["pool", "add", &url]);
    copies.change(&mut server.connect(), 20);
    wait_for(|| effective(&server) == "write-back");
    assert_eq!(server.status()["health"]["state"], "OK", "{}", health(&server));
    copies.change(&mut server.connect(), 50);
    server.kill();
    server.start();
    assert_eq!(effective(&server), "write-back");
    copies.check(&mut server.connect());

    // The other leg is enough for a start.
    copies.change(&mut server.connect(), 30);
    server.kill();
    export.kill();
    server.start();
    assert_eq!(effective(&server), "write-through");
    assert!(health(&server).contains(&url), "{}", health(&server));
    copies.check(&mut server.connect());
    server.flush();
    copies.check_directory(&server.data);
}

#[test]
fn an_nbd_server_that_hangs_is_given_up_as_a_cache_device_and_no_change_fails() {
    let (home, export) = (tempfile::tempdir().unwrap(), Export::start(PLAIN, LEG));
    let server = with_leg(&export.url(), home.path());
    let mut copies = Copies::new(74);
    copies.change(&mut server.connect(), 50);
    assert_eq!(effective(&server), "write-back");
    export.signal(Signal::STOP);
    copies.change(&mut server.connect(), 50);
    wait_for(|| effective(&server) == "write-through");
    let events = server.ask(&["events"]);
    assert!(events.contains("device-late") && events.contains(&export.url()), "{events}");
    copies.check(&mut server.connect());
    server.flush();
    copies.check_directory(&server.data);
}

#[test]
fn the_leg_on_an_nbd_server_is_enough_after_the_loss_of_the_other() {
    let (home, export) = (tempfile::tempdir().unwrap(), Export::start(PLAIN, LEG));
    let mut server = with_leg(&export.url(), home.path());
    let mut copies = Copies::new(72);
    copies.change(&mut server.connect(), 100);
    server.kill();
    std::fs::remove_file(home.path().join("own")).unwrap();
    server.start();
    copies.check(&mut server.connect());
    server.flush();
    copies.check_directory(&server.data);
    // A device that is named twice is one device.
    let again = server.try_ask(&["pool", "add", &export.url().replace("leg", "%6ceg")]);
    let told = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(!again.status.success() && told.contains("the same cache device"), "{told}");
    let wrong = server.try_ask(&["pool", "add", "nbds://h/x"]);
    let told = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(!wrong.status.success() && told.contains("write nbd://HOST"), "{told}");
}

#[test]
fn a_volume_of_another_server_is_a_cache_device() {
    let other = Serve::unsquashed().cached().flags(&["--nbd", "127.0.0.1:0"]).start();
    let image = other.home().join("leg.img");
    std::fs::File::create(&image).unwrap().set_len(LEG as u64).unwrap();
    let created = other.ask(&["volume", "create", "leg", "--backing", image.to_str().unwrap(), "--json"]);
    let created: serde_json::Value = serde_json::from_str(&created).unwrap();
    let home = tempfile::tempdir().unwrap();
    let url = format!("nbd://{}/leg", created["nbd"].as_str().unwrap());
    let mut server = with_leg(&url, home.path());
    let mut copies = Copies::new(73);
    copies.change(&mut server.connect(), 100);
    server.kill();
    std::fs::remove_file(home.path().join("own")).unwrap();
    server.start();
    copies.check(&mut server.connect());
    server.flush();
    copies.check_directory(&server.data);
    let devices = server.ask(&["pool", "status", "--json"]);
    assert!(devices.contains(&url), "{devices}");
}

/// A server with a volume in front of an export.
pub(crate) struct Rig {
    pub(crate) server: Server,
    pub(crate) export: Export,
    pub(crate) expected: Vec<u8>,
}

impl Rig {
    pub(crate) fn new(words: Words) -> Self {
        Rig { expected: vec![0; SIZE], ..Rig::with(Export::start(words, SIZE)) }
    }

    fn with(export: Export) -> Self {
        Rig::on(Serve::unsquashed(), export)
    }

    fn on(serve: Serve, export: Export) -> Self {
        let server = serve.cached().flags(&["--nbd", "127.0.0.1:0"]).start();
        let rig = Rig { server, export, expected: Vec::new() };
        rig.create();
        rig
    }

    fn create(&self) {
        self.server.ask(&["volume", "create", "far", "--backing", &self.export.url()]);
    }

    fn shown(&self) -> serde_json::Value {
        serde_json::from_str(&self.server.ask(&["volume", "show", "far", "--json"])).unwrap()
    }

    pub(crate) fn open(&self) -> Nbd {
        Nbd::open(self.shown()["nbd"].as_str().unwrap(), "far").unwrap()
    }

    pub(crate) fn write(&mut self, nbd: &mut Nbd, flags: u16, offset: usize, byte: u8, len: usize) {
        nbd.write(flags, offset, byte, len);
        self.expected[offset..offset + len].fill(byte);
    }

    #[track_caller]
    pub(crate) fn check_image(&self) {
        let found = std::fs::read(self.export.image()).unwrap();
        let differs = found.iter().zip(&self.expected).position(|(found, expected)| found != expected);
        assert_eq!(differs, None);
    }
}

#[test]
fn a_volume_in_front_of_an_export_is_there_after_a_kill_and_reaches_the_export() {
    let mut rig = Rig::new(PLAIN);
    let mut nbd = rig.open();
    assert_eq!(nbd.size, SIZE as u64);
    for (flags, offset, byte, len) in
        [(FUA, 0, 1, BLOCK), (0, 5000, 2, 513), (0, 40_960, 3, 20_000), (0, SIZE - 700, 4, 700)]
    {
        rig.write(&mut nbd, flags, offset, byte, len);
    }
    rig.write(&mut nbd, 0, 1 << 20, 5, 4 << 20);
    nbd.change(WRITE_ZEROES, FUA, 1 << 20, 1 << 20, &[]);
    rig.expected[1 << 20..2 << 20].fill(0);
    nbd.change(TRIM, 0, 8 << 20, 1 << 20, &[]);
    nbd.flush();
    rig.server.kill();
    rig.server.start();
    rig.open().holds(&rig.expected);
    rig.server.ask(&["volume", "flush", "far"]);
    rig.check_image();
    let twice = rig.server.try_ask(&["volume", "create", "other", "--backing", &rig.export.url()]);
    assert!(String::from_utf8_lossy(&twice.stderr).contains("volume far already"));
    let own = format!("nbd://{}/far", rig.shown()["nbd"].as_str().unwrap());
    let own = rig.server.try_ask(&["volume", "create", "other", "--backing", &own]);
    assert!(String::from_utf8_lossy(&own.stderr).contains("this server itself"));
    rig.server.restart();
    rig.open().holds(&rig.expected);
    rig.server.ask(&["volume", "remove", "far"]);
    rig.check_image();
}

/// A client that clears a whole disk first asks for zeros with FAST_ZERO, and goes without them if that is refused.
#[test]
fn fast_zeros_are_refused_where_the_device_would_get_them_as_data() {
    let mut rig = Rig::new(NO_ZEROES);
    let mut nbd = rig.open();
    rig.write(&mut nbd, FUA, 0, 1, 1 << 20);
    for len in [BLOCK, 1 << 20] {
        assert_eq!(nbd.call(WRITE_ZEROES, FAST_ZERO, 0, len, &[]).0, NOT_SUPPORTED);
    }
    nbd.holds(&rig.expected);
    nbd.change(WRITE_ZEROES, FUA, 0, 1 << 20, &[]);
    rig.expected[..1 << 20].fill(0);
    nbd.holds(&rig.expected);
    rig.server.ask(&["volume", "remove", "far"]);
    rig.check_image();
}

#[test]
fn a_server_that_forgets_unflushed_writes_gets_them_again() {
    let mut rig = Rig::new(FORGETFUL);
    for round in 0..4_u8 {
        let mut nbd = rig.open();
        for n in 0..64 {
            let at = (usize::from(round) * 31 + n * 7) % 400 * 8 * BLOCK;
            rig.write(&mut nbd, 0, at, (round * 64).wrapping_add(n as u8).max(1), 3 * BLOCK);
        }
        nbd.flush();
        let asker = rig.server.asker();
        let flush = std::thread::spawn(move || asker.try_ask(&["volume", "flush", "far"]));
        if round % 2 == 0 {
            wait_for(|| {
                rig.shown()["dirty_bytes"].as_u64().unwrap() < 64 * 3 * BLOCK as u64 || flush.is_finished()
            });
        }
        rig.export.kill();
        wait_for(|| health(&rig.server).contains("no connection"));
        rig.export.again();
        // The flush may report the loss.
        flush.join().unwrap();
        nbd.holds(&rig.expected);
    }
    wait_for(|| rig.server.try_ask(&["volume", "flush", "far"]).status.success());
    assert_eq!(rig.shown()["dirty_bytes"], 0);
    rig.open().holds(&rig.expected);
    // Nothing that was flushed is lost with the connection.
    rig.export.kill();
    rig.check_image();
    let events = rig.server.ask(&["events"]);
    assert!(events.contains("volume-disconnected") && events.contains("volume-connected"), "{events}");
}

#[test]
fn a_flush_behind_a_lost_connection_fails_until_the_data_is_written_again() {
    let mut rig = Rig::new(FORGETFUL);
    rig.server.ask(&["volume", "mode", "far", "write-through"]);
    let mut nbd = rig.open();
    nbd.write(0, 0, 1, BLOCK);
    nbd.flush();
    // This discard was answered, and the server forgets it.
    nbd.change(TRIM, 0, 0, BLOCK, &[]);
    rig.export.kill();
    rig.export.again();
    for _ in 0..2 {
        assert_ne!(nbd.call(FLUSH, 0, 0, 0, &[]).0, 0, "the discard is lost");
    }
    rig.write(&mut nbd, 0, 0, 2, BLOCK);
    nbd.flush();
    rig.export.kill();
    rig.check_image();
}

#[test]
fn a_write_past_the_log_is_answered_when_a_remote_device_cannot_forget_it() {
    let mut rig = Rig::new(FORGETFUL);
    rig.server.ask(&["volume", "mode", "far", "write-through"]);
    let mut nbd = rig.open();
    rig.write(&mut nbd, 0, 0, 2, BLOCK);
    rig.export.kill();
    rig.export.again();
    nbd.flush();
    rig.export.kill();
    rig.check_image();
}

#[test]
fn a_removal_that_cannot_be_recorded_leaves_the_volume_in_service() {
    let mut rig = Rig::new(PLAIN);
    let mut nbd = rig.open();
    rig.write(&mut nbd, FUA, 0, 1, 8 * BLOCK);
    let obstacle = rig.server.state.join("volumes.new");
    // The NBD server holds the destaging up, until the record cannot be written any more.
    rig.export.signal(Signal::STOP);
    let output = std::thread::scope(|scope| {
        let server = &rig.server;
        let removing = scope.spawn(move || server.try_ask(&["volume", "remove", "far"]));
        wait_for(|| nbd.call(FLUSH, 0, 0, 0, &[]).0 != 0);
        std::fs::create_dir(&obstacle).unwrap();
        rig.export.signal(Signal::CONT);
        removing.join().unwrap()
    });
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("volume far stays: the state directory"), "{told}");
    rig.write(&mut nbd, FUA, BLOCK, 2, BLOCK);
    std::fs::remove_dir(&obstacle).unwrap();
    rig.server.kill();
    rig.server.start();
    rig.open().holds(&rig.expected);
    rig.server.ask(&["volume", "remove", "far"]);
    rig.check_image();
}

#[test]
fn cached_blocks_of_a_volume_are_served_while_its_nbd_server_hangs() {
    let mut rig = Rig::new(PLAIN);
    let mut nbd = rig.open();
    rig.write(&mut nbd, FUA, 0, 1, 8 * BLOCK);
    rig.export.signal(Signal::STOP);
    let asker = rig.server.asker();
    let flush = std::thread::spawn(move || asker.try_ask(&["volume", "flush", "far"]));
    wait_for(|| rig.server.ask(&["events"]).contains("backing-late"));
    assert!(health(&rig.server).contains("does not answer"), "{}", health(&rig.server));
    assert!(nbd.read(0, 8 * BLOCK) == rig.expected[..8 * BLOCK]);
    rig.write(&mut nbd, FUA, BLOCK, 2, BLOCK);
    rig.export.signal(Signal::CONT);
    // The flush may report the delay.
    flush.join().unwrap();
    wait_for(|| rig.server.try_ask(&["volume", "flush", "far"]).status.success());
    nbd.holds(&rig.expected);
    rig.check_image();
}

#[test]
fn a_removal_ends_long_requests_between_their_pieces() {
    const LONG: usize = 3 << 30;
    let rig = Rig::with(Export::start(PLAIN, LONG));
    for kind in [CACHE, TRIM, WRITE_ZEROES] {
        let (mut long, mut nbd) = (rig.open(), rig.open());
        rig.export.signal(Signal::STOP);
        long.begin(kind, 0, LONG);
        std::thread::scope(|scope| {
            let server = &rig.server;
            let removing = scope.spawn(move || server.ask(&["volume", "remove", "far"]));
            wait_for(|| nbd.call(FLUSH, 0, 0, 0, &[]).0 == ESHUTDOWN);
            rig.export.signal(Signal::CONT);
            removing.join().unwrap();
        });
        assert_eq!(long.error(), ESHUTDOWN, "all pieces of the request {kind} were carried out");
        rig.create();
    }
}

/// The read and the destaging wait for a device that does not answer.
#[test]
fn a_removal_that_gives_up_does_not_wait_for_a_silent_device() {
    let mut rig = Rig::new(PLAIN);
    let mut nbd = rig.open();
    rig.write(&mut nbd, 0, 0, 1, BLOCK);
    rig.export.signal(Signal::STOP);
    nbd.begin(READ, 1 << 20, BLOCK);
    let stays = rig.server.try_ask(&["volume", "remove", "far"]);
    let told = String::from_utf8_lossy(&stays.stderr).into_owned();
    assert!(!stays.status.success() && told.contains("--give-up"), "{told}");
    assert!(rig.open().read(0, BLOCK) == [1; BLOCK], "the volume stays in service");
    rig.server.ask(&["volume", "remove", "far", "--give-up"]);
    assert_eq!(rig.server.ask(&["volume", "list", "--json"]).trim(), "[]");
    // The silent device holds up no other volume.
    let other = rig.server.home().join("other");
    std::fs::write(&other, vec![0; BLOCK]).unwrap();
    rig.server.ask(&["volume", "create", "other", "--backing", other.to_str().unwrap()]);
    rig.export.signal(Signal::CONT);
    // The request in progress ends, and with it the use of the device.
    nbd.error();
    rig.server.restart();
    assert!(rig.server.ask(&["volume", "list"]).contains("other"));
}

#[test]
fn a_removal_that_waits_for_its_device_holds_up_no_other_verb_and_no_stop() {
    let mut rig = Rig::new(PLAIN);
    let (mut nbd, mut waiting) = (rig.open(), rig.open());
    rig.write(&mut nbd, 0, 0, 1, BLOCK);
    rig.export.signal(Signal::STOP);
    waiting.begin(READ, 1 << 20, BLOCK);
    let asker = rig.server.asker();
    let removing = std::thread::spawn(move || asker.try_ask(&["volume", "remove", "far"]));
    wait_for(|| nbd.call(FLUSH, 0, 0, 0, &[]).0 == ESHUTDOWN);
    let other = rig.server.home().join("other");
    std::fs::write(&other, vec![0; BLOCK]).unwrap();
    rig.server.ask(&["volume", "create", "other", "--backing", other.to_str().unwrap()]);
    rig.server.signal(Signal::TERM);
    wait_for(|| removing.is_finished());
    rig.export.signal(Signal::CONT);
    assert!(!removing.join().unwrap().status.success(), "the removal is not over");
    let (status, said) = rig.server.wait();
    assert!(status.success(), "{status}: {said}");
    rig.server.start();
    rig.open().holds(&rig.expected);
}

/// The destaging in progress, a flush and a read wait for a device that does not answer.
#[test]
fn a_stop_ends_though_the_device_of_a_volume_does_not_answer() {
    // The stop waits no longer than this for the read.
    let serve = "[limits]\ndrain_timeout = '1s'\n[[export]]\npath = '@/data'\nname = '/'\n";
    let rig = Rig::on(Serve::new().exports(serve), Export::start(PLAIN, SIZE));
    let mut rig = Rig { expected: vec![0; SIZE], ..rig };
    let (mut nbd, mut waiting) = (rig.open(), rig.open());
    rig.write(&mut nbd, FUA, 0, 1, 8 * BLOCK);
    rig.export.signal(Signal::STOP);
    waiting.begin(READ, 1 << 20, BLOCK);
    let asker = rig.server.asker();
    let flush = std::thread::spawn(move || asker.try_ask(&["volume", "flush", "far"]));
    wait_for(|| rig.server.ask(&["events"]).contains("backing-late"));
    rig.write(&mut nbd, 0, 16 * BLOCK, 2, BLOCK);
    rig.server.signal(Signal::TERM);
    let (status, said) = rig.server.wait();
    assert!(status.success() && said.contains("36 KiB stay on the cache devices"), "{status}: {said}");
    assert!(!flush.join().unwrap().status.success());
    rig.export.signal(Signal::CONT);
    rig.server.start();
    rig.open().holds(&rig.expected);
    rig.server.ask(&["volume", "remove", "far"]);
    rig.check_image();
}

#[test]
fn a_volume_waits_for_an_nbd_server_that_starts_later() {
    let mut rig = Rig::new(PLAIN);
    let mut nbd = rig.open();
    rig.write(&mut nbd, FUA, 0, 1, 8 * BLOCK);
    rig.server.kill();
    rig.export.kill();
    rig.server.start();
    assert!(health(&rig.server).contains("no connection"), "{}", health(&rig.server));
    // Cached data is served without the NBD server.
    let mut nbd = rig.open();
    assert!(nbd.read(0, 8 * BLOCK) == rig.expected[..8 * BLOCK]);
    rig.write(&mut nbd, FUA, BLOCK, 2, BLOCK);
    rig.export.again();
    nbd.holds(&rig.expected);
    wait_for(|| rig.server.try_ask(&["volume", "flush", "far"]).status.success());
    rig.check_image();
    assert!(!health(&rig.server).contains("no connection"));
}
