//! Tests of block volumes, over the NBD door.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;

use crate::harness::*;
use crate::tls::Certified;

const BLOCK: usize = 4096;
/// The size of a backing file: its last block is not whole.
const SIZE: usize = (4 << 20) + 3 * 512;

pub(crate) const READ: u16 = 0;
pub(crate) const WRITE: u16 = 1;
pub(crate) const FLUSH: u16 = 3;
pub(crate) const TRIM: u16 = 4;
pub(crate) const WRITE_ZEROES: u16 = 6;
pub(crate) const CACHE: u16 = 5;
/// No command of NBD.
const UNKNOWN: u16 = 99;
pub(crate) const FUA: u16 = 1;
pub(crate) const FAST_ZERO: u16 = 1 << 4;
/// The error ENOTSUP of the protocol.
pub(crate) const NOT_SUPPORTED: u32 = 95;

const EINVAL: u32 = 22;
pub(crate) const ESHUTDOWN: u32 = 108;

/// A client of NBD: fixed newstyle negotiation with NBD_OPT_GO, and simple replies.
pub(crate) struct Nbd {
    stream: TcpStream,
    pub(crate) size: u64,
}

impl Nbd {
    pub(crate) fn open(address: &str, name: &str) -> Option<Self> {
        let mut stream = TcpStream::connect(address).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        let mut go = 3_u32.to_be_bytes().to_vec();
        go.extend(b"IHAVEOPT");
        go.extend(7_u32.to_be_bytes());
        go.extend((name.len() as u32 + 6).to_be_bytes());
        go.extend((name.len() as u32).to_be_bytes());
        go.extend(name.as_bytes());
        go.extend([0; 2]);
        stream.write_all(&go).unwrap();
        let mut size = 0;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head).unwrap();
            let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            let mut data = vec![0; number(16) as usize];
            stream.read_exact(&mut data).unwrap();
            match number(12) {
                1 => return Some(Nbd { stream, size }),
                3 if data[..2] == [0, 0] => size = u64::from_be_bytes(data[2..10].try_into().unwrap()),
                3 => {}
                _ => return None,
            }
        }
    }

    /// Sends a request and returns its error, and its data for a READ.
    pub(crate) fn call(
        &mut self,
        kind: u16,
        flags: u16,
        offset: usize,
        len: usize,
        data: &[u8],
    ) -> (u32, Vec<u8>) {
        self.send(kind, flags, offset, len, data);
        let error = self.error();
        let mut data = vec![0; if kind == READ && error == 0 { len } else { 0 }];
        self.stream.read_exact(&mut data).unwrap();
        (error, data)
    }

    /// Sends a request.
    pub(crate) fn send(&mut self, kind: u16, flags: u16, offset: usize, len: usize, data: &[u8]) {
        let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
        request.extend(flags.to_be_bytes());
        request.extend(kind.to_be_bytes());
        request.extend(7_u64.to_be_bytes());
        request.extend((offset as u64).to_be_bytes());
        request.extend((len as u32).to_be_bytes());
        request.extend(data);
        self.stream.write_all(&request).unwrap();
    }

    /// Sends a request that waits for the backing device. When it is in progress, this returns.
    pub(crate) fn begin(&mut self, kind: u16, offset: usize, len: usize) {
        self.send(kind, 0, offset, len, &[]);
        self.send(UNKNOWN, 0, 0, 0, &[]);
        assert_eq!(self.error(), EINVAL);
    }

    /// Waits for a reply, and returns its error.
    pub(crate) fn error(&mut self) -> u32 {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).unwrap();
        assert_eq!(reply[..4], 0x6744_6698_u32.to_be_bytes());
        u32::from_be_bytes(reply[4..8].try_into().unwrap())
    }

    #[track_caller]
    pub(crate) fn read(&mut self, offset: usize, len: usize) -> Vec<u8> {
        let (error, data) = self.call(READ, 0, offset, len, &[]);
        assert_eq!(error, 0);
        data
    }

    #[track_caller]
    pub(crate) fn change(&mut self, kind: u16, flags: u16, offset: usize, len: usize, data: &[u8]) {
        assert_eq!(self.call(kind, flags, offset, len, data).0, 0);
    }

    #[track_caller]
    pub(crate) fn write(&mut self, flags: u16, offset: usize, byte: u8, len: usize) {
        self.change(WRITE, flags, offset, len, &vec![byte; len]);
    }

    #[track_caller]
    pub(crate) fn flush(&mut self) {
        self.change(FLUSH, 0, 0, 0, &[]);
    }

    #[track_caller]
    pub(crate) fn holds(&mut self, expected: &[u8]) {
        let found = self.read(0, expected.len());
        let differs = found.iter().zip(expected).position(|(found, expected)| found != expected);
        assert_eq!(differs.map(|at| (at, found[at], expected[at])), None);
    }
}

/// A server with a backing file full of one byte.
pub(crate) struct Rig {
    pub(crate) server: Server,
    pub(crate) image: PathBuf,
}

impl Rig {
    pub(crate) fn new() -> Self {
        let server = Serve::unsquashed().cached().flags(&["--nbd", "127.0.0.1:0"]).start();
        let image = server.home().join("disk.img");
        std::fs::write(&image, vec![7; SIZE]).unwrap();
        Rig { server, image }
    }

    pub(crate) fn volume(&self, words: &[&str]) -> serde_json::Value {
        let words = [&["volume"], words, &["--json"]].concat();
        serde_json::from_str(&self.server.ask(&words)).unwrap()
    }

    pub(crate) fn create(&self) -> Nbd {
        let backing = self.image.to_str().unwrap();
        let created = self.volume(&["create", "scratch", "--backing", backing]);
        assert_eq!(created["size_bytes"], SIZE);
        self.open().unwrap()
    }

    pub(crate) fn open(&self) -> Option<Nbd> {
        let shown = self.volume(&["show", "scratch"]);
        Nbd::open(shown["nbd"].as_str()?, "scratch")
    }

    #[track_caller]
    pub(crate) fn refused(&self, words: &[&str], says: &str) {
        let output = self.server.try_ask(&[&["volume"], words].concat());
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && told.contains(says), "{words:?}: {told}");
    }
}

#[test]
fn what_was_flushed_survives_a_kill_and_the_loss_of_a_cache_device() {
    let mut rig = Rig::new();
    let mut nbd = rig.create();
    assert_eq!(nbd.size, SIZE as u64);
    let mut expected = vec![7; SIZE];
    nbd.holds(&expected);
    // Whole blocks and parts of blocks, with FUA and with a flush afterwards.
    for (flags, offset, byte, len) in
        [(FUA, 0, 1, BLOCK), (0, 5000, 2, 513), (0, 40_960, 3, 20_000), (0, SIZE - 700, 4, 700)]
    {
        nbd.write(flags, offset, byte, len);
        expected[offset..offset + len].fill(byte);
    }
    nbd.change(WRITE_ZEROES, 0, 100_000, 9_000, &[]);
    expected[100_000..109_000].fill(0);
    nbd.change(WRITE_ZEROES, FUA, 1 << 20, 1 << 20, &[]);
    expected[1 << 20..2 << 20].fill(0);
    nbd.flush();
    nbd.holds(&expected);
    // Beyond the end.
    assert_ne!(nbd.call(READ, 0, SIZE - 1, 2, &[]).0, 0);
    assert_ne!(nbd.call(WRITE, 0, SIZE, 1, &[9]).0, 0);
    rig.server.kill();
    std::fs::remove_file(&rig.server.caches()[0]).unwrap();
    rig.server.start();
    rig.open().unwrap().holds(&expected);
    // The device is an ordinary one after the removal.
    rig.server.ask(&["volume", "remove", "scratch"]);
    assert!(std::fs::read(&rig.image).unwrap() == expected, "the file lacks changes");
    assert_eq!(rig.volume(&["list"]), serde_json::json!([]));
}

#[test]
fn a_removed_volume_gives_its_device_back_though_a_client_stays_connected() {
    let rig = Rig::new();
    let mut nbd = rig.create();
    nbd.write(0, 0, 1, BLOCK);
    rig.server.ask(&["volume", "remove", "scratch"]);
    let mut again = rig.create();
    again.write(FUA, 0, 2, BLOCK);
    for (kind, len) in [(READ, BLOCK), (FLUSH, 0), (TRIM, BLOCK), (WRITE_ZEROES, BLOCK)] {
        assert_eq!(nbd.call(kind, 0, 0, len, &[]).0, ESHUTDOWN);
    }
    assert_eq!(again.read(0, BLOCK + 1), [&[2; BLOCK][..], &[7]].concat());
}

#[test]
fn a_start_refuses_a_backing_file_that_is_in_an_export_by_now() {
    let mut rig = Rig::new();
    rig.create().write(0, 0, 1, BLOCK);
    rig.server.stop();
    let inside = rig.server.data.join("disk.img");
    std::fs::rename(&rig.image, &inside).unwrap();
    std::os::unix::fs::symlink(&inside, &rig.image).unwrap();
    rig.server.start();
    let shown = rig.volume(&["show", "scratch"]);
    assert_eq!(shown["state"], "refused");
    assert!(shown["reason"].as_str().unwrap().contains("inside of"), "{shown}");
    assert!(shown["dirty_bytes"].as_u64().unwrap() >= BLOCK as u64, "{shown}");
    assert!(rig.server.ask(&["events"]).contains("volume-refused"));
    rig.server.stop();
    assert!(std::fs::read(&inside).unwrap() == [7; SIZE], "a refused device was written");
    std::fs::rename(&inside, &rig.image).unwrap();
    rig.server.start();
    assert_eq!(rig.open().unwrap().read(0, BLOCK), [1; BLOCK]);
}

#[test]
fn an_answered_write_survives_a_kill_without_a_flush() {
    let mut rig = Rig::new();
    let mut nbd = rig.create();
    let mut expected = vec![7; SIZE];
    for turn in 0..3 {
        for block in 0..100 {
            let (offset, byte) = (block * 37 % 1024 * BLOCK, (1 + turn * 60 + block % 60) as u8);
            nbd.write(0, offset, byte, BLOCK);
            expected[offset..offset + BLOCK].fill(byte);
        }
        // Zeros are a write as well, and these go through the log.
        nbd.change(WRITE_ZEROES, 0, turn * 8 * BLOCK + 512, BLOCK, &[]);
        expected[turn * 8 * BLOCK + 512..][..BLOCK].fill(0);
        rig.server.kill();
        rig.server.start();
        nbd = rig.open().unwrap();
        nbd.holds(&expected);
    }
}

#[test]
fn another_file_in_place_of_a_backing_file_is_refused_and_not_written() {
    let mut rig = Rig::new();
    let mut nbd = rig.create();
    nbd.write(FUA, 0, 1, BLOCK);
    let mut expected = vec![7; SIZE];
    expected[..BLOCK].fill(1);
    nbd.holds(&expected);
    drop(nbd);
    rig.server.kill();
    let (away, foreign) = (rig.server.home().join("away.img"), vec![9; SIZE]);
    std::fs::rename(&rig.image, &away).unwrap();
    std::fs::write(&rig.image, &foreign).unwrap();
    rig.server.start();
    let shown = rig.volume(&["show", "scratch"]);
    assert_eq!(shown["state"], "refused");
    assert!(shown["reason"].as_str().unwrap().contains("another file"), "{shown}");
    assert!(shown["dirty_bytes"].as_u64().unwrap() >= BLOCK as u64, "{shown}");
    assert!(rig.open().is_none());
    assert!(rig.server.status()["health"].to_string().contains("scratch"));
    rig.refused(&["flush", "scratch"], "not served");
    rig.refused(&["remove", "scratch"], "--give-up");
    rig.server.stop();
    assert!(std::fs::read(&rig.image).unwrap() == foreign, "the other file was written");
    std::fs::rename(&away, &rig.image).unwrap();
    rig.server.start();
    rig.open().unwrap().holds(&expected);
    rig.volume(&["flush", "scratch"]);
    assert!(std::fs::read(&rig.image).unwrap() == expected, "the right file lacks changes");
}

#[test]
fn a_file_that_was_changed_after_a_clean_stop_is_read_as_it_is() {
    let mut rig = Rig::new();
    let mut nbd = rig.create();
    nbd.write(FUA, 0, 1, BLOCK);
    assert!(nbd.read(0, 3 * BLOCK)[BLOCK..].iter().all(|byte| *byte == 7));
    drop(nbd);
    rig.volume(&["flush", "scratch"]);
    rig.server.stop();
    let mut contents = std::fs::read(&rig.image).unwrap();
    assert_eq!((contents[0], contents[BLOCK]), (1, 7));
    contents[..2 * BLOCK].fill(5);
    // The inode stays.
    std::fs::OpenOptions::new().write(true).open(&rig.image).unwrap().write_all(&contents).unwrap();
    rig.server.start();
    rig.open().unwrap().holds(&contents);
    // Without a change the copies count.
    rig.server.restart();
    rig.open().unwrap().holds(&contents);
}

/// A server that ran without the device does not know what others did with it.
#[test]
fn a_file_that_was_changed_while_a_server_did_not_find_it_is_read_as_it_is() {
    let mut rig = Rig::new();
    let mut nbd = rig.create();
    nbd.write(FUA, 0, 1, 2 * BLOCK);
    drop(nbd);
    rig.volume(&["flush", "scratch"]);
    rig.server.stop();
    let elsewhere = rig.server.home().join("elsewhere.img");
    std::fs::rename(&rig.image, &elsewhere).unwrap();
    rig.server.start();
    assert!(rig.open().is_none(), "its file is not there");
    rig.server.stop();
    let mut contents = std::fs::read(&elsewhere).unwrap();
    contents[..2 * BLOCK].fill(5);
    // The inode stays.
    std::fs::OpenOptions::new().write(true).open(&elsewhere).unwrap().write_all(&contents).unwrap();
    std::fs::rename(&elsewhere, &rig.image).unwrap();
    rig.server.start();
    rig.open().unwrap().holds(&contents);
}

#[test]
fn verbs_of_volumes_do_what_they_say_or_give_the_reason() {
    let rig = Rig::new();
    let mut nbd = rig.create();
    let backing = rig.image.to_str().unwrap();
    rig.refused(&["create", "other", "--backing", backing], "volume scratch already");
    rig.refused(&["create", "scratch", "--backing", "/dev/null"], "already");
    rig.refused(&["create", "other", "--backing", "/dev/null"], "neither a block device");
    let cache = rig.server.caches()[0].display().to_string();
    rig.refused(&["create", "other", "--backing", &cache], "cache device");
    let inside = rig.server.data.join("image");
    std::fs::write(&inside, vec![0; BLOCK]).unwrap();
    rig.refused(&["create", "other", "--backing", inside.to_str().unwrap()], "inside of");
    rig.refused(&["show", "other"], "no volume other");
    let bad = rig.server.try_ask(&["volume", "show", "../x"]);
    assert_eq!(bad.status.code(), Some(2), "a name is checked as an argument");

    assert_eq!(rig.volume(&["mode", "scratch", "write-through"])["mode"], "write-through");
    nbd.write(0, 0, 1, BLOCK);
    nbd.flush();
    assert_eq!(rig.volume(&["show", "scratch"])["dirty_bytes"], 0);
    assert_eq!(std::fs::read(&rig.image).unwrap()[..BLOCK], [1; BLOCK]);
    assert_eq!(rig.volume(&["mode", "scratch", "server"])["mode"], "write-back");
    nbd.write(0, 0, 2, BLOCK);
    nbd.change(TRIM, 0, 2 * BLOCK, 4 * BLOCK, &[]);
    nbd.flush();
    let status = rig.server.status();
    let volume = &status["volumes"][0];
    assert_eq!((&volume["name"], &volume["state"]), (&"scratch".into(), &"serving".into()));
    assert!(volume["writes"].as_u64() == Some(2) && volume["flushes"].as_u64() >= Some(2), "{volume}");
    assert!(rig.server.ask(&["status"]).contains("scratch"));
    assert!(rig.server.ask(&["status", "--prometheus"]).contains("volume_dirty_bytes{volume=\"scratch\"}"));

    let grown = SIZE + 5 * 512;
    let size = grown.to_string();
    rig.refused(&["resize", "scratch", "4096"], "smaller");
    assert_eq!(rig.volume(&["resize", "scratch", &size])["size_bytes"], grown);
    let mut again = rig.open().unwrap();
    assert_eq!(again.size, grown as u64);
    again.write(FUA, grown - 512, 6, 512);
    assert_eq!(again.read(SIZE, 5 * 512)[4 * 512 - 1..4 * 512 + 1], [0, 6]);
    let line = rig.server.ask(&["volume", "attach", "scratch"]);
    assert!(line.starts_with("nbd-client 127.0.0.1 ") && line.contains("-N scratch"), "{line}");
    assert!(!line.contains("-b"), "XFS made on sectors of 512 bytes does not mount on larger ones: {line}");
    rig.server.ask(&["volume", "detach", "scratch"]);
    let contents = std::fs::read(&rig.image).unwrap();
    assert_eq!((contents.len(), contents[0], contents[grown - 1]), (grown, 2, 6));
}

/// Each sentence names the device, the reason, and what to do.
#[test]
fn a_device_that_cannot_be_opened_is_refused_with_the_reason_and_what_to_do() {
    use rustix::fs::{FlockOperation, IFlags, flock, ioctl_getflags, ioctl_setflags};
    needs_root!();
    let rig = Rig::new();
    let path = |name: &str| rig.server.home().join(name);
    let make = |name: &str| {
        std::fs::write(path(name), vec![0; BLOCK]).unwrap();
        std::fs::File::open(path(name)).unwrap()
    };
    let (immutable, locked) = (make("immutable"), make("locked"));
    let flags = ioctl_getflags(&immutable).unwrap();
    ioctl_setflags(&immutable, flags | IFlags::IMMUTABLE).unwrap();
    flock(&locked, FlockOperation::LockExclusive).unwrap();
    std::fs::create_dir(path("directory")).unwrap();
    let create = |name: &str, says: &str| {
        let path = path(name);
        let path = path.to_str().unwrap();
        rig.refused(&["create", "other", "--backing", path], &format!("{path} {says}"));
    };
    create("missing", "does not exist; name a block device or file that does");
    create("locked/below", "does not exist; name");
    create("directory", "is neither a block device nor a regular file; name one of these");
    create("locked", "is in use, by a mount or another program; end that use");
    create("immutable", "cannot be opened: the system forbids it; of a file remove the attribute immutable");
    ioctl_setflags(&immutable, flags).unwrap();
    rig.volume(&["create", "other", "--backing", path("immutable").to_str().unwrap()]);
}

/// Only the array or pool that a device is a part of may write to the device, whether it is assembled or not. MD 0.90
/// and 1.0, ZFS and Forebay's own pools may have a signature at the end only.
#[test]
fn a_part_of_an_array_or_pool_is_refused_wherever_its_signature_is() {
    const END: usize = 8 << 20;
    const MD: &[u8] = &[0xfc, 0x4e, 0x2b, 0xa9];
    const BCACHE: &[u8] =
        &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81];
    const UBERBLOCK: &[u8] = &[0x0c, 0xb1, 0xba, 0, 0, 0, 0, 0];
    let rig = Rig::new();
    let lvm = [&b"LABELONE"[..], &[0; 16], b"LVM2 001"].concat();
    let parts: [(usize, &[u8], &str); 9] = [
        (END - (64 << 10), MD, "a member of an MD RAID array"),
        (512, &lvm, "an LVM physical volume"),
        (END - (8 << 10), MD, "a member of an MD RAID array"),
        (0, MD, "a member of an MD RAID array"),
        (4096, MD, "a member of an MD RAID array"),
        (4096 + 24, BCACHE, "a bcache device"),
        (128 << 10, UBERBLOCK, "a member of a ZFS pool"),
        (END - (128 << 10), UBERBLOCK, "a member of a ZFS pool"),
        (END - 4096, b"FOREBAY\0", "the superblock of a cache device"),
    ];
    let image = rig.server.home().join("part");
    let create = ["create", "other", "--backing", image.to_str().unwrap()];
    for (at, magic, says) in parts {
        let mut contents = vec![0; END];
        contents[at..at + magic.len()].copy_from_slice(magic);
        std::fs::write(&image, contents).unwrap();
        rig.refused(&create, says);
    }
    // A file system is there to be used.
    let mut contents = vec![0; END];
    contents[0x438..0x43a].copy_from_slice(&[0x53, 0xef]);
    contents[510..512].copy_from_slice(&[0x55, 0xaa]);
    std::fs::write(&image, contents).unwrap();
    rig.volume(&create);
}

#[test]
fn a_user_of_the_server_without_access_to_a_volume_of_the_configuration_is_told_which_one() {
    needs_root!();
    let mut server = Serve::unsquashed().cached().run_as(65_534).prepared();
    let image = server.home().join("disk.img");
    std::fs::write(&image, vec![0; BLOCK]).unwrap();
    std::fs::set_permissions(&image, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let at = image.to_str().unwrap();
    let config = server.home().join("volumes.toml");
    std::fs::write(&config, format!("[[volume]]\nname='scratch'\nbacking='{at}'\n")).unwrap();
    server.set_flags(&["--squash", "none", "--mode", "write-back", "--config", config.to_str().unwrap()]);
    let said = server.refusal();
    let says = format!(
        "volume scratch of the configuration cannot be served: {at} cannot be opened: the user of the server"
    );
    assert!(said.contains(&says), "{said}");
    std::fs::remove_file(&image).unwrap();
    let said = server.refusal();
    assert!(
        said.contains("volume scratch of the configuration") && said.contains("does not exist; name"),
        "{said}"
    );
}

#[test]
fn a_change_that_cannot_be_recorded_changes_nothing() {
    let mut rig = Rig::new();
    let mut nbd = rig.create();
    nbd.write(FUA, 0, 1, BLOCK);
    let before = rig.volume(&["show", "scratch"]);
    // The file is replaced by way of this name.
    let obstacle = rig.server.state.join("volumes.new");
    std::fs::create_dir(&obstacle).unwrap();
    let second = rig.server.home().join("second.img");
    std::fs::write(&second, vec![0; SIZE]).unwrap();
    let second = second.to_str().unwrap();
    rig.refused(&["mode", "scratch", "write-through"], "keeps its mode");
    rig.refused(&["resize", "scratch", &(SIZE + 512).to_string()], "keeps its size");
    rig.refused(&["create", "second", "--backing", second], "cannot be written");
    rig.refused(&["remove", "scratch"], "scratch stays");
    let shown = rig.volume(&["show", "scratch"]);
    for part in ["own_mode", "mode", "size_bytes", "state"] {
        assert_eq!(shown[part], before[part], "{part}");
    }
    nbd.write(FUA, 0, 2, BLOCK);
    assert_eq!(rig.open().unwrap().size, SIZE as u64);
    // The next change makes nothing durable of the refused ones.
    std::fs::remove_dir(&obstacle).unwrap();
    rig.volume(&["create", "second", "--backing", second]);
    rig.server.kill();
    rig.server.start();
    let shown = rig.volume(&["show", "scratch"]);
    assert_eq!((&shown["own_mode"], &shown["mode"]), (&before["own_mode"], &before["mode"]));
    assert_eq!(rig.open().unwrap().read(0, 1), [2]);
    assert_eq!(rig.volume(&["mode", "scratch", "write-through"])["own_mode"], "write-through");
    assert_eq!(rig.volume(&["resize", "scratch"])["size_bytes"], SIZE + 512);
}

#[test]
fn a_removal_that_a_crash_interrupted_is_ended_by_the_next_start() {
    let mut rig = Rig::new();
    let mut nbd = rig.create();
    nbd.write(FUA, 0, 1, BLOCK);
    rig.server.kill();
    // The server died when the removal was recorded, and the log had no record of it yet.
    let path = rig.server.state.join("volumes.json");
    let mut records: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let volume = records["volumes"].as_array_mut().unwrap().remove(0);
    let removed = serde_json::json!({"uuid": volume["uuid"], "size": volume["identity"]["size"]});
    records["removed"] = serde_json::json!([removed]);
    std::fs::write(&path, records.to_string()).unwrap();
    rig.server.start();
    assert_eq!(rig.volume(&["list"]), serde_json::json!([]));
    // The log knows it now: the state directory says nothing of the volume any more.
    assert!(!std::fs::read_to_string(&path).unwrap().contains("removed"));
    rig.server.kill();
    rig.server.start();
    rig.server.ask(&["flush", "--wait"]);
    assert!(std::fs::read(&rig.image).unwrap() == [7; SIZE], "dropped data was written");
    assert_eq!(rig.create().read(0, 1), [7]);
}

#[test]
fn qemu_s_and_libnbd_s_programs_use_a_volume() {
    let rig = Rig::new();
    drop(rig.create());
    let shown = rig.volume(&["show", "scratch"]);
    let uri = format!("nbd://{}/scratch", shown["nbd"].as_str().unwrap());
    let run = |program: &str, words: &[&str]| match std::process::Command::new(program).args(words).output() {
        Err(_) => None,
        Ok(output) => {
            assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        }
    };
    let Some(info) = run("nbdinfo", &["--size", &uri]) else {
        eprintln!("skipped: nbdinfo is not installed");
        return;
    };
    assert_eq!(info.trim(), SIZE.to_string());
    let patterns = [
        "write -P 0x11 0 64k",
        "write -f -P 0x22 4k 4k",
        "write -z 1M 512k",
        "discard 2M 64k",
        "flush",
        "read -P 0x22 4k 4k",
        "read -P 0x11 8k 56k",
        "read -P 0 1M 512k",
    ];
    let words: Vec<&str> = patterns.iter().flat_map(|pattern| ["-c", pattern]).collect();
    let said = run("qemu-io", &[&["-f", "raw"], &words[..], &[&uri]].concat());
    assert!(said.is_none_or(|said| !said.contains("Pattern verification failed")));
    let copied = rig.server.home().join("copy.img");
    std::fs::write(&copied, []).unwrap();
    if run("nbdcopy", &[&uri, copied.to_str().unwrap()]).is_some() {
        rig.volume(&["flush", "scratch"]);
        assert!(std::fs::read(&copied).unwrap() == std::fs::read(&rig.image).unwrap());
    }
}

#[test]
fn qemu_s_and_libnbd_s_programs_use_a_volume_over_tls_with_a_certificate_only() {
    let certified = Certified::with(&["localhost"]);
    let client = certified.authority.issue("client", &["client.example"]);
    let door = "[nbd]\nlisten = ['127.0.0.1:0']\nclient_certificate = true\n";
    let text = format!("{}{door}[[export]]\npath = '@/data'\nname = '/'\n", certified.table());
    let server = Serve::new().exports(&text).cached().start();
    let image = server.home().join("disk.img");
    std::fs::write(&image, vec![7; SIZE]).unwrap();
    let rig = Rig { server, image };
    let created = rig.volume(&["create", "scratch", "--backing", rig.image.to_str().unwrap()]);
    let port = created["nbd"].as_str().unwrap().rsplit_once(':').unwrap().1.to_owned();
    // libnbd and QEMU look for these names.
    let credentials = |name: &str| {
        let dir = rig.server.home().join(name);
        std::fs::create_dir(&dir).unwrap();
        std::fs::copy(certified.authority.file(), dir.join("ca-cert.pem")).unwrap();
        dir
    };
    let (named, anonymous) = (credentials("named"), credentials("anonymous"));
    std::fs::copy(&client.certificate, named.join("client-cert.pem")).unwrap();
    std::fs::copy(&client.key, named.join("client-key.pem")).unwrap();
    let run = |program: &str, words: &[&str]| {
        let output = std::process::Command::new(program).args(words).output();
        let output =
            output.unwrap_or_else(|error| panic!("cannot run {program} (run cargo x setup): {error}"));
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.success(), format!("{program} {words:?}: {said}"))
    };
    let uri =
        |dir: &std::path::Path| format!("nbds://localhost:{port}/scratch?tls-certificates={}", dir.display());
    let refused = [uri(&anonymous), format!("nbd://localhost:{port}/scratch")];
    refused.iter().for_each(|uri| assert!(!run("nbdinfo", &[uri]).0, "{uri} is served"));
    let path = |name: &str| rig.server.home().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("in"), vec![9; SIZE]).unwrap();
    let object = format!("tls-creds-x509,id=tls,endpoint=client,dir={}", named.display());
    let disk = format!("driver=nbd,host=localhost,port={port},export=scratch,tls-creds=tls");
    let qemu = ["convert", "--object", &object, "--image-opts", "-O", "raw", &disk, &path("out")];
    for (program, words) in [
        ("nbdcopy", &["--flush", &path("in"), &uri(&named)][..]),
        ("nbdinfo", &["--json", &uri(&named)]),
        ("qemu-img", &qemu),
    ] {
        let (is_done, said) = run(program, words);
        assert!(is_done, "{said}");
    }
    assert!(std::fs::read(path("out")).unwrap() == vec![9; SIZE]);
    rig.server.ask(&["volume", "remove", "scratch"]);
    assert!(std::fs::read(&rig.image).unwrap() == vec![9; SIZE]);
}

#[test]
fn a_port_of_nbd_in_use_stops_no_server_and_is_taken_when_it_is_free() {
    // No other test uses this address.
    let taken = std::net::TcpListener::bind("127.0.0.77:0").unwrap();
    let address = taken.local_addr().unwrap();
    let server = Serve::unsquashed().cached().flags(&["--nbd", &address.to_string()]).start();
    let image = server.home().join("disk.img");
    std::fs::write(&image, vec![7; SIZE]).unwrap();
    let rig = Rig { server, image };
    let reasons = || rig.server.status()["health"]["reasons"].clone();
    let told = format!("NBD is not served: port {} on 127.0.0.77 is in use;", address.port());
    assert!(reasons()[0].as_str().unwrap().starts_with(&told), "{}", reasons());
    let mut c = rig.server.connect();
    let root = c.root();
    c.new_file(&root, b"served", 0o644);
    rig.volume(&["create", "scratch", "--backing", rig.image.to_str().unwrap()]);
    assert!(rig.open().is_none(), "no address to show");
    drop(taken);
    wait_for(|| reasons().is_null());
    assert_eq!(rig.open().unwrap().size, SIZE as u64);
    let events = rig.server.ask(&["events"]);
    assert!(events.contains(&told) && events.contains("volumes are served over NBD"), "{events}");
}

#[test]
fn a_server_without_a_cache_says_that_it_serves_no_nbd() {
    const TOLD: &str = "NBD is not served: a volume needs a cache";
    let serve = || Serve::unsquashed().plain();
    let asked = serve().flags(&["--nbd", "127.0.0.1:0"]).start();
    let mut c = asked.connect();
    let root = c.root();
    c.new_file(&root, b"served", 0o644);
    wait_for(|| asked.ask(&["events"]).contains(TOLD));
    let not_asked = serve().start();
    wait_for(|| not_asked.ask(&["events"]).contains("started"));
    assert!(!not_asked.ask(&["events"]).contains(TOLD));
}
