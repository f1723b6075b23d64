//! Tests that the host can execute files that a client wrote. The kernel refuses to execute a file that is open for
//! writing.

use std::process::Command;

use crate::harness::*;

const SCRIPT: &[u8] = b"#!/bin/sh\necho done\n";

#[track_caller]
fn runs(server: &Server, name: &str) {
    let output = Command::new(server.data.join(name)).output();
    let output = output.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(output.stdout, b"done\n", "{name}");
}

/// Makes scripts in every way and returns their names.
fn write_scripts(c: &mut Client) -> Vec<String> {
    let root = c.root();
    let mut names = Vec::new();
    for n in 0..5 {
        let mut make = |what: &str, how| {
            let name = format!("{what}{n}");
            let file = c.create(&root, name.as_bytes(), how).unwrap().object.unwrap();
            names.push(name);
            file
        };
        let stable = make("stable", CreateHow::Guarded(mode(0o755)));
        let unstable = make("unstable", CreateHow::Unchecked(mode(0o755)));
        let exclusive = make("exclusive", CreateHow::Exclusive([n; 8]));
        let sized = make("sized", CreateHow::Guarded(Sattr3 { size: Some(100), ..mode(0o755) }));
        c.write(&stable, 0, SCRIPT, StableHow::FileSync).unwrap();
        c.write(&unstable, 0, SCRIPT, StableHow::Unstable).unwrap();
        c.commit(&unstable, 0, 0).unwrap();
        c.setattr(&exclusive, mode(0o755)).unwrap();
        let (first, rest) = SCRIPT.split_at(5);
        c.write(&exclusive, 0, first, StableHow::Unstable).unwrap();
        c.write(&exclusive, 5, rest, StableHow::Unstable).unwrap();
        c.commit(&exclusive, 0, 0).unwrap();
        c.write(&sized, 0, SCRIPT, StableHow::FileSync).unwrap();
        c.setattr(&sized, size(SCRIPT.len() as u64)).unwrap();
        // The script is read as well: a descriptor for reading does not prevent execution.
        assert_eq!(c.read(&stable, 0, 100).unwrap().data, SCRIPT);
    }
    names
}

#[test]
fn a_script_is_executed_as_soon_as_it_is_stable() {
    let server = Serve::unsquashed().plain().start();
    let names = write_scripts(&mut server.connect());
    names.iter().for_each(|name| runs(&server, name));
}

#[test]
fn a_script_that_only_the_cache_had_is_executed_after_a_flush() {
    let server = Serve::unsquashed().cached().start();
    let names = write_scripts(&mut server.connect());
    server.flush();
    names.iter().for_each(|name| runs(&server, name));
    // The scripts are overwritten and executed again.
    let mut c = server.connect();
    let root = c.root();
    for name in &names {
        let file = c.find(&root, name.as_bytes());
        c.write(&file, SCRIPT.len() as u64 - 1, b"\n", StableHow::FileSync).unwrap();
        c.write(&file, 9, b"\n", StableHow::FileSync).unwrap();
    }
    server.flush();
    names.iter().for_each(|name| runs(&server, name));
}

/// A stream of writes opens its file once, even if other requests use the file meanwhile.
#[test]
fn a_file_is_open_for_writing_while_something_of_it_is_not_stable() {
    let server = Serve::unsquashed().plain().start();
    let mut c = server.connect();
    let root = c.root();
    let file = c.new_file(&root, b"f", 0o644);
    let path = server.data.join("f");
    let open = || {
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap();
        let numbers = descriptors.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let of_file = numbers.filter(|number| {
            let link = std::fs::read_link(format!("/proc/{}/fd/{number}", server.pid()));
            link.is_ok_and(|to| to == path)
        });
        let flags = of_file.map(|number| {
            let info = std::fs::read_to_string(format!("/proc/{}/fdinfo/{number}", server.pid())).unwrap();
            let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim().to_owned();
            u32::from_str_radix(&flags, 8).unwrap() & 3
        });
        flags.filter(|access| *access != 0).count()
    };
    assert_eq!(open(), 0);
    for n in 0..10 {
        c.write(&file, n * 4096, &[1; 4096], StableHow::Unstable).unwrap();
        assert_eq!(open(), 1);
        c.setattr(&file, Sattr3 { size: Some(1 << 20), ..Sattr3::default() }).unwrap();
        assert_eq!(open(), 1);
    }
    c.commit(&file, 0, 0).unwrap();
    assert_eq!(open(), 0);
}
