//! Typed access to GGUF metadata, with errors that name the key.

use super::gguf::{Array, Cursor, Gguf, Value, scalar, scalar_bytes};
use crate::error::LoadError;

impl Gguf {
    /// An error about the metadata `key`.
    pub(crate) fn invalid(&self, key: &str, problem: impl std::fmt::Display) -> LoadError {
        LoadError::invalid(self.path(), key, problem)
    }

    /// A non-negative integer of any width.
    pub(crate) fn uint(&self, key: &str) -> Result<Option<u64>, LoadError> {
        self.value(key)
            .map(|value| as_uint(value).ok_or_else(|| self.wrong(key, "a non-negative integer")))
            .transpose()
    }

    /// A number.
    pub(crate) fn float(&self, key: &str) -> Result<Option<f64>, LoadError> {
        self.value(key)
            .map(|value| as_float(value).ok_or_else(|| self.wrong(key, "a number")))
            .transpose()
    }

    /// A boolean.
    pub(crate) fn boolean(&self, key: &str) -> Result<Option<bool>, LoadError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(_) => Err(self.wrong(key, "a boolean")),
        }
    }

    /// A string.
    pub(crate) fn text(&self, key: &str) -> Result<Option<&str>, LoadError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Text(range)) => match std::str::from_utf8(self.slice(range)) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(self.wrong(key, "valid UTF-8")),
            },
            Some(_) => Err(self.wrong(key, "a string")),
        }
    }

    /// An array of strings.
    pub(crate) fn texts(&self, key: &str) -> Result<Option<Vec<&str>>, LoadError> {
        let Some(array) = self.array(key)? else { return Ok(None) };
        if array.kind != 8 {
            return Err(self.wrong(key, "an array of strings"));
        }
        let bytes = self.slice(&array.at);
        let mut cursor = Cursor { path: self.path(), bytes, at: 0, section: key.to_owned() };
        let mut texts = Vec::with_capacity(array.count);
        for index in 0..array.count {
            let range = cursor.text()?;
            let text = std::str::from_utf8(&bytes[range]);
            texts.push(text.map_err(|_| self.invalid(key, format!("[{index}] is not UTF-8")))?);
        }
        Ok(Some(texts))
    }

    /// An array of integers.
    pub(crate) fn uints(&self, key: &str) -> Result<Option<Vec<u64>>, LoadError> {
        let values = self.scalars(key)?;
        let uints = values.map(|values| values.iter().map(as_uint).collect::<Option<_>>());
        uints
            .map(|uints| uints.ok_or_else(|| self.wrong(key, "an array of non-negative integers")))
            .transpose()
    }

    /// An array of numbers.
    pub(crate) fn floats(&self, key: &str) -> Result<Option<Vec<f64>>, LoadError> {
        let values = self.scalars(key)?;
        let floats = values.map(|values| values.iter().map(as_float).collect::<Option<_>>());
        floats
            .map(|floats| floats.ok_or_else(|| self.wrong(key, "an array of numbers")))
            .transpose()
    }

    /// Length of an array of any type.
    pub(crate) fn array_len(&self, key: &str) -> Result<Option<usize>, LoadError> {
        Ok(self.array(key)?.map(|array| array.count))
    }

    fn scalars(&self, key: &str) -> Result<Option<Vec<Value>>, LoadError> {
        let Some(array) = self.array(key)? else { return Ok(None) };
        let Some(width) = scalar_bytes(array.kind) else {
            return Err(self.wrong(key, "an array of numbers"));
        };
        let chunks = self.slice(&array.at).chunks_exact(width as usize);
        Ok(Some(chunks.map(|bytes| scalar(array.kind, bytes)).collect()))
    }

    fn array(&self, key: &str) -> Result<Option<&Array>, LoadError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some(array)),
            Some(_) => Err(self.wrong(key, "an array")),
        }
    }

    fn wrong(&self, key: &str, wanted: &str) -> LoadError {
        self.invalid(key, format_args!("is not {wanted}"))
    }
}

fn as_uint(value: &Value) -> Option<u64> {
    match value {
        Value::Unsigned(value) => Some(*value),
        Value::Signed(value) => u64::try_from(*value).ok(),
        _ => None,
    }
}

fn as_float(value: &Value) -> Option<f64> {
    match value {
        Value::Float(value) => Some(*value),
        Value::Unsigned(value) => Some(*value as f64),
        Value::Signed(value) => Some(*value as f64),
        _ => None,
    }
}
