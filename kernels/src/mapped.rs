//! Read-only file mappings.

use std::fs::File;
use std::io;
use std::path::Path;

/// A file mapped read-only. The file must not be truncated while it is mapped (weights files are
/// not written to while they are served).
#[derive(Debug)]
pub struct MappedFile {
    map: memmap2::Mmap,
}

impl MappedFile {
    /// Maps the whole file.
    ///
    /// # Errors
    /// What the operating system says: missing file, no permission, not a regular file.
    pub fn open(path: &Path) -> io::Result<MappedFile> {
        let file = File::open(path)?;
        // SAFETY: the mapping is read-only and private to this process; a weights file that is
        // truncated while it is served is outside what we protect against (see the type's doc).
        let map = unsafe { memmap2::Mmap::map(&file)? };
        Ok(MappedFile { map })
    }

    /// The bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}
