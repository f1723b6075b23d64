//! Tests of two caches for one directory, or two directories for one cache, used in turn.

use std::os::unix::fs::FileExt;

use crate::harness::*;

/// Makes a stopped server use the pool called `name`.
fn use_pool(server: &mut Server, name: &str, more: &[&str]) {
    let devices = ["a", "b"].map(|leg| server.home().join(format!("{name}-{leg}")));
    let [a, b] = devices.each_ref().map(|path| path.to_str().unwrap());
    let pool =
        ["--squash", "none", "--mode", "write-back", "--cache-size", "64MiB", "--cache", a, "--cache", b];
    server.set_flags(&[&pool, more].concat());
}

/// Returns a server with the pool `first`, and a file that the pool has cached.
fn server_and_file() -> (Server, FileHandle) {
    let mut server = Serve::unsquashed().plain().start();
    server.stop();
    use_pool(&mut server, "first", &[]);
    server.start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    write(&server, &file, 1);
    server.flush();
    (server, file)
}

fn write(server: &Server, file: &FileHandle, byte: u8) {
    server.connect().write(file, 0, &[byte; 40_000], StableHow::FileSync).unwrap();
}

fn holds(server: &Server, file: &FileHandle, byte: u8) {
    assert!(server.connect().read(file, 0, 40_000).unwrap().data == [byte; 40_000], "not {byte}");
}

#[test]
fn a_pool_does_not_believe_what_it_had_before_the_directory_was_served_with_another_or_none() {
    let (mut server, file) = server_and_file();
    for (byte, pool) in (2..).zip(["second", "first", "none", "first", "second"]) {
        // A reply that a client may lack stays in the log of the pool, which is then refused after another one.
        wait_for(|| server.status()["connections"] == 0);
        server.stop();
        match pool {
            "none" => server.set_flags(&["--squash", "none", "--mode", "pass-through"]),
            pool => use_pool(&mut server, pool, &[]),
        }
        server.start();
        holds(&server, &file, byte - 1);
        write(&server, &file, byte);
        if pool != "none" {
            server.flush();
        }
        assert!(std::fs::read(server.data.join("f")).unwrap() == [byte; 40_000]);
    }
}

#[test]
fn a_pool_does_not_believe_what_it_had_of_a_directory_while_it_was_used_for_another() {
    let (mut server, file) = server_and_file();
    server.stop();
    let first = server.data.clone();
    let second = server.home().join("second");
    std::fs::create_dir(&second).unwrap();
    server.data = second;
    server.start();
    let mut c = server.connect();
    let root = c.root();
    let other = c.new_file(&root, b"f", 0o644);
    write(&server, &other, 3);
    // No server owns the first directory now.
    let theirs = std::fs::File::options().write(true).open(first.join("f")).unwrap();
    theirs.write_all_at(&[2; 40_000], 0).unwrap();
    holds(&server, &other, 3);
    server.flush();
    server.stop();
    server.data = first;
    server.start();
    holds(&server, &file, 2);
}

#[test]
fn what_was_there_before_the_first_start_is_warm_after_a_restart() {
    // The file is larger than the 16 MiB of memory that `cached` permits.
    const PIECES: u64 = 640;
    let mut server = Serve::unsquashed().cached().start_on(|data| {
        std::fs::write(data.join("f"), vec![1; PIECES as usize * 65_536]).unwrap();
    });
    let root = server.connect().root();
    let file = server.connect().lookup(&root, b"f").unwrap().object;
    let read = |server: &Server| {
        let mut c = server.connect();
        for piece in 0..PIECES {
            assert!(c.read(&file, piece * 65_536, 65_536).unwrap().data == [1; 65_536]);
        }
    };
    let counters = |server: &Server| server.status()["pool"]["counters"].clone();
    let from_ssd = |server: &Server| counters(server)["blocks_read_ssd"].as_u64().unwrap();
    // Clean blocks are admitted beside the reads, and on a busy machine not all of them.
    wait_for(|| {
        read(&server);
        from_ssd(&server) > 3000
    });
    server.restart();
    read(&server);
    assert_eq!(counters(&server)["changed_outside"], 0, "{}", counters(&server));
    assert!(from_ssd(&server) > 2000, "{}", counters(&server));
}

#[test]
fn changes_that_were_given_up_are_not_made_later_over_what_is_newer() {
    let (mut server, file) = server_and_file();
    write(&server, &file, 2);
    server.kill();
    use_pool(&mut server, "second", &[]);
    assert!(server.refusal().contains("may hold data that the directory lacks"));
    use_pool(&mut server, "second", &["--format-cache"]);
    server.start();
    write(&server, &file, 3);
    server.flush();
    server.stop();
    use_pool(&mut server, "first", &[]);
    for _ in 0..2 {
        let said = server.refusal();
        assert!(said.contains("were given up"), "{said}");
    }
    use_pool(&mut server, "second", &[]);
    server.start();
    holds(&server, &file, 3);
    server.stop();
    use_pool(&mut server, "first", &["--format-cache"]);
    server.start();
    holds(&server, &file, 3);
}
