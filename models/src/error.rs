//! One error for everything that can be wrong with a model's files.

use std::path::PathBuf;

/// Why a model could not be loaded: one line that names the file, the field, and the fix.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("{}: {field}: {problem}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The field, tensor or section.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Nothing was found under that name; says where it was looked for and how to get it.
    #[error("{0}")]
    NotFound(String),
    /// A valid model that we cannot serve.
    #[error("{0}")]
    Unsupported(String),
    /// The device refused, out of memory most likely.
    #[error("device: {0}")]
    Device(String),
}
