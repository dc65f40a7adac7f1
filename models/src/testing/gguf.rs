//! A GGUF file under construction.

use crate::checkpoint::TensorType;

/// Metadata and tensors in order; [`Gguf::bytes`] puts them together.
#[derive(Clone, Debug, Default)]
pub struct Gguf {
    pairs: Vec<(String, Vec<u8>)>,
    tensors: Vec<Tensor>,
}

#[derive(Clone, Debug)]
struct Tensor {
    name: String,
    /// Fastest first.
    dims: Vec<u64>,
    kind: u32,
    data: Vec<u8>,
}

fn text(value: &str) -> Vec<u8> {
    let mut out = (value.len() as u64).to_le_bytes().to_vec();
    out.extend_from_slice(value.as_bytes());
    out
}

impl Gguf {
    /// Sets `key` to a value of the metadata type `kind` in its stored form; replaces an old one.
    pub fn raw(&mut self, key: &str, kind: u32, value: &[u8]) -> &mut Gguf {
        self.remove(key);
        let mut typed = kind.to_le_bytes().to_vec();
        typed.extend_from_slice(value);
        self.pairs.push((key.to_owned(), typed));
        self
    }

    /// Removes `key`.
    pub fn remove(&mut self, key: &str) -> &mut Gguf {
        self.pairs.retain(|(old, _)| old != key);
        self
    }

    /// Sets a u32.
    pub fn uint(&mut self, key: &str, value: u32) -> &mut Gguf {
        self.raw(key, 4, &value.to_le_bytes())
    }

    /// Sets an f32.
    pub fn float(&mut self, key: &str, value: f32) -> &mut Gguf {
        self.raw(key, 6, &value.to_le_bytes())
    }

    /// Sets a boolean.
    pub fn boolean(&mut self, key: &str, value: bool) -> &mut Gguf {
        self.raw(key, 7, &[u8::from(value)])
    }

    /// Sets a string.
    pub fn text(&mut self, key: &str, value: &str) -> &mut Gguf {
        self.raw(key, 8, &text(value))
    }

    fn array(&mut self, key: &str, kind: u32, items: &[Vec<u8>]) -> &mut Gguf {
        let mut out = kind.to_le_bytes().to_vec();
        out.extend_from_slice(&(items.len() as u64).to_le_bytes());
        out.extend(items.iter().flatten());
        self.raw(key, 9, &out)
    }

    /// Sets an array of strings.
    pub fn texts<S: AsRef<str>>(&mut self, key: &str, values: &[S]) -> &mut Gguf {
        let items: Vec<_> = values.iter().map(|value| text(value.as_ref())).collect();
        self.array(key, 8, &items)
    }

    /// Sets an array of i32.
    pub fn ints(&mut self, key: &str, values: &[i32]) -> &mut Gguf {
        let items: Vec<_> = values.iter().map(|value| value.to_le_bytes().to_vec()).collect();
        self.array(key, 5, &items)
    }

    /// Sets an array of f32.
    pub fn floats(&mut self, key: &str, values: &[f32]) -> &mut Gguf {
        let items: Vec<_> = values.iter().map(|value| value.to_le_bytes().to_vec()).collect();
        self.array(key, 6, &items)
    }

    /// Adds a tensor of `rows x cols` (a vector if `rows` is 1).
    pub fn tensor(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
        dtype: TensorType,
        data: Vec<u8>,
    ) -> &mut Gguf {
        let mut dims = vec![cols as u64];
        if rows != 1 {
            dims.push(rows as u64);
        }
        self.raw_tensor(name, &dims, kind(dtype), data)
    }

    /// Adds a tensor, or replaces one, with any sizes (fastest first) and any type number.
    pub fn raw_tensor(&mut self, name: &str, dims: &[u64], kind: u32, data: Vec<u8>) -> &mut Gguf {
        let tensor = Tensor { name: name.to_owned(), dims: dims.to_vec(), kind, data };
        self.remove_tensor(name);
        self.tensors.push(tensor);
        self
    }

    /// Removes a tensor.
    pub fn remove_tensor(&mut self, name: &str) -> &mut Gguf {
        self.tensors.retain(|old| old.name != name);
        self
    }

    /// The file, version 3, aligned to 32 bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend_from_slice(&(self.tensors.len() as u64).to_le_bytes());
        out.extend_from_slice(&(self.pairs.len() as u64).to_le_bytes());
        for (key, value) in &self.pairs {
            out.extend(text(key));
            out.extend_from_slice(value);
        }
        let mut data = Vec::new();
        for tensor in &self.tensors {
            out.extend(text(&tensor.name));
            out.extend_from_slice(&(tensor.dims.len() as u32).to_le_bytes());
            out.extend(tensor.dims.iter().flat_map(|dim| dim.to_le_bytes()));
            out.extend_from_slice(&tensor.kind.to_le_bytes());
            out.extend_from_slice(&(data.len() as u64).to_le_bytes());
            data.extend_from_slice(&tensor.data);
            data.resize(data.len().next_multiple_of(32), 0);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(data);
        out
    }
}

/// ggml's number of a type.
fn kind(dtype: TensorType) -> u32 {
    match dtype {
        TensorType::F32 => 0,
        TensorType::F16 => 1,
        TensorType::Q4_0 => 2,
        TensorType::Q4_1 => 3,
        TensorType::Q8_0 => 8,
        TensorType::Q4_K => 12,
        TensorType::Q6_K => 14,
        TensorType::BF16 => 30,
    }
}
