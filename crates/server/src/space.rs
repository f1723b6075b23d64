//! Messages about file systems and caches that are full or nearly full, with the remedy.

use std::path::Path;
use std::time::Duration;

use forebay_config::format_size;
use forebay_control::ExportStatus;

/// The percentage of free space below which a file system is nearly full.
const NEARLY_FULL: u64 = 1;
/// The space that the state directory needs, in bytes. Keys, notes and events take less than a tenth of it.
const STATE_NEEDS: u64 = 16 << 20;

/// Returns the free space for this process and the size of a path's file system, in bytes; `None` if it cannot be
/// asked.
pub(crate) fn free_space(path: &Path) -> Option<(u64, u64)> {
    let stat = rustix::fs::statvfs(path).ok()?;
    Some((stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize))
}

fn is_nearly_full(free: u64, total: u64) -> bool {
    total > 0 && u128::from(free) * 100 < u128::from(total) * u128::from(NEARLY_FULL)
}

/// Returns the faults of an export's file system, one sentence each.
pub(crate) fn export_troubles(export: &ExportStatus) -> Vec<String> {
    let path = export.path.display();
    let mut troubles = Vec::new();
    if export.silent_ns > 0 {
        troubles.push(format!(
            "the file system of {path} has not answered for {} s; see whether its disks do",
            Duration::from_nanos(export.silent_ns).as_secs()
        ));
    }
    if is_nearly_full(export.free_bytes, export.total_bytes) {
        let (free, total) = (format_size(export.free_bytes), format_size(export.total_bytes));
        troubles.push(format!(
            "the file system of {path} is nearly full: clients may write {free} more of {total}; remove files or make it larger"
        ));
    }
    if is_nearly_full(export.free_inodes, export.total_inodes) {
        troubles.push(format!(
            "the file system of {path} has {} of {} inodes left; remove files or make it larger",
            export.free_inodes, export.total_inodes
        ));
    }
    troubles
}

/// Returns the fault of the state directory. `space` has free and total bytes; `events` says why no events are kept.
pub(crate) fn state_trouble(
    path: &Path,
    space: Option<(u64, u64)>,
    events: Option<String>,
) -> Option<String> {
    let path = path.display();
    if let Some(error) = events {
        return Some(format!(
            "events cannot be kept in the state directory {path} ({error}): they are lost at a restart; mend or empty its file \
             system"
        ));
    }
    let (free, _) = space.filter(|(free, _)| *free < STATE_NEEDS)?;
    Some(format!(
        "the file system of the state directory {path} is nearly full, {} are left: the server may not be able to start again; \
         make room",
        format_size(free)
    ))
}

/// The part of the dirty limit from which a cache is nearly full. The throttle slows clients down then.
const BEHIND: f64 = 0.9;
/// The part of the dirty limit below which a cache is no longer nearly full. The distance to `BEHIND` keeps the health
/// steady while the dirty data goes up and down with every batch of destaging.
const CAUGHT_UP: f64 = 0.7;

/// The last judgement on whether destaging is behind.
#[derive(Debug, Default)]
pub(crate) struct Behind(bool);

impl Behind {
    /// Returns the sentence for `health` if the cache is nearly full of dirty data: `part` of the level is reached,
    /// with `dirty` bytes.
    pub(crate) fn trouble(&mut self, part: f64, dirty: u64) -> Option<String> {
        self.0 = part >= if self.0 { CAUGHT_UP } else { BEHIND };
        self.0.then(|| {
            format!(
                "the cache is nearly full of data that the backing store does not have yet ({}): clients write as slowly as the \
                 backing store takes it; see whether its disks are slow or busy, or add a cache device with `forebay pool add PATH`",
                format_size(dirty)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(free_bytes: u64, free_inodes: u64, silent_ns: u64) -> ExportStatus {
        ExportStatus {
            name: "/".into(),
            aliases: vec![],
            path: "/srv".into(),
            id: 1,
            fs_type: "xfs".into(),
            ordered: true,
            total_bytes: 1000 << 20,
            free_bytes,
            total_inodes: 1000,
            free_inodes,
            silent_ns,
        }
    }

    #[test]
    fn what_is_nearly_full_or_silent_is_named() {
        assert_eq!(export_troubles(&export(10 << 20, 10, 0)), Vec::<String>::new());
        let full = export_troubles(&export(9 << 20, 9, 0));
        assert!(full.len() == 2 && full[0].contains("9 MiB") && full[1].contains("9 of 1000"), "{full:?}");
        let silent = export_troubles(&export(10 << 20, 10, 3_000_000_000));
        assert!(silent[0].contains("has not answered for 3 s"), "{silent:?}");
        let unknown = ExportStatus { total_bytes: 0, total_inodes: 0, ..export(0, 0, 0) };
        assert_eq!(export_troubles(&unknown), Vec::<String>::new(), "not known is not full");
    }

    #[test]
    fn a_cache_is_nearly_full_until_destaging_has_caught_up_well() {
        let mut behind = Behind::default();
        let mut said = |part| behind.trouble(part, 3 << 30);
        assert_eq!([said(0.0), said(0.89)], [None, None]);
        assert!(said(0.9).is_some_and(|said| said.contains("3 GiB") && said.contains("pool add")));
        assert!(said(0.71).is_some(), "a batch was destaged");
        assert_eq!([said(0.69), said(0.89)], [None, None]);
    }

    #[test]
    fn the_state_directory_is_in_trouble_when_it_is_full_or_takes_no_events() {
        let path = Path::new("/state");
        assert_eq!(state_trouble(path, Some((STATE_NEEDS, 1 << 40)), None), None);
        assert_eq!(state_trouble(path, None, None), None);
        assert!(state_trouble(path, Some((STATE_NEEDS - 1, 1 << 40)), None).unwrap().contains("nearly full"));
        assert!(state_trouble(path, None, Some("why".into())).unwrap().contains("(why)"));
    }
}
