//! Writes an initramfs: the "newc" cpio format of the kernel's `buffer-format.rst`, uncompressed.

const DIRECTORY: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;

/// An archive that is being written.
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    pub(crate) fn new() -> Self {
        Self { bytes: Vec::new(), entries: 0 }
    }

    pub(crate) fn directory(&mut self, name: &str) {
        self.entry(name, DIRECTORY, &[]);
    }

    pub(crate) fn file(&mut self, name: &str, content: &[u8]) {
        self.entry(name, EXECUTABLE, content);
    }

    /// Ends the archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    /// Appends one entry. Name and content are padded to four bytes.
    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        self.bytes.extend_from_slice(b"070701");
        // The fields are ino, mode, uid, gid, nlink, mtime, filesize, device (4), namesize with the NUL, checksum.
        let name_size = name.len() + 1;
        let fields =
            [self.entries as usize, mode as usize, 0, 0, 1, 0, content.len(), 0, 0, 0, 0, name_size, 0];
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
