//! Paths that the service manager hides from this process: `ProtectHome=` and `InaccessiblePaths=` of its unit
//! (systemd.exec(5)). Such a path looks missing, although the administrator sees it.

use std::path::{Component, Path, PathBuf};

/// The directory of systemd whose empty files and directories cover hidden paths, below the file system of /run.
const COVERS: &str = "/systemd/inaccessible/";

/// The directories that `ProtectHome=` hides.
const HOMES: [&str; 3] = ["/home", "/root", "/run/user"];

/// The number of symbolic links after which a path is given up, as in the kernel.
const MOST_LINKS: usize = 40;

/// Directories and files that are hidden from a process.
#[derive(Debug, Clone, Default)]
pub struct Hidden(Vec<PathBuf>);

impl Hidden {
    /// Returns the paths that are hidden from this process. There are none if /proc does not tell.
    pub fn of_this_process() -> Self {
        Self::in_table(&std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
    }

    /// Returns the directories that `ProtectHome=` hides on this host.
    pub fn homes() -> Self {
        let real = HOMES.iter().filter_map(|home| std::fs::canonicalize(home).ok());
        Hidden(HOMES.iter().map(PathBuf::from).chain(real).collect())
    }

    /// Returns true if `path` is hidden or leads to a hidden path.
    pub fn have(&self, path: &Path) -> bool {
        self.above(path).is_some()
    }

    /// Returns the hidden paths in the text of proc_pid_mountinfo(5).
    fn in_table(table: &str) -> Self {
        let covered = table.lines().filter_map(|line| {
            let mut fields = line.split(' ').skip(3);
            let (root, at) = (fields.next()?, fields.next()?);
            root.starts_with(COVERS).then(|| PathBuf::from(unescaped(at)))
        });
        Hidden(covered.collect())
    }

    /// Returns the sentence about a path that this process cannot see, or `None` if the path is not hidden.
    pub fn refusal(&self, path: &Path) -> Option<String> {
        let hidden = self.above(path)?;
        Some(format!(
            "{} is hidden from this server: its unit hides {} (ProtectHome= or InaccessiblePaths=); name the path in the \
             configuration, then run `systemctl daemon-reload` and restart the server, which keeps its clients",
            path.display(),
            hidden.display()
        ))
    }

    /// Returns the hidden directory that `path` leads to or through. Symbolic links are followed, as far as this
    /// process sees them.
    fn above(&self, path: &Path) -> Option<&Path> {
        if self.0.is_empty() {
            return None;
        }
        let mut path = path.to_owned();
        for _ in 0..MOST_LINKS {
            match self.walk(&path) {
                Walk::Hidden(hidden) => return Some(hidden),
                Walk::Link(next) => path = next,
                Walk::Seen => return None,
            }
        }
        None
    }

    /// Goes down a path to the first hidden directory or the first symbolic link.
    fn walk(&self, path: &Path) -> Walk<'_> {
        let mut here = PathBuf::new();
        let mut components = path.components();
        while let Some(component) = components.next() {
            if component == Component::ParentDir {
                here.pop();
                continue;
            }
            let link = here.join(component);
            if let Some(hidden) = self.0.iter().find(|hidden| **hidden == link) {
                return Walk::Hidden(hidden);
            }
            if let Ok(target) = std::fs::read_link(&link) {
                // An absolute target replaces the directory of the link.
                return Walk::Link(here.join(target).join(components.as_path()));
            }
            here = link;
        }
        Walk::Seen
    }
}

/// The end of a walk down a path.
enum Walk<'a> {
    /// This directory is hidden.
    Hidden(&'a Path),
    /// A symbolic link leads on to this path.
    Link(PathBuf),
    /// Nothing on the path is hidden or a link.
    Seen,
}

/// Decodes spaces, tabs, line ends and backslashes, which the kernel writes as octal numbers.
fn unescaped(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
22 28 0:20 / /proc rw,nosuid shared:5 - proc proc rw
28 1 8:1 / / rw,relatime master:1 - ext4 /dev/sda1 rw
61 28 0:23 /systemd/inaccessible/dir /home ro,nosuid,noexec master:2 - tmpfs tmpfs rw,mode=755
62 28 0:23 /systemd/inaccessible/dir /srv/two\\040words ro,nosuid,noexec master:2 - tmpfs tmpfs rw,mode=755
63 28 0:23 /user /run/user rw master:2 - tmpfs tmpfs rw,mode=755
";

    #[test]
    fn paths_below_covered_directories_are_hidden_and_no_others() {
        let hidden = Hidden::in_table(TABLE);
        let is_hidden = |path: &str| hidden.refusal(Path::new(path)).is_some();
        assert!(["/home", "/home/jo/data", "/srv/two words/x"].into_iter().all(is_hidden));
        assert!(!["/homes", "/srv", "/run/user/0", "/", "nbd://host/home"].into_iter().any(is_hidden));
        assert!(hidden.refusal(Path::new("/home/jo")).unwrap().contains("its unit hides /home "));
        assert!(Hidden::in_table("").refusal(Path::new("/home")).is_none());
    }

    #[test]
    fn a_path_that_leads_into_a_covered_directory_by_links_is_hidden() {
        let dir = tempfile::tempdir().unwrap();
        let [one, two, round] = ["one", "two", "round"].map(|name| dir.path().join(name));
        std::os::unix::fs::symlink("/home/jo", &one).unwrap();
        std::os::unix::fs::symlink("./one", &two).unwrap();
        std::os::unix::fs::symlink(&round, &round).unwrap();
        let hidden = Hidden::in_table(TABLE);
        let of = |path: PathBuf| hidden.above(&path).map(Path::to_owned);
        let home = Some(PathBuf::from("/home"));
        for path in [one.join("data"), two.join("data"), two.join("../x")] {
            assert_eq!(of(path), home);
        }
        assert_eq!(of("/srv/../home/jo".into()), home);
        assert_eq!([of(round.join("x")), of(dir.path().join("three"))], [None, None]);
    }
}
