//! Runs libnfs's utilities as an unprivileged user: an independent client in user space.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
    time::Duration,
};

use anyhow::{Result, ensure};
use tempfile::TempDir;

use super::{Case, Target, whole};
use crate::process::{bounded, output};

const LIMIT: Duration = Duration::from_secs(60);
/// Size of the file in bytes. It is not a multiple of any transfer size.
const SIZE: usize = (20 << 20) + 4_321;

/// Copies files in and out, prints one and lists the export, with libnfs's utilities. Everybody may write to the
/// served directory meanwhile.
pub(super) fn run(target: &mut Target) -> Result<Vec<Case>> {
    let local = tempfile::tempdir()?;
    fs::set_permissions(local.path(), Permissions::from_mode(0o777))?;
    let served = target.directory();
    fs::set_permissions(&served, Permissions::from_mode(0o777))?;
    fs::create_dir(served.join("inner"))?;
    fs::set_permissions(served.join("inner"), Permissions::from_mode(0o777))?;

    let check = Check { local, target };
    let content: Vec<u8> = (0..SIZE).map(|place| (place / 4099 + place) as u8).collect();
    fs::write(check.local.path().join("source"), &content)?;
    let cases: [(&str, &dyn Fn() -> Result<()>); 6] = [
        ("copy in", &|| check.copy_in("copy", &served, &content)),
        ("copy into a subdirectory", &|| check.copy_in("inner/copy", &served, &content)),
        ("copy out", &|| check.copy_out("copy", &content)),
        ("print", &|| check.print("inner/copy")),
        ("list", &|| check.list()),
        ("a missing file is an error", &|| {
            ensure!(output(&mut as_user("nfs-cat", &[&check.url("missing")])).is_err(), "nfs-cat succeeded");
            Ok(())
        }),
    ];
    Ok(cases.map(|(name, case)| whole(name, case().err().map(|error| format!("{error:#}")))).into())
}

struct Check<'a> {
    local: TempDir,
    target: &'a Target,
}

impl Check<'_> {
    /// Returns the URL of a path in the export, as libnfs understands it.
    fn url(&self, path: &str) -> String {
        let (port, mount_port) = (self.target.port(), self.target.mount_port());
        // Libnfs mounts the part before the last slash, and an empty path confuses it if the export is "/".
        format!("nfs://127.0.0.1//{path}?version=3&nfsport={port}&mountport={mount_port}")
    }

    fn path(&self, name: &str) -> String {
        self.local.path().join(name).to_string_lossy().into_owned()
    }

    /// Copies the source into the export and compares the file in the served directory, after a flush.
    fn copy_in(&self, to: &str, served: &Path, content: &[u8]) -> Result<()> {
        output(&mut as_user("nfs-cp", &[&self.path("source"), &self.url(to)]))?;
        self.target.flush()?;
        ensure!(fs::read(served.join(to))? == content, "the file served differs from the one copied");
        Ok(())
    }

    /// Copies a file out of the export and compares the copy.
    fn copy_out(&self, from: &str, content: &[u8]) -> Result<()> {
        output(&mut as_user("nfs-cp", &[&self.url(from), &self.path("back")]))?;
        ensure!(fs::read(self.path("back"))? == content, "the file copied back differs");
        Ok(())
    }

    /// Prints a file of the export with `nfs-cat`, and checks the number of bytes.
    fn print(&self, from: &str) -> Result<()> {
        let printed = bounded(Some(LIMIT), "nfs-cat", [self.url(from)]).output()?;
        ensure!(printed.status.success(), "nfs-cat ended with {}", printed.status);
        ensure!(printed.stdout.len() == SIZE, "nfs-cat printed {} bytes", printed.stdout.len());
        Ok(())
    }

    /// Lists the export with `nfs-ls`, and checks that the names and the size are there.
    fn list(&self) -> Result<()> {
        let listed = output(&mut as_user("nfs-ls", &["-R", &self.url("")]))?;
        for wanted in ["copy", "inner", "inner/copy", &SIZE.to_string()] {
            ensure!(listed.contains(wanted), "{wanted} is missing in the list:\n{listed}");
        }
        Ok(())
    }
}

/// Returns a command that runs as nobody.
fn as_user(program: &str, arguments: &[&str]) -> Command {
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups", program];
    bounded(Some(LIMIT), "setpriv", user.iter().chain(arguments))
}
