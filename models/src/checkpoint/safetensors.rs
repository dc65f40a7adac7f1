//! safetensors files over mapped memory: one `model.safetensors`, or shards with an index.
//!
//! The headers are parsed by the `safetensors` crate, which checks that the tensors tile the data
//! section exactly and that a header is at most 100 MB.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use kernels::MappedFile;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, Metadata};
use serde::Deserialize;

use super::{Found, TensorType};
use crate::error::LoadError;
use crate::json;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Most shards of one model; the largest public ones have a few hundred.
const MAX_SHARDS: usize = 4096;

/// The open file or files.
#[derive(Debug)]
pub(super) struct Shards {
    dir: PathBuf,
    shards: Vec<Shard>,
    /// With an index: which shard holds a tensor.
    index: Option<HashMap<String, usize>>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: MappedFile,
    metadata: Metadata,
    /// Where the data section begins.
    base: usize,
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

impl Shards {
    pub(super) fn open(dir: &Path) -> Result<Shards, LoadError> {
        let single = dir.join(SINGLE);
        if single.exists() {
            let shards = vec![Shard::open(&single)?];
            return Ok(Shards { dir: dir.to_owned(), shards, index: None });
        }
        let path = dir.join(INDEX);
        let Some(Index { weight_map }) = json::read_optional(&path)? else {
            return Err(LoadError::NotFound(format!(
                "{}: no weights: neither {SINGLE} nor {INDEX} is there",
                dir.display()
            )));
        };
        open_shards(dir, &path, weight_map)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.file.bytes().len() as u64).sum()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.shard_of(name).is_some_and(|shard| shard.metadata.info(name).is_some())
    }

    fn shard_of(&self, name: &str) -> Option<&Shard> {
        match &self.index {
            None => self.shards.first(),
            Some(index) => index.get(name).map(|shard| &self.shards[*shard]),
        }
    }

    pub(super) fn find(&self, name: &str) -> Result<Found<'_>, LoadError> {
        let field = format!("tensor {name}");
        let Some(shard) = self.shard_of(name) else {
            return Err(LoadError::invalid(&self.dir.join(INDEX), &field, "is missing"));
        };
        let Some(info) = shard.metadata.info(name) else {
            return Err(LoadError::invalid(&shard.path, &field, "is missing"));
        };
        let (start, end) = info.data_offsets;
        Ok(Found {
            path: &shard.path,
            name: name.to_owned(),
            dtype: tensor_type(info.dtype),
            shape: info.shape.iter().map(|size| *size as u64).collect(),
            data: &shard.file.bytes()[shard.base + start..shard.base + end],
        })
    }
}

fn open_shards(
    dir: &Path,
    index: &Path,
    weight_map: HashMap<String, String>,
) -> Result<Shards, LoadError> {
    let invalid = |problem: String| LoadError::invalid(index, "weight_map", problem);
    let mut files: Vec<&String> = weight_map.values().collect();
    files.sort_unstable();
    files.dedup();
    if files.is_empty() || files.len() > MAX_SHARDS {
        return Err(invalid(format!("lists {} files", files.len())));
    }
    let mut shards = Vec::new();
    let mut numbers = HashMap::new();
    for file in files {
        let mut parts = Path::new(file).components();
        if !matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) {
            return Err(invalid(format!("{file:?} is not the name of a file in this directory")));
        }
        let path = dir.join(file);
        if !path.exists() {
            return Err(invalid(format!("{file} is not there (is the download complete?)")));
        }
        numbers.insert(file.clone(), shards.len());
        shards.push(Shard::open(&path)?);
    }
    let index = weight_map.into_iter().map(|(name, file)| (name, numbers[&file])).collect();
    Ok(Shards { dir: dir.to_owned(), shards, index: Some(index) })
}

impl Shard {
    fn open(path: &Path) -> Result<Shard, LoadError> {
        let file = MappedFile::open(path).map_err(|source| LoadError::io(path, source))?;
        let (header, metadata) = SafeTensors::read_metadata(file.bytes()).map_err(|error| {
            let problem = format!("{error} (is the download complete?)");
            LoadError::invalid(path, "header", problem)
        })?;
        Ok(Shard { path: path.to_owned(), base: 8 + header, metadata, file })
    }
}

fn tensor_type(dtype: Dtype) -> Result<TensorType, String> {
    match dtype {
        Dtype::F32 => Ok(TensorType::F32),
        Dtype::F16 => Ok(TensorType::F16),
        Dtype::BF16 => Ok(TensorType::BF16),
        other => Err(format!("{other:?}")),
    }
}
