//! Files that are changed at random through a server, and their expected contents.

use std::path::Path;

use super::*;

/// Largest size of a file in bytes.
const LARGEST: u64 = 600_000;

/// The files of one directory and their acknowledged contents.
pub(crate) struct Copies {
    files: Vec<(String, FileHandle, Vec<u8>)>,
    seed: u64,
    random: Random,
    made: usize,
}

impl Copies {
    /// Returns an empty set of files. Equal seeds make equal changes.
    pub(crate) fn new(seed: u64) -> Self {
        Copies { files: Vec::new(), seed, random: Random(seed.wrapping_mul(2).wrapping_add(1)), made: 0 }
    }

    /// Makes `count` acknowledged changes in the export's root.
    pub(crate) fn change(&mut self, c: &mut Client, count: usize) {
        let root = c.root();
        for _ in 0..count {
            match self.random.below(20) {
                _ if self.files.len() < 4 => self.create(c, &root),
                0 => self.create(c, &root),
                1 => self.remove(c, &root),
                2 => self.rename(c, &root),
                3 | 4 => self.truncate(c),
                5 => self.write_unstable(c),
                _ => self.write(c, StableHow::FileSync),
            }
        }
    }

    fn any(&mut self) -> usize {
        self.random.below(self.files.len() as u64) as usize
    }

    fn create(&mut self, c: &mut Client, root: &FileHandle) {
        let name = format!("file{}.{}", self.seed, self.made);
        self.made += 1;
        let handle = c.new_file(root, name.as_bytes(), 0o644);
        self.files.push((name, handle, Vec::new()));
    }

    fn remove(&mut self, c: &mut Client, root: &FileHandle) {
        let at = self.any();
        let (name, ..) = self.files.swap_remove(at);
        c.remove(root, name.as_bytes()).unwrap();
    }

    /// Renames a file over another file, or to a new name.
    fn rename(&mut self, c: &mut Client, root: &FileHandle) {
        let from = self.any();
        let (old, handle, contents) = self.files.swap_remove(from);
        let to = match self.random.below(2) {
            0 => {
                let at = self.any();
                self.files.swap_remove(at).0
            }
            _ => {
                self.made += 1;
                format!("renamed{}.{}", self.seed, self.made)
            }
        };
        c.rename((root, old.as_bytes()), (root, to.as_bytes())).unwrap();
        self.files.push((to, handle, contents));
    }

    fn truncate(&mut self, c: &mut Client) {
        let (at, to) = (self.any(), self.random.below(LARGEST));
        let (_, handle, contents) = &mut self.files[at];
        c.setattr(handle, size(to)).unwrap();
        contents.resize(to as usize, 0);
    }

    fn write(&mut self, c: &mut Client, stable: StableHow) {
        let at = self.any();
        let offset = self.random.below(LARGEST - 100_000);
        let largest = if self.random.below(8) == 0 { 100_000 } else { 9000 };
        let len = 1 + self.random.below(largest) as usize;
        let offset = if self.random.below(3) == 0 { offset / 4096 * 4096 } else { offset };
        let byte = self.random.below(255) as u8 + 1;
        let data: Vec<u8> = (0..len).map(|n| byte ^ (n / 512) as u8).collect();
        let (_, handle, contents) = &mut self.files[at];
        let wrote = c.write(handle, offset, &data, stable).unwrap();
        assert_eq!(wrote.count as usize, len);
        let end = offset as usize + len;
        if contents.len() < end {
            contents.resize(end, 0);
        }
        contents[offset as usize..end].copy_from_slice(&data);
    }

    fn write_unstable(&mut self, c: &mut Client) {
        for _ in 0..3 {
            self.write(c, StableHow::Unstable);
        }
        for (_, handle, _) in &self.files {
            c.commit(handle, 0, 0).unwrap();
        }
    }

    /// Checks that every file has its expected contents, read in pieces of all kinds, and its expected attributes.
    #[track_caller]
    pub(crate) fn check(&self, c: &mut Client) {
        let root = c.root();
        for (name, handle, contents) in &self.files {
            assert_eq!(c.find(&root, name.as_bytes()), *handle, "{name}");
            assert_eq!(c.attr(handle).size, contents.len() as u64, "size of {name}");
            let mut at = 0;
            for len in [4096, 100, 65_536, 1 << 20].into_iter().cycle() {
                let read = c.read(handle, at as u64, len).unwrap();
                let end = (at + len as usize).min(contents.len());
                assert!(read.data == contents[at..end], "{name} from {at} to {end} of {}", contents.len());
                assert_eq!(read.eof, end == contents.len(), "{name} at {end}");
                at = end;
                if read.eof {
                    break;
                }
            }
        }
    }

    /// Checks that the plain directory has exactly these files.
    #[track_caller]
    pub(crate) fn check_directory(&self, directory: &Path) {
        let mut names: Vec<_> = std::fs::read_dir(directory)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();

        let mut expected: Vec<_> = self.files.iter().map(|(name, ..)| name.clone()).collect();
        // These entries are not visible to clients.
        names.retain(|name| !matches!(&**name, "lost+found" | ".forebay"));
        names.sort();
        expected.sort();
        assert_eq!(names, expected);
        for (name, _, contents) in &self.files {
            assert!(
                std::fs::read(directory.join(name)).unwrap() == *contents,
                "{name} in {}",
                directory.display()
            );
        }
    }
}
