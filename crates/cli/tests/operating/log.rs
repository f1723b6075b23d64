//! Tests that the log never harms service: if it is not read, if it cannot be written, and if its reader stops.

use std::fs::OpenOptions;
use std::io::{PipeReader, Read};

use rustix::pipe::fcntl_setpipe_size;

use crate::unattended::Unattended;

/// Makes the server log an event.
#[track_caller]
fn flushes(server: &Unattended) {
    let done = |server: &Unattended| {
        let output = server.ask(&["events"]);
        String::from_utf8_lossy(&output.stdout).matches("flush-done").count()
    };
    let before = done(server);
    assert!(server.ask(&["flush"]).status.success());
    server.wait_for(|server| done(server) > before);
}

#[test]
fn a_log_that_cannot_be_written_harms_nobody() {
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let server = Unattended::start(&["--mode", "pass-through"], full);
    flushes(&server);
    assert!(server.json(&["status"])["log_lines_lost"].as_u64().unwrap() > 0);
    server.stop();
}

#[test]
fn a_log_that_nobody_reads_any_more_harms_nobody() {
    let (read, write) = std::io::pipe().unwrap();
    let server = Unattended::start(&["--mode", "pass-through"], write);
    drop(read);
    flushes(&server);
    flushes(&server);
    server.stop();
}

/// A terminal after Ctrl-S, or a log daemon that hangs, stops reading.
#[test]
fn a_reader_that_stands_still_stops_neither_service_nor_the_end() {
    let (read, write): (PipeReader, _) = std::io::pipe().unwrap();
    fcntl_setpipe_size(&write, 4096).unwrap();
    let server = Unattended::start(&["--mode", "pass-through", "--log-level", "debug"], write);
    for _ in 0..60 {
        flushes(&server);
    }
    server.stop();
    // Messages must arrive as whole lines.
    let mut said = String::new();
    let mut read = read;
    read.read_to_string(&mut said).unwrap();
    assert!(said.contains("Listening on"), "{said}");
}
