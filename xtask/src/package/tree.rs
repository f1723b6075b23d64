//! The tree of installed files that every package has.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

use crate::process::{command, output, root, run};

/// Directory of documents in the tree.
pub(super) const DOCUMENTS: &str = "usr/share/doc/forebay";

/// Documents for administrators, below the workspace's root.
const FOR_ADMINISTRATORS: [&str; 5] =
    ["README.md", "docs/operations.md", "docs/semantics.md", "docs/glossary.md", "docs/benchmarks.md"];

/// Files for programs that watch servers: below `packaging/`, and in the tree.
const SHARED: [(&str, &str); 2] = [
    ("grafana/forebay.json", "usr/share/forebay/grafana/forebay.json"),
    ("prometheus/forebay.rules.yml", "usr/share/forebay/prometheus/forebay.rules.yml"),
];

/// The places in which distributions differ.
pub(super) struct Places {
    /// Directory for completions of zsh.
    pub(super) zsh: &'static str,
}

/// A tree under construction. It is removed with this value.
pub(super) struct Tree {
    dir: tempfile::TempDir,
}

impl Tree {
    /// Makes the whole tree: binary, units, configuration, manual pages, completions, documents.
    pub(super) fn new(binary: &Path, places: &Places) -> Result<Tree> {
        let tree = Tree { dir: tempfile::tempdir()? };
        fs::set_permissions(tree.path(), Permissions::from_mode(0o755))?;
        tree.copy(binary, "usr/bin/forebay", 0o755)?;
        let packaging = root().join("packaging");
        tree.copy(&packaging.join("forebay.toml"), "etc/forebay/forebay.toml", 0o644)?;
        tree.copy(
            &packaging.join("forebay-generator"),
            "usr/lib/systemd/system-generators/forebay-generator",
            0o755,
        )?;
        tree.copy(&packaging.join("servers"), "usr/share/forebay/servers", 0o755)?;
        for (from, to) in SHARED {
            tree.copy(&packaging.join(from), to, 0o644)?;
        }
        let unit = fs::read_to_string(packaging.join("forebay.service"))?;
        tree.write("usr/lib/systemd/system/forebay.service", &unit)?;
        tree.write("usr/lib/systemd/system/forebay@.service", &of_instances(&unit))?;
        for unit in ["forebay.socket", "forebay-privileged.socket", "forebay-privileged@.service"] {
            tree.copy(&packaging.join(unit), &format!("usr/lib/systemd/system/{unit}"), 0o644)?;
        }
        tree.manual_pages(binary)?;
        for (shell, path) in [
            ("bash", "usr/share/bash-completion/completions/forebay".to_owned()),
            ("zsh", format!("{}/_forebay", places.zsh)),
            ("fish", "usr/share/fish/vendor_completions.d/forebay.fish".to_owned()),
        ] {
            let script = output(command(&binary.to_string_lossy(), ["completions"]).arg(shell))?;
            tree.write(&path, &script)?;
        }
        for document in FOR_ADMINISTRATORS {
            let name = Path::new(document).file_name().context("a document without a name")?;
            tree.copy(&root().join(document), &format!("{DOCUMENTS}/{}", name.to_string_lossy()), 0o644)?;
        }
        Ok(tree)
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Copies a file of the workspace to a place in the tree.
    pub(super) fn copy(&self, from: &Path, to: &str, mode: u32) -> Result<()> {
        let path = self.place(to)?;
        fs::copy(from, &path).with_context(|| format!("cannot copy {}", from.display()))?;
        Ok(fs::set_permissions(&path, Permissions::from_mode(mode))?)
    }

    /// Writes a file of the tree, readable by all users.
    pub(super) fn write(&self, to: &str, text: &str) -> Result<()> {
        let path = self.place(to)?;
        fs::write(&path, text)?;
        Ok(fs::set_permissions(&path, Permissions::from_mode(0o644))?)
    }

    /// Replaces a file of the tree by its compressed form, without the time of the compression.
    pub(super) fn compress(&self, path: &Path) -> Result<()> {
        run(command("gzip", ["-9", "-n", "-f"]).arg(path))
    }

    /// Returns the path of an installed file within the tree, and makes its directory.
    fn place(&self, to: &str) -> Result<PathBuf> {
        let path = self.path().join(to);
        let parent = path.parent().context("a file without a directory")?;
        fs::create_dir_all(parent)?;
        Ok(path)
    }

    /// Lets the binary write its manual pages into the tree, and compresses them.
    fn manual_pages(&self, binary: &Path) -> Result<()> {
        let pages = self.place("usr/share/man/man1/forebay.1")?;
        let dir = pages.parent().context("a page without a directory")?;
        run(command(&binary.to_string_lossy(), ["man"]).arg(dir))?;
        for page in fs::read_dir(dir)? {
            let path = page?.path();
            fs::set_permissions(&path, Permissions::from_mode(0o644))?;
            self.compress(&path)?;
        }
        Ok(())
    }
}

/// Returns the unit for further servers on one host. `forebay@NAME` serves `/etc/forebay/NAME.toml`.
fn of_instances(unit: &str) -> String {
    unit.replace("Description=Forebay NFS server", "Description=Forebay NFS server %i")
        .replace("/etc/forebay/forebay.toml", "/etc/forebay/%i.toml")
        .replace("/var/lib/forebay/main", "/var/lib/forebay/%i")
}
