//! A reader of GGUF files (versions 2 and 3, little-endian) over a mapped file.
//!
//! The format: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. We read it ourselves
//! because candle's reader allocates by the lengths that the file claims (a few broken bytes ask
//! for terabytes) and copies every string, which takes 190 ms for a vocabulary of 49,000 tokens.
//! Here each count and length is compared with what is left of the file before it is used, and
//! arrays stay where they are: what is kept is where they begin and end.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::ops::Range;
use std::path::{Path, PathBuf};

use kernels::MappedFile;

use super::{Found, TensorType};
use crate::error::LoadError;

/// Most metadata pairs or tensors: real files have below 100 and below 3,000.
const MAX_ENTRIES: u64 = 1 << 16;
/// Longest metadata key or tensor name, as the format says for keys.
const MAX_NAME: usize = 65_535;
/// Most dimensions of a tensor.
const MAX_DIMS: u32 = 4;

/// An open GGUF file: its metadata and where its tensors are.
#[derive(Debug)]
pub(crate) struct Gguf {
    path: PathBuf,
    file: MappedFile,
    metadata: HashMap<String, Value>,
    tensors: HashMap<String, Entry>,
}

/// A metadata value; text and arrays are ranges of the file.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(Range<usize>),
    Array(Array),
}

/// An array whose extent has been checked; its elements are read when asked for.
#[derive(Clone, Debug)]
pub(super) struct Array {
    pub(super) kind: u32,
    pub(super) count: usize,
    pub(super) at: Range<usize>,
}

#[derive(Debug)]
struct Entry {
    /// Sizes, fastest first, as the file has them.
    dims: Vec<u64>,
    kind: u32,
    data: Range<usize>,
}

impl Gguf {
    /// Maps the file and reads its header.
    pub(crate) fn open(path: &Path) -> Result<Gguf, LoadError> {
        let file = MappedFile::open(path).map_err(|source| LoadError::io(path, source))?;
        let mut cursor = Cursor { path, bytes: file.bytes(), at: 0, section: "header".into() };
        let (num_tensors, num_pairs) = read_header(&mut cursor)?;
        let metadata = read_metadata(&mut cursor, num_pairs)?;
        let alignment = alignment(path, &metadata)?;
        let tensors = read_tensors(&mut cursor, num_tensors, alignment)?;
        Ok(Gguf { path: path.to_owned(), metadata, tensors, file })
    }

    /// The file's path, for errors.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes(&self) -> u64 {
        self.file.bytes().len() as u64
    }

    /// Whether a tensor of this (GGUF) name exists.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    pub(crate) fn find(&self, name: &str) -> Result<Found<'_>, LoadError> {
        let Some(entry) = self.tensors.get(name) else {
            let field = format!("tensor {name}");
            return Err(LoadError::invalid(&self.path, &field, "is missing"));
        };
        Ok(Found {
            path: &self.path,
            name: name.to_owned(),
            dtype: tensor_type(entry.kind).ok_or_else(|| type_name(entry.kind)),
            shape: entry.dims.iter().rev().copied().collect(),
            data: &self.file.bytes()[entry.data.clone()],
        })
    }

    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.get(key)
    }

    pub(super) fn slice(&self, range: &Range<usize>) -> &[u8] {
        &self.file.bytes()[range.clone()]
    }
}

/// Reads little-endian values, never past the end. `section` says what is being read, for errors.
pub(super) struct Cursor<'a> {
    pub(super) path: &'a Path,
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
    pub(super) section: String,
}

impl<'a> Cursor<'a> {
    pub(super) fn invalid(&self, problem: impl std::fmt::Display) -> LoadError {
        LoadError::invalid(self.path, &self.section, problem)
    }

    fn left(&self) -> u64 {
        (self.bytes.len() - self.at) as u64
    }

    pub(super) fn take(&mut self, len: u64) -> Result<&'a [u8], LoadError> {
        if len > self.left() {
            return Err(self.invalid(format_args!(
                "needs {len} bytes at offset {}, the file has {} left (is the download complete?)",
                self.at,
                self.left()
            )));
        }
        // `len` is at most the file's size, which fits a usize.
        let taken = &self.bytes[self.at..][..len as usize];
        self.at += taken.len();
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], LoadError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64)?);
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32, LoadError> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, LoadError> {
        self.array().map(u64::from_le_bytes)
    }

    /// The range of a length-prefixed string.
    pub(super) fn text(&mut self) -> Result<Range<usize>, LoadError> {
        let len = self.u64()?;
        let start = self.at;
        self.take(len)?;
        Ok(start..self.at)
    }

    /// A metadata key or tensor name.
    fn name(&mut self) -> Result<String, LoadError> {
        let range = self.text()?;
        if range.is_empty() || range.len() > MAX_NAME {
            return Err(self.invalid(format_args!("has a name of {} bytes", range.len())));
        }
        match std::str::from_utf8(&self.bytes[range]) {
            Ok(name) => Ok(name.to_owned()),
            Err(_) => Err(self.invalid("has a name that is not UTF-8")),
        }
    }
}

fn read_header(cursor: &mut Cursor<'_>) -> Result<(u64, u64), LoadError> {
    if cursor.take(4)? != b"GGUF" {
        return Err(cursor.invalid("is not that of a GGUF file"));
    }
    match cursor.u32()? {
        2 | 3 => {}
        0x0200_0000 | 0x0300_0000 => {
            return Err(cursor.invalid("big-endian files are not supported"));
        }
        version => {
            let problem = format_args!("GGUF version {version} is not supported (2 and 3 are)");
            return Err(cursor.invalid(problem));
        }
    }
    let counts = (cursor.u64()?, cursor.u64()?);
    for (what, count) in [("tensors", counts.0), ("metadata pairs", counts.1)] {
        if count > MAX_ENTRIES {
            return Err(cursor.invalid(format_args!("claims {count} {what}")));
        }
    }
    Ok(counts)
}

fn read_metadata(cursor: &mut Cursor<'_>, num: u64) -> Result<HashMap<String, Value>, LoadError> {
    let mut metadata = HashMap::new();
    for index in 0..num {
        cursor.section = format!("metadata pair {index}");
        let key = cursor.name()?;
        cursor.section = format!("metadata {key}");
        let kind = cursor.u32()?;
        let value = read_value(cursor, kind)?;
        match metadata.entry(key) {
            Slot::Vacant(slot) => slot.insert(value),
            Slot::Occupied(_) => return Err(cursor.invalid("appears twice")),
        };
    }
    Ok(metadata)
}

fn read_value(cursor: &mut Cursor<'_>, kind: u32) -> Result<Value, LoadError> {
    Ok(match kind {
        8 => Value::Text(cursor.text()?),
        9 => Value::Array(read_array(cursor)?),
        _ => match scalar_bytes(kind) {
            Some(bytes) => scalar(kind, cursor.take(bytes)?),
            None => return Err(cursor.invalid(format_args!("has the unknown type {kind}"))),
        },
    })
}

/// Bytes of a scalar of the metadata type `kind`.
pub(super) fn scalar_bytes(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// The scalar of type `kind` in `bytes`, as many as [`scalar_bytes`] says.
pub(super) fn scalar(kind: u32, bytes: &[u8]) -> Value {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let unsigned = u64::from_le_bytes(wide);
    // Moves the sign of an n-byte integer to the top and back.
    let shift = 64 - 8 * bytes.len() as u32;
    match kind {
        1 | 3 | 5 | 11 => Value::Signed((unsigned << shift).cast_signed() >> shift),
        6 => Value::Float(f64::from(f32::from_bits(unsigned as u32))),
        12 => Value::Float(f64::from_bits(unsigned)),
        7 => Value::Bool(unsigned != 0),
        _ => Value::Unsigned(unsigned),
    }
}

fn read_array(cursor: &mut Cursor<'_>) -> Result<Array, LoadError> {
    let kind = cursor.u32()?;
    let count = cursor.u64()?;
    let start = cursor.at;
    match (kind, scalar_bytes(kind)) {
        (8, _) => {
            // A string takes at least the 8 bytes of its length.
            if count > cursor.left() / 8 {
                return Err(cursor.invalid(format_args!(
                    "claims {count} strings, the file has {} bytes left",
                    cursor.left()
                )));
            }
            for _ in 0..count {
                cursor.text()?;
            }
        }
        (_, Some(bytes)) => {
            cursor.take(count.saturating_mul(bytes))?;
        }
        _ => return Err(cursor.invalid(format_args!("is an array of the type {kind}"))),
    }
    Ok(Array { kind, count: count as usize, at: start..cursor.at })
}

fn alignment(path: &Path, metadata: &HashMap<String, Value>) -> Result<u64, LoadError> {
    const KEY: &str = "general.alignment";
    match metadata.get(KEY) {
        None => Ok(32),
        Some(Value::Unsigned(n)) if n.is_power_of_two() && *n <= 65_536 => Ok(*n),
        Some(_) => Err(LoadError::invalid(path, KEY, "is not a power of two up to 65536")),
    }
}

fn read_tensors(
    cursor: &mut Cursor<'_>,
    num: u64,
    alignment: u64,
) -> Result<HashMap<String, Entry>, LoadError> {
    let mut raw = Vec::new();
    for index in 0..num {
        cursor.section = format!("tensor {index}");
        let name = cursor.name()?;
        cursor.section = format!("tensor {name}");
        let num_dims = cursor.u32()?;
        if num_dims == 0 || num_dims > MAX_DIMS {
            return Err(cursor.invalid(format_args!("has {num_dims} dimensions")));
        }
        let dims = (0..num_dims).map(|_| cursor.u64()).collect::<Result<Vec<_>, _>>()?;
        let kind = cursor.u32()?;
        raw.push((name, dims, kind, cursor.u64()?));
    }
    let base = (cursor.at as u64).next_multiple_of(alignment);
    let mut tensors = HashMap::new();
    for (name, dims, kind, offset) in raw {
        cursor.section = format!("tensor {name}");
        let data = data_range(cursor, &dims, kind, base, offset, alignment)?;
        if tensors.insert(name, Entry { dims, kind, data }).is_some() {
            return Err(cursor.invalid("appears twice"));
        }
    }
    Ok(tensors)
}

/// Where a tensor's data lies, checked against the file's size. A type that we do not read gets an
/// empty range: it is an error only if that tensor is asked for.
fn data_range(
    cursor: &Cursor<'_>,
    dims: &[u64],
    kind: u32,
    base: u64,
    offset: u64,
    alignment: u64,
) -> Result<Range<usize>, LoadError> {
    if !offset.is_multiple_of(alignment) {
        let problem = format_args!("has the offset {offset}, not a multiple of {alignment}");
        return Err(cursor.invalid(problem));
    }
    let Some(dtype) = tensor_type(kind) else { return Ok(0..0) };
    let bytes = tensor_bytes(dtype, dims).ok_or_else(|| {
        let problem = format!("has the sizes {dims:?}, which {} cannot have", type_name(kind));
        cursor.invalid(problem)
    })?;
    let end = base.checked_add(offset).and_then(|start| start.checked_add(bytes));
    match end {
        Some(end) if end <= cursor.bytes.len() as u64 => Ok((end - bytes) as usize..end as usize),
        _ => Err(cursor.invalid(format_args!(
            "needs {bytes} bytes at {offset} of the data section, past the end of the file (is \
             the download complete?)"
        ))),
    }
}

/// Bytes of a tensor, `None` for sizes that are zero, overflow, or are not whole blocks.
fn tensor_bytes(dtype: TensorType, dims: &[u64]) -> Option<u64> {
    let (cols, outer) = dims.split_first()?;
    let row = dtype.row_bytes(usize::try_from(*cols).ok()?)? as u64;
    outer.iter().try_fold(row, |bytes, dim| bytes.checked_mul(*dim)).filter(|bytes| *bytes > 0)
}

fn tensor_type(kind: u32) -> Option<TensorType> {
    Some(match kind {
        0 => TensorType::F32,
        1 => TensorType::F16,
        2 => TensorType::Q4_0,
        3 => TensorType::Q4_1,
        8 => TensorType::Q8_0,
        12 => TensorType::Q4_K,
        14 => TensorType::Q6_K,
        30 => TensorType::BF16,
        _ => return None,
    })
}

/// ggml's names of its tensor types, by number; gaps are types that were removed.
fn type_name(kind: u32) -> String {
    const NAMES: [&str; 31] = [
        "F32", "F16", "Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K",
        "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL",
        "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16",
    ];
    let known = NAMES.get(kind as usize).map(|name| (*name).to_owned());
    known.unwrap_or_else(|| format!("the unknown type {kind}"))
}
