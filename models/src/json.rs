//! Reading the JSON files beside the weights, with bounds and one-line errors.

use std::path::Path;

use serde::de::DeserializeOwned;

use crate::error::LoadError;

/// Largest JSON file that is read: tokenizer.json of the largest vocabularies is about 35 MB.
const MAX_BYTES: u64 = 128 << 20;

/// The whole file, at most [`MAX_BYTES`]; `None` if it does not exist.
pub(crate) fn bytes_optional(path: &Path) -> Result<Option<Vec<u8>>, LoadError> {
    let io = |source| LoadError::io(path, source);
    let size = match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(io)?.len(),
    };
    if size > MAX_BYTES {
        return Err(LoadError::invalid(path, "size", format_args!("{size} bytes is too large")));
    }
    std::fs::read(path).map(Some).map_err(io)
}

/// The file as a `T`; `None` if it does not exist.
pub(crate) fn read_optional<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, LoadError> {
    bytes_optional(path)?.map(|bytes| parse(path, &bytes)).transpose()
}

/// `bytes`, the contents of `path`, as a `T`.
pub(crate) fn parse<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T, LoadError> {
    serde_json::from_slice(bytes).map_err(|error| {
        let field = format!("line {} column {}", error.line(), error.column());
        let text = error.to_string();
        let problem = text.split(" at line ").next().unwrap_or(&text);
        LoadError::invalid(path, &field, problem)
    })
}
