//! One error for everything that can be wrong with a model's files.

use std::path::{Path, PathBuf};

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

impl LoadError {
    /// The file `path` could not be read.
    pub(crate) fn io(path: &Path, source: std::io::Error) -> LoadError {
        LoadError::Io { path: path.to_owned(), source }
    }

    /// `field` of the file `path` is wrong. Text from the file may be in either, so line breaks
    /// and over-long names are cut: the error stays one line.
    pub(crate) fn invalid(path: &Path, field: &str, problem: impl std::fmt::Display) -> LoadError {
        LoadError::Invalid {
            path: path.to_owned(),
            field: one_line(field),
            problem: one_line(&problem.to_string()),
        }
    }

    /// `field` of the file `path` asks for something that we cannot do.
    pub(crate) fn unsupported(
        path: &Path,
        field: &str,
        problem: impl std::fmt::Display,
    ) -> LoadError {
        let problem = one_line(&problem.to_string());
        LoadError::Unsupported(format!("{}: {}: {problem}", path.display(), one_line(field)))
    }
}

/// Most characters of text from a file that go into an error.
const MAX_CHARS: usize = 400;

fn one_line(text: &str) -> String {
    let clean: String =
        text.chars().take(MAX_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(MAX_CHARS).is_some() { clean + "..." } else { clean }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_even_if_the_file_is_hostile() {
        let name = "x\n".repeat(10_000);
        let error = LoadError::invalid(Path::new("a.gguf"), &name, "bad\r\nname").to_string();
        assert!(error.starts_with("a.gguf: x x "), "{error}");
        assert!(error.ends_with("bad  name") && !error.contains('\n') && error.len() < 500);
    }
}
