//! Tests of commands about paths whose file system does not answer, and of commands to a server that does not answer.

use std::process::Output;

use rustix::process::Signal;

use crate::harness::*;
use crate::policies_by_path::toml;

/// Checks that a command failed with this text.
#[track_caller]
fn failed(output: &Output, says: &str) {
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && told.contains(says), "{}: {told}", output.status);
}

/// Runs commands side by side. Returns the output of each.
fn side_by_side<const N: usize>(server: &Server, commands: [&[&str]; N]) -> [Output; N] {
    std::thread::scope(|scope| {
        let running = commands.map(|words| scope.spawn(move || server.try_ask(words)));
        running.map(|command| command.join().unwrap())
    })
}

/// Starts a server with an export on a file system that answers for now. `None` without FUSE.
fn serving_silent() -> Option<(tempfile::TempDir, Server, Silent)> {
    let home = tempfile::tempdir().unwrap();
    let silent = Silent::mount_answering(home.path())?;
    let more = format!("[[export]]\npath = '{}'\nname = '/silent'\n", silent.at.display());
    let server = Serve::new().cached().exports(&toml(&more)).start_on(|data| {
        std::fs::create_dir(data.join("dir")).unwrap();
        std::fs::write(data.join("dir/file"), [1; 5000]).unwrap();
        std::os::unix::fs::symlink("dir", data.join("link")).unwrap();
    });
    Some((home, server, silent))
}

#[test]
fn no_command_about_a_path_waits_for_a_silent_file_system() {
    needs_root!();
    let Some((_home, server, silent)) = serving_silent() else { return };
    let at = silent.at.to_str().unwrap().to_owned();
    server.ask(&["policy", "set", &at, "--cache", "never"]);
    // Dropped before the server: that would wait for it.
    let silent = silent;
    silent.fall_silent();
    wait_for(|| silent.is_awaited());
    let (below, new) = (format!("{at}/below"), format!("{at}/new"));
    let commands: [&[&str]; 6] = [
        &["cached", &below],
        &["invalidate", &below],
        &["warm", &below],
        &["cached", &at],
        &["warm", &at],
        &["pool", "add", &new],
    ];
    for output in side_by_side(&server, commands) {
        failed(&output, "the file system does not answer for 10s; run the command again once it answers");
    }
    // The rule on the silent file system is listed by the path that is known.
    let listed = server.try_ask(&["policy", "show"]);
    let told = String::from_utf8_lossy(&listed.stdout);
    assert!(listed.status.success() && told.contains(&at), "{told}");
    // Commands about another file system do not ask the silent one. The server resolves symbolic links.
    for name in ["dir/file", "link/file", "dir/../link"] {
        let path = server.data.join(name).to_str().unwrap().to_owned();
        let cached: serde_json::Value =
            serde_json::from_str(&server.ask(&["cached", &path, "--json"])).unwrap();
        assert_eq!(cached["files"], 1, "{name}");
        server.ask(&["warm", &path]);
        server.ask(&["invalidate", &path]);
    }
    let nothing = server.data.join("nothing");
    failed(&server.try_ask(&["cached", nothing.to_str().unwrap()]), "No such file or directory");
}

#[test]
fn no_command_waits_without_a_word_for_a_server_that_is_stopped() {
    let server = Serve::new().cached().start();
    server.signal(Signal::STOP);
    let data = server.data.to_str().unwrap();
    let commands: [&[&str]; 6] = [
        &["flush", "--wait"],
        &["pool", "status"],
        &["warm", data],
        &["events", "--follow"],
        &["volume", "list"],
        &["status"],
    ];
    for output in side_by_side(&server, commands) {
        failed(&output, "does not answer; see its log, and whether its process runs or is stopped");
    }
    server.signal(Signal::CONT);
    server.flush();
}
