//! The filter `tojson` as transformers defines it: Python's `json.dumps` without escaping of
//! non-ASCII characters.

use std::io;

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::Formatter;

/// Widest indentation that is taken.
const MAX_INDENT: usize = 16;

/// `value | tojson`, with `indent`, `ensure_ascii` and `separators` as in Python.
#[allow(clippy::needless_pass_by_value)] // minijinja passes arguments by value
pub(super) fn tojson(value: Value, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    let ensure_ascii: Option<bool> = kwargs.get("ensure_ascii")?;
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    kwargs.assert_all_used()?;
    if indent.is_some_and(|indent| indent > MAX_INDENT) {
        let problem = format!("tojson: indent is more than {MAX_INDENT}");
        return Err(Error::new(ErrorKind::InvalidOperation, problem));
    }
    let items = if indent.is_some() { "," } else { ", " };
    let separators = separators.unwrap_or_else(|| vec![items.into(), ": ".into()]);
    let Ok([items, keys]) = <[String; 2]>::try_from(separators) else {
        let problem = "tojson: separators are not two";
        return Err(Error::new(ErrorKind::InvalidOperation, problem));
    };
    let style = Python {
        indent,
        items,
        keys,
        ensure_ascii: ensure_ascii.unwrap_or(false),
        depth: 0,
        empty: true,
    };
    let mut out = Vec::new();
    let fail = |error: String| Error::new(ErrorKind::BadSerialization, error);
    value
        .serialize(&mut serde_json::Serializer::with_formatter(&mut out, style))
        .map_err(|error| fail(error.to_string()))?;
    String::from_utf8(out).map(Value::from).map_err(|error| fail(error.to_string()))
}

/// Writes JSON as Python does.
struct Python {
    indent: Option<usize>,
    items: String,
    keys: String,
    ensure_ascii: bool,
    depth: usize,
    /// Nothing has been written yet inside the innermost brackets.
    empty: bool,
}

impl Python {
    fn newline<W: ?Sized + io::Write>(&self, out: &mut W) -> io::Result<()> {
        match self.indent {
            None => Ok(()),
            Some(indent) => write!(out, "\n{:width$}", "", width = indent * self.depth),
        }
    }

    fn open<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: u8) -> io::Result<()> {
        self.depth += 1;
        self.empty = true;
        out.write_all(&[bracket])
    }

    fn close<W: ?Sized + io::Write>(&mut self, out: &mut W, bracket: u8) -> io::Result<()> {
        self.depth -= 1;
        if !self.empty {
            self.newline(out)?;
        }
        self.empty = false;
        out.write_all(&[bracket])
    }

    fn separate<W: ?Sized + io::Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.empty = false;
        if !first {
            out.write_all(self.items.as_bytes())?;
        }
        self.newline(out)
    }
}

impl Formatter for Python {
    fn begin_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b'[')
    }

    fn end_array<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b']')
    }

    fn begin_array_value<W>(&mut self, out: &mut W, first: bool) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        self.separate(out, first)
    }

    fn begin_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b'{')
    }

    fn end_object<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b'}')
    }

    fn begin_object_key<W>(&mut self, out: &mut W, first: bool) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        self.separate(out, first)
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.keys.as_bytes())
    }

    fn write_string_fragment<W>(&mut self, out: &mut W, text: &str) -> io::Result<()>
    where
        W: ?Sized + io::Write,
    {
        if !self.ensure_ascii {
            return out.write_all(text.as_bytes());
        }
        for c in text.chars() {
            if c.is_ascii() {
                write!(out, "{c}")?;
            } else {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    write!(out, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }

    /// As Python's `repr`: the shortest digits, an exponent from 1e16 up and below 1e-4.
    fn write_f64<W: ?Sized + io::Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        let scientific = format!("{value:e}");
        let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        if (-4..16).contains(&exponent) {
            return write!(out, "{value:?}");
        }
        let sign = if exponent < 0 { '-' } else { '+' };
        write!(out, "{digits}e{sign}{:02}", exponent.unsigned_abs())
    }
}
