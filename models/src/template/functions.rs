//! The functions that transformers gives to templates.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind, Output, State};

/// The message of a `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// `raise_exception(message)`: the conversation is not one that the template can render.
pub(super) fn raise_exception(message: String) -> Result<Value, Error> {
    let kind = ErrorKind::InvalidOperation;
    Err(Error::new(kind, "the template raised an exception").with_source(Raised(message)))
}

/// `strftime_now(format)`: the local time.
#[allow(clippy::needless_pass_by_value)] // minijinja passes arguments by value
pub(super) fn strftime_now(format: String) -> Result<String, Error> {
    jiff::fmt::strtime::format(format, &jiff::Zoned::now())
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, error.to_string()))
}

/// Prints values as Python does where the two differ.
pub(super) fn format(
    out: &mut Output<'_>,
    state: &State<'_, '_>,
    value: &Value,
) -> Result<(), Error> {
    match value.kind() {
        ValueKind::None => out.write_str("None").map_err(Error::from),
        ValueKind::Bool => {
            out.write_str(if value.is_true() { "True" } else { "False" }).map_err(Error::from)
        }
        _ => minijinja::escape_formatter(out, state, value),
    }
}
