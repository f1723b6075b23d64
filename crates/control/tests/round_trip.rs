//! Tests of the control protocol over real sockets.

// A panic in a test or its helpers is a failed assertion, so `unwrap` is allowed here.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use forebay_common::lock::Mutex;
use forebay_config::{Change, Entry, Mode, Source, Table};
use forebay_control::{
    Activity, ActivityEntry, ActivityGroup, CachedFiles, Client, ClientError, ClientStateStatus,
    ClientStatus, DurabilityStatus, EventLog, ExportStatus, FlushProgress, FlushReport, HandleMode, Handler,
    Health, MemoryStatus, MetadataStatus, OperationSample, Past, PoolRequest, PoolStatus, ProcedureStatus,
    Recorder, RefusedStatus, ReloadReport, ReplyCacheStatus, SandboxStatus, Server, ServerError, Severity,
    StatSample, Status, TraceBatch, VolumeRequest, VolumeStatus, WorkerStatus, socket_path,
};
use tempfile::TempDir;

/// A server in pass-through mode. Its flush waits for `flush_gate`, so that a test decides when the flush ends.
struct Plain {
    events: EventLog,
    status: Status,
    sample: StatSample,
    flush_gate: Mutex<()>,
    asked_for_mode: AtomicUsize,
}

impl Plain {
    fn new() -> Arc<Self> {
        let recorder = Recorder::default();
        (1..=100).for_each(|micros| recorder.record(Duration::from_micros(micros)));
        let read = OperationSample { errors: 1, bytes: 409_600, latency: recorder.snapshot() };
        let sample = StatSample { time_ns: 5, uptime_ns: 7, read, ..StatSample::default() };
        let (flush_gate, asked_for_mode) = Default::default();
        Arc::new(Self { events: EventLog::new(4), status: status(), sample, flush_gate, asked_for_mode })
    }
}

impl Handler for Plain {
    fn status(&self) -> Status {
        self.status.clone()
    }

    fn sample(&self) -> StatSample {
        self.sample.clone()
    }

    fn activity(&self, top: usize) -> Activity {
        let entries = vec![ActivityEntry { name: format!("top {top}"), ..ActivityEntry::default() }];
        let files = ActivityGroup { entries, ..ActivityGroup::default() };
        Activity { files, enabled: true, ..Activity::default() }
    }

    fn reset_activity(&self) {}

    fn trace(&self, batch: &mut dyn FnMut(TraceBatch) -> bool) -> Result<(), String> {
        (1..).find(|lost| !batch(TraceBatch { lost: *lost, ..TraceBatch::default() }));
        Ok(())
    }

    fn events(&self) -> &EventLog {
        &self.events
    }

    fn serving(&self) -> Result<(), String> {
        Ok(())
    }

    fn volume(&self, request: VolumeRequest) -> Result<Vec<VolumeStatus>, String> {
        match request {
            VolumeRequest::List { name: None } => Ok(Vec::new()),
            request => Err(format!("not here: {request:?}")),
        }
    }

    fn reload(&self) -> Result<ReloadReport, String> {
        Ok(ReloadReport { changed: vec!["the log level".into()], ..ReloadReport::default() })
    }

    fn config(&self) -> Vec<Entry> {
        vec![Entry {
            table: Table::default(),
            key: "mode".into(),
            value: Some("\"pass-through\"".into()),
            source: Source::Flag,
            change: Change::InService,
        }]
    }

    fn mode(&self) -> Mode {
        self.asked_for_mode.fetch_add(1, SeqCst);
        Mode::PassThrough
    }

    fn effective_mode(&self) -> Mode {
        self.mode()
    }

    fn set_mode(&self, mode: Mode) -> Result<(), String> {
        if mode == Mode::PassThrough { Ok(()) } else { Err(format!("mode {mode} needs a cache")) }
    }

    fn flush(&self, progress: &mut dyn FnMut(FlushProgress)) -> Result<FlushReport, String> {
        progress(FlushProgress { done: 0, total: 2, bytes: false });
        let _gate = self.flush_gate.lock();
        progress(FlushProgress { done: 2, total: 2, bytes: false });
        Ok(FlushReport { filesystems: 2, elapsed_ns: 9, ..FlushReport::default() })
    }

    fn pool(&self, request: PoolRequest) -> Result<PoolStatus, String> {
        match request {
            PoolRequest::Status => Ok(PoolStatus::default()),
            PoolRequest::Scrub { .. } => Ok(PoolStatus::default()),
            PoolRequest::Add { path, .. } | PoolRequest::Remove { path, .. } => {
                Err(format!("{} cannot be used: no cache is configured", path.display()))
            }
        }
    }

    fn cached(&self, path: &Path, drop: bool) -> Result<CachedFiles, String> {
        match path.starts_with("/srv") {
            true => Ok(CachedFiles { files: 3, kept_files: u64::from(drop), ..CachedFiles::default() }),
            false => Err(format!("{} is not served", path.display())),
        }
    }
}

fn status() -> Status {
    let procedure = ProcedureStatus { name: "READ".into(), count: 3, errors: 1, ..Default::default() };
    let client = ClientStatus {
        address: "fd00::1".parse().unwrap(),
        connections: 1,
        operations: u64::MAX,
        bytes_read: 1,
        bytes_written: 2,
        last_seen_ns: 4,
    };
    let export = ExportStatus {
        name: "/".into(),
        aliases: vec!["/data".into()],
        path: "/srv/data".into(),
        id: 7,
        fs_type: "xfs".into(),
        ordered: true,
        total_bytes: 10,
        free_bytes: 5,
        total_inodes: 100,
        free_inodes: 50,
        silent_ns: 0,
    };
    Status {
        version: "1".into(),
        pid: 2,
        started_ns: 3,
        uptime_ns: 4,
        mode: Mode::PassThrough,
        effective_mode: Mode::PassThrough,
        starting: None,
        log_lines_lost: 0,
        rate_limits: Vec::new(),
        health: Health::Degraded { reasons: vec!["a sync failed".into()] },
        write_verifier: "0123456789abcdef".into(),
        listen: vec!["127.0.0.1:2049".parse().unwrap()],
        state_dir: "/var/lib/forebay/x".into(),
        handles: HandleMode::Kernel,
        sandbox: SandboxStatus::On,
        exports: vec![export],
        clients: vec![client],
        procedures: vec![procedure],
        bytes_read: 1,
        bytes_written: 2,
        connections: 3,
        connections_limit: 4,
        encrypted: 1,
        encrypted_in_kernel: 1,
        inflight: 5,
        held_back: 3,
        memory: MemoryStatus::default(),
        workers: WorkerStatus::default(),
        durability: DurabilityStatus::default(),
        reply_cache: ReplyCacheStatus::default(),
        refused: RefusedStatus { strangers: 3, ..RefusedStatus::default() },
        metadata: MetadataStatus {
            listed: 1000,
            bytes: 200_000,
            limit_bytes: 1 << 30,
            files: 8,
            names: 9,
            file_hits: 10,
            file_misses: 11,
            listing_hits: 7,
            listing_misses: 3,
        },
        client_state: Some(ClientStateStatus { opens: 3, recalls: 4, ..ClientStateStatus::default() }),
        volumes: Vec::new(),
        pool: None,
    }
}

struct Site {
    dir: TempDir,
    handler: Arc<Plain>,
    server: Server,
}

impl Site {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let handler = Plain::new();
        let server = Server::start(dir.path(), handler.clone()).unwrap();
        Self { dir, handler, server }
    }

    fn client(&self) -> Client {
        Client::new(self.dir.path())
    }

    /// Sends raw bytes and returns the whole answer.
    fn raw(&self, bytes: &[u8]) -> String {
        let mut stream = UnixStream::connect(socket_path(self.dir.path())).unwrap();
        // The server may answer and close before it has read all bytes, so errors are ignored.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).unwrap()
    }
}

#[test]
fn every_request_is_answered() {
    let site = Site::new();
    let client = site.client();
    assert_eq!(client.status().unwrap(), status());
    assert_eq!(client.sample().unwrap(), site.handler.sample);
    for (top, name) in [(7, "top 7"), (usize::MAX, "top 1000")] {
        assert_eq!(client.activity(top).unwrap().files.entries[0].name, name);
    }
    client.reset_activity().unwrap();
    let mut lost = Vec::new();
    let taken = client.trace(|batch| {
        lost.push(batch.lost);
        if batch.lost < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    assert_eq!((taken.is_ok(), lost), (true, vec![1, 2, 3]));
    assert_eq!(client.mode(None).unwrap(), (Mode::PassThrough, None));
    assert_eq!(client.mode(Some(Mode::PassThrough)).unwrap(), (Mode::PassThrough, None));
    let refused = client.mode(Some(Mode::WriteBack)).unwrap_err();
    assert_eq!(refused.to_string(), "mode write-back needs a cache");
    assert_eq!(client.pool(PoolRequest::Status).unwrap(), PoolStatus::default());
    assert_eq!(client.cached(Path::new("/srv/x"), false).unwrap().files, 3);
    assert_eq!(client.cached(Path::new("/srv"), true).unwrap().kept_files, 1);
    assert_eq!(client.cached(Path::new("/x"), true).unwrap_err().to_string(), "/x is not served");
    let refused = client.pool(PoolRequest::Remove { path: "/dev/x".into(), wait: true }).unwrap_err();
    assert!(matches!(&refused, ClientError::Refused(message) if message.starts_with("/dev/x")), "{refused}");
    assert_eq!(client.volume(VolumeRequest::List { name: None }).unwrap(), []);
    let refused = client.volume(VolumeRequest::Flush { name: "scratch".into() }).unwrap_err();
    assert!(refused.to_string().contains("scratch"), "{refused}");
    let mut steps = Vec::new();
    let report = client.flush(|step| steps.push(step.done)).unwrap();
    assert_eq!((report.filesystems, steps), (2, vec![0, 2]));
}

#[test]
fn the_socket_is_private_and_leaves_with_the_server() {
    let site = Site::new();
    let path = socket_path(site.dir.path());
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(path.metadata().unwrap().uid(), rustix::process::geteuid().as_raw());
    let client = site.client();
    site.server.stop();
    assert!(!path.exists());
    assert!(matches!(client.status(), Err(ClientError::NotRunning(_))));
}

#[test]
fn a_second_server_is_refused_and_a_dead_ones_socket_is_replaced() {
    let site = Site::new();
    let second = Server::start(site.dir.path(), Plain::new());
    assert!(matches!(second, Err(ServerError::InUse(_))), "{second:?}");
    assert!(site.client().status().is_ok(), "the first one goes on");

    let dead = TempDir::new().unwrap();
    drop(UnixListener::bind(socket_path(dead.path())).unwrap());
    assert!(matches!(Client::new(dead.path()).status(), Err(ClientError::NotRunning(_))));
    let server = Server::start(dead.path(), Plain::new()).unwrap();
    assert!(Client::new(dead.path()).status().is_ok());
    drop(server);
}

#[test]
fn a_server_that_ends_leaves_the_socket_of_another_one() {
    let site = Site::new();
    let path = socket_path(site.dir.path());
    std::fs::remove_file(&path).unwrap();
    let second = Server::start(site.dir.path(), Plain::new()).unwrap();
    site.server.stop();
    assert!(Client::new(site.dir.path()).status().is_ok());
    second.stop();
    assert!(!path.exists());
}

#[test]
fn a_flush_without_waiting_ends_as_an_event() {
    let site = Site::new();
    let gate = site.handler.flush_gate.lock();
    site.client().start_flush().unwrap();
    assert!(site.handler.events.last(9).is_empty(), "it is still waiting");
    drop(gate);
    let events = site.handler.events.after(0, Duration::from_secs(60));
    assert_eq!(events[0].kind, "flush-done");
}

#[test]
fn events_are_kept_bounded_and_followed() {
    let site = Site::new();
    let events = &site.handler.events;
    for number in 1..=6 {
        events.add(Severity::Info, "test", format!("event {number}"), &[("number", &number)]);
    }
    let mut seen = Vec::new();
    let mut collect = |event: forebay_control::Event| {
        seen.push(event.sequence);
        ControlFlow::Continue(())
    };
    site.client().events(Past::default(), false, &mut collect).unwrap();
    site.client().events(Past { last: Some(2), ..Past::default() }, false, &mut collect).unwrap();
    site.client().events(Past { last: Some(0), ..Past::default() }, false, &mut collect).unwrap();
    assert_eq!(seen, [3, 4, 5, 6, 5, 6], "four are kept");

    let mut followed = Vec::new();
    site.client()
        .events(Past { last: Some(1), ..Past::default() }, true, |event| {
            if followed.is_empty() {
                events.add(Severity::Error, "test", "new", &[]);
            }
            followed.push((event.sequence, event.severity));
            if followed.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!(followed, [(6, Severity::Info), (7, Severity::Error)]);
}

#[test]
fn a_stop_ends_followers() {
    let Site { dir, handler, server } = Site::new();
    handler.events.add(Severity::Info, "test", "first", &[]);
    let client = Client::new(dir.path());
    let (began, begin) = std::sync::mpsc::channel();
    let follower = std::thread::spawn(move || {
        client.events(Past::default(), true, |_| {
            began.send(()).unwrap();
            ControlFlow::Continue(())
        })
    });
    begin.recv().unwrap();
    server.stop();
    follower.join().unwrap().unwrap();
}

#[test]
fn bad_requests_get_one_sentence() {
    let site = Site::new();
    let long = vec![b' '; 100_000];
    let bad: [(&[u8], &str); 7] = [
        (b"", "not one line"),
        (b"{\"version\":1,\"request\":\"status\"}", "not one line"),
        (&long, "not one line of at most 65536 bytes"),
        (b"hello\n", "not understood"),
        (b"{\"version\":1,\"request\":\"format\"}\n", "not understood"),
        (b"{\"version\":2,\"request\":\"future\"}\n", "speaks version 1 of the control protocol, not 2"),
        (b"{\"request\":\"status\"}\n", "not understood"),
    ];
    for (bytes, part) in bad {
        let answer = site.raw(bytes);
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
        assert!(answer.starts_with("{\"response\":\"error\"") && answer.contains(part), "{shown}: {answer}");
        assert_eq!(answer.matches('\n').count(), 1, "{answer}");
    }
    let answer = site.raw(b"{\"version\":1,\"request\":\"mode\",\"new_field\":{}}\n");
    assert_eq!(answer, "{\"response\":\"mode\",\"mode\":\"pass-through\"}\n", "unknown fields are ignored");
}

/// Returns a client that follows the events of a site, which has one event.
fn follower(site: &Site) -> BufReader<UnixStream> {
    let mut stream = UnixStream::connect(socket_path(site.dir.path())).unwrap();
    stream.write_all(b"{\"version\":1,\"request\":\"events\",\"follow\":true}\n").unwrap();
    let mut line = String::new();
    let mut reader = BufReader::new(stream);
    reader.read_line(&mut line).unwrap();
    assert!(line.contains("first"), "{line}");
    reader
}

#[test]
fn too_many_clients_are_refused_until_some_leave() {
    let site = Site::new();
    site.handler.events.add(Severity::Info, "test", "first", &[]);
    let followers: Vec<_> = (0..12).map(|_| follower(&site)).collect();
    // These ask nothing.
    let others: Vec<_> = (0..4).map(|_| UnixStream::connect(socket_path(site.dir.path())).unwrap()).collect();
    let refused = site.client().status().unwrap_err();
    assert!(refused.to_string().contains("16 control clients"), "{refused}");
    drop((followers, others));
    while let Err(error) = site.client().status() {
        assert!(matches!(error, ClientError::Refused(_)), "{error}");
        std::thread::yield_now();
    }
}

#[test]
fn requests_that_take_long_leave_room_for_those_who_look() {
    let site = Site::new();
    site.handler.events.add(Severity::Info, "test", "first", &[]);
    let gate = site.handler.flush_gate.lock();
    // The flushes continue although no client waits for them.
    (0..11).for_each(|_| site.client().start_flush().unwrap());
    let follower = follower(&site);
    let refused = site.client().start_flush().unwrap_err();
    assert!(refused.to_string().contains("12 requests that may take long"), "{refused}");
    site.client().status().unwrap();
    site.client().sample().unwrap();
    drop((gate, follower));
    while let Err(error) = site.client().start_flush() {
        assert!(matches!(error, ClientError::Refused(_)), "{error}");
        std::thread::yield_now();
    }
}

#[test]
fn a_state_directory_with_a_very_long_path_works() {
    let dir = TempDir::new().unwrap();
    let deep: PathBuf = (0..4).fold(dir.path().to_owned(), |path, _| path.join("x".repeat(60)));
    std::fs::create_dir_all(&deep).unwrap();
    let server = Server::start(&deep, Plain::new()).unwrap();
    assert!(Client::new(&deep).status().is_ok());
    server.stop();
    assert!(!socket_path(&deep).exists());
}

#[test]
fn a_server_that_does_not_answer_is_silent() {
    let dir = TempDir::new().unwrap();
    let _listener = UnixListener::bind(socket_path(dir.path())).unwrap();
    let client = Client::new(dir.path());
    let (flushed, status) = std::thread::scope(|scope| {
        let flush = scope.spawn(|| client.flush(|_| {}));
        let status = client.status();
        (flush.join().unwrap(), status)
    });
    assert!(matches!(status, Err(ClientError::Silent(_))), "{status:?}");
    assert!(matches!(flushed, Err(ClientError::Stopped(_))), "{flushed:?}");
}

/// A server that is stopped accepts nobody, and the connections of clients that gave up stay in its queue.
#[test]
fn a_server_whose_queue_is_full_is_silent() {
    let dir = TempDir::new().unwrap();
    let listener = UnixListener::bind(socket_path(dir.path())).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let _waiting = UnixStream::connect(socket_path(dir.path())).unwrap();
    let flushed = Client::new(dir.path()).flush(|_| {});
    assert!(matches!(flushed, Err(ClientError::Silent(_))), "{flushed:?}");
}

#[test]
fn an_answer_that_takes_long_is_waited_for_as_long_as_the_server_answers_at_all() {
    let site = Site::new();
    let gate = site.handler.flush_gate.lock();
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| site.client().flush(|_| {}));
        while site.handler.asked_for_mode.load(SeqCst) == 0 {
            assert!(!flush.is_finished());
            std::thread::yield_now();
        }
        drop(gate);
        flush.join().unwrap().unwrap();
    });
}

#[test]
fn an_answer_that_is_none_is_an_error() {
    let dir = TempDir::new().unwrap();
    let listener = UnixListener::bind(socket_path(dir.path())).unwrap();
    let answer = |bytes: &'static [u8]| {
        let listener = listener.try_clone().unwrap();
        let thread = std::thread::spawn(move || listener.accept().unwrap().0.write_all(bytes).unwrap());
        let error = Client::new(dir.path()).status().unwrap_err();
        thread.join().unwrap();
        error
    };
    assert!(matches!(answer(b"HTTP/1.1 200 OK\n"), ClientError::Protocol(_)));
    assert!(matches!(answer(b"{\"response\":\"done\"}\n"), ClientError::Protocol(_)));
    assert!(matches!(answer(b""), ClientError::Connection { .. }));
    assert!(matches!(Client::new(Path::new("/nowhere")).status(), Err(ClientError::NotRunning(_))));
}
