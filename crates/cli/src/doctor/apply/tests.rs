use super::*;
use std::os::unix::fs::PermissionsExt;

/// Makes a program of a host below `root`.
pub(in super::super) fn program(root: &Path, name: &str, script: &str) {
    let bin = root.join("bin");
    fs::create_dir_all(&bin).unwrap();
    // A program that is open for writing cannot be run. Another test may fork at that moment.
    let beside = bin.join(format!("{name}.new"));
    let shell = std::process::Command::new("sh")
        .args(["-c", "printf '#!/bin/sh\\n%s\\n' \"$2\" > \"$1\" && chmod 755 \"$1\"", "-"])
        .args([beside.as_os_str(), script.as_ref()])
        .status();
    assert!(shell.unwrap().success());
    fs::rename(beside, bin.join(name)).unwrap();
}

/// A host in a directory.
struct Host(tempfile::TempDir);

impl Host {
    fn new() -> Self {
        let host = Host(tempfile::TempDir::new().unwrap());
        fs::create_dir_all(host.path("/proc/sys/vm")).unwrap();
        fs::create_dir_all(host.path("/etc/sysctl.d")).unwrap();
        host
    }

    fn machine(&self) -> Machine {
        Machine::below(self.0.path())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.machine().at(Path::new(name))
    }

    fn list(&self) -> PathBuf {
        self.path("/state/list")
    }

    fn set(&self, name: &str, value: &str) {
        fs::write(self.path(name), value).unwrap();
    }

    fn get(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn apply_steps(&self, steps: Vec<Step>) -> anyhow::Result<bool> {
        apply(&[Check::warn("x", "y").mend_by("z", steps)], &self.machine(), &self.list())
    }

    /// Applies findings that are mended by writing.
    fn apply(&self, changes: &[(&str, &str)]) -> bool {
        let check = |(path, value): &(&str, &str)| Check::warn("x", "y").mend_by_writing(*path, *value);
        let checks: Vec<_> = changes.iter().map(check).collect();
        apply(&checks, &self.machine(), &self.list()).unwrap()
    }

    fn undo(&self) -> bool {
        undo(&self.machine(), &self.list()).unwrap()
    }

    /// Makes the list of changes look as if the host had started since.
    fn restart(&self) {
        let text = fs::read_to_string(self.list()).unwrap();
        fs::write(self.list(), text.replace(&boot(), "an-earlier-start")).unwrap();
    }

    /// Gives the host programs whose state is in the files `/enabled`, `/active`, `/loaded` and `/ring`.
    fn programs(&self) {
        fs::create_dir_all(self.path("/run/systemd/system")).unwrap();
        fs::create_dir_all(self.path("/sys/module")).unwrap();
        self.set("/ring", "256");
        let root = self.0.path();
        let at = root.display();
        let systemctl = format!(
            "cd {at}; case \"$1 $2\" in show*) echo loaded;; is-enabled*) test -e enabled;; is-active*) test -e active;; \
             'enable --now') touch enabled active;; 'disable --now') rm enabled active;; disable*) rm enabled;; \
             stop*) rm active;; esac"
        );
        program(root, "systemctl", &systemctl);
        let modprobe = format!(
            "cd {at}/sys/module; case \"$1\" in -r) test ! -e ../../busy && rmdir $2;; *) mkdir $1;; esac"
        );
        program(root, "modprobe", &modprobe);
        let ethtool = format!(
            "cd {at}; case $1 in -g) printf 'RX:\\t4096\\nRX:\\t%s\\n' $(cat ring);; -G) echo $4 > ring;; esac"
        );
        program(root, "ethtool", &ethtool);
    }
}

const RMEM: &str = "/proc/sys/rmem";
const KEPT: &str = "/etc/sysctl.d/90-forebay-rmem.conf";

#[test]
fn apply_writes_what_a_finding_proposes_and_undo_brings_it_back() {
    let host = Host::new();
    host.set(RMEM, "1\t2\t3\n");
    host.set("/scheduler", "[none] mq-deadline\n");
    host.set("/other", "7\n");
    assert!(host.apply(&[(RMEM, "4 5 6"), ("/scheduler", "mq-deadline")]));
    assert_eq!((host.get(RMEM), host.get("/other")), ("4 5 6".into(), "7\n".into()));
    let kept = host.get(KEPT);
    assert!(
        kept.starts_with("# Made by `forebay doctor --apply`") && kept.ends_with("\nrmem = 4 5 6\n"),
        "{kept}"
    );
    assert!(host.undo());
    assert_eq!((host.get(RMEM), host.get("/scheduler")), ("1 2 3".into(), "none".into()));
    assert!(!host.path(KEPT).exists());
    assert!(!host.list().exists() && host.undo());
}

#[test]
fn a_setting_that_was_changed_twice_gets_its_first_value() {
    let host = Host::new();
    host.set(RMEM, "1");
    host.apply(&[(RMEM, "2")]);
    host.apply(&[(RMEM, "3")]);
    assert!(host.get(KEPT).ends_with("rmem = 3\n"));
    assert!(host.undo());
    assert_eq!(host.get(RMEM), "1");
    assert!(!host.path(KEPT).exists());
}

#[test]
fn what_somebody_else_has_set_stays() {
    let host = Host::new();
    host.set(RMEM, "1");
    host.apply(&[(RMEM, "2")]);
    host.set(RMEM, "9");
    host.set(KEPT, "rmem = 9\n");
    assert!(host.undo());
    assert_eq!((host.get(RMEM), host.get(KEPT)), ("9".into(), "rmem = 9\n".into()));
}

#[test]
fn a_file_of_somebody_else_is_not_replaced() {
    let host = Host::new();
    host.set(RMEM, "1");
    host.set(KEPT, "rmem = 9\n");
    assert!(!host.apply(&[(RMEM, "2")]));
    assert_eq!(host.get(KEPT), "rmem = 9\n");
    assert!(host.undo());
    assert_eq!((host.get(RMEM), host.get(KEPT)), ("1".into(), "rmem = 9\n".into()));
}

#[test]
fn nothing_is_changed_if_the_list_cannot_be_written() {
    let host = Host::new();
    host.set(RMEM, "1");
    let refused = || format!("{:#}", host.apply_steps(vec![Step::write(RMEM, "2")]).unwrap_err());
    // A file is in the place of the directory.
    host.set("/state", "");
    assert!(refused().starts_with("/proc/sys/rmem is not changed: cannot write "));
    fs::remove_file(host.path("/state")).unwrap();
    // A directory is in the place of the list.
    fs::create_dir_all(host.list()).unwrap();
    refused();
    fs::remove_dir(host.list()).unwrap();
    if rustix::process::geteuid().is_root() {
        // A full disk takes the name of the list, and no line of it.
        let full = host.path("/state");
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=4k", "none"])
            .arg(&full)
            .status();
        if mounted.is_ok_and(|status| status.success()) {
            fs::write(full.join("filler"), [0; 4096]).unwrap();
            let refusal = std::panic::catch_unwind(std::panic::AssertUnwindSafe(refused));
            let is_undone = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| host.undo()));
            std::process::Command::new("umount").arg(&full).status().unwrap();
            let refusal = refusal.unwrap();
            assert!(refusal.contains("No space left"), "{refusal}");
            assert!(is_undone.unwrap(), "the list has no change");
        }
    }
    assert_eq!(host.get(RMEM), "1");
}

#[test]
fn a_crash_before_or_after_a_change_can_be_undone() {
    let host = Host::new();
    host.set(RMEM, "1");
    host.apply(&[(RMEM, "2")]);
    // The changes were written down, and the crash came before they were made.
    host.set(RMEM, "1");
    fs::rename(host.path(KEPT), host.path(KEPT).with_extension("new")).unwrap();
    // The next change was being written down.
    let mut list = OpenOptions::new().append(true).open(host.list()).unwrap();
    list.write_all(b"{\"boot\":\"x\",\"ki").unwrap();
    host.set("/b", "1");
    assert!(host.apply(&[("/b", "2")]), "a further change is added behind");
    assert!(host.undo());
    assert_eq!((host.get(RMEM), host.get("/b")), ("1".into(), "1".into()));
    assert_eq!(fs::read_dir(host.path("/etc/sysctl.d")).unwrap().count(), 0);
}

#[test]
fn an_undo_that_a_crash_has_cut_short_can_be_repeated() {
    let host = Host::new();
    host.programs();
    host.set(RMEM, "1");
    host.apply(&[(RMEM, "2")]);
    let unit = Step::Unit { name: "chrony.service".to_owned() };
    assert!(host.apply_steps(vec![unit, Step::Module { name: "tls".to_owned() }]).unwrap());
    let list = fs::read(host.list()).unwrap();
    assert!(host.undo());
    fs::write(host.list(), list).unwrap();
    assert!(host.undo());
    assert_eq!(host.get(RMEM), "1");
    assert!(!host.path(KEPT).exists() && !host.path("/enabled").exists() && !host.list().exists());
}

#[test]
fn a_later_start_of_the_host_ends_settings_but_for_those_that_a_file_keeps() {
    let host = Host::new();
    host.set(RMEM, "1");
    host.set("/sys-file", "1");
    host.apply(&[(RMEM, "2"), ("/sys-file", "2")]);
    host.restart();
    assert!(host.undo());
    assert_eq!(host.get("/sys-file"), "2", "it may be another device's by now");
    assert_eq!(host.get(RMEM), "1", "the file had set it again");
    assert!(!host.path(KEPT).exists());
}

#[test]
fn a_host_without_the_directory_changes_only_the_value() {
    let host = Host::new();
    fs::remove_dir(host.path("/etc/sysctl.d")).unwrap();
    host.set(RMEM, "1");
    assert!(host.apply(&[(RMEM, "2")]));
    assert_eq!(host.get(RMEM), "2");
    host.restart();
    assert!(host.undo());
    assert_eq!(host.get(RMEM), "2", "no file had set it: somebody else has");
}

#[test]
fn units_modules_and_rings_are_changed_and_brought_back() {
    let host = Host::new();
    host.programs();
    let steps = || {
        vec![
            Step::Unit { name: "chrony.service".to_owned() },
            Step::Module { name: "tls".to_owned() },
            Step::Ring { interface: "eth0".to_owned(), size: 4096 },
        ]
    };
    let exists = |name: &str| host.path(name).exists();
    assert!(host.apply_steps(steps()).unwrap());
    assert!(exists("/enabled") && exists("/active") && exists("/sys/module/tls"));
    assert_eq!(host.get("/ring"), "4096\n");
    let lines = fs::read_to_string(host.list()).unwrap();
    assert!(host.apply_steps(steps()).unwrap());
    assert_eq!(fs::read_to_string(host.list()).unwrap(), lines, "what is so already is no change");
    assert!(host.undo());
    assert!(!exists("/enabled") && !exists("/active") && !exists("/sys/module/tls"));
    assert_eq!(host.get("/ring"), "256\n");

    // A unit that was enabled and did not run is only stopped. A module in use, and a ring of another size, stay.
    host.set("/enabled", "");
    assert!(host.apply_steps(steps()).unwrap());
    host.set("/busy", "");
    host.set("/ring", "1024\n");
    assert!(host.undo());
    assert!(exists("/enabled") && !exists("/active") && exists("/sys/module/tls"));
    assert_eq!(host.get("/ring"), "1024\n");
}

#[test]
fn a_step_that_fails_ends_its_finding_and_no_other() {
    let host = Host::new();
    host.set("/a", "1");
    let failing = vec![Step::Module { name: "tls".to_owned() }, Step::write("/a", "2")];
    assert!(!host.apply_steps(failing).unwrap(), "modprobe is not installed");
    assert_eq!(host.get("/a"), "1");
    assert!(!host.apply(&[("/missing", "2"), ("/a", "2")]));
    assert_eq!(host.get("/a"), "2");
}

#[test]
fn a_change_that_cannot_be_undone_stays_on_the_list() {
    let host = Host::new();
    host.programs();
    assert!(host.apply_steps(vec![Step::Ring { interface: "eth0".to_owned(), size: 4096 }]).unwrap());
    program(host.0.path(), "ethtool", "test $1 = -g && printf 'RX:\\t4096\\nRX:\\t4096\\n'");
    assert!(!host.undo());
    assert_eq!(read(&host.list()).unwrap().len(), 1);
    assert_eq!(fs::metadata(host.list()).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn dirty_background_bytes_is_undone_by_the_ratio() {
    let host = Host::new();
    host.set("/proc/sys/vm/dirty_background_bytes", "0\n");
    host.set("/proc/sys/vm/dirty_background_ratio", "10\n");
    host.apply(&[("/proc/sys/vm/dirty_background_bytes", "512")]);
    host.set("/proc/sys/vm/dirty_background_ratio", "0\n");
    assert!(host.undo());
    assert_eq!(host.get("/proc/sys/vm/dirty_background_ratio"), "10");
    assert_eq!(host.get("/proc/sys/vm/dirty_background_bytes"), "512", "the kernel sets it to 0 by itself");
}
