//! Where a model lies: a path, or a hub id in the local Hugging Face cache.

use std::path::{Path, PathBuf};

use crate::error::LoadError;

/// What was found.
pub(super) struct Found {
    /// The name to serve it under.
    pub(super) name: String,
    pub(super) location: Location,
}

/// A model on disk.
pub(super) enum Location {
    /// A `.gguf` file.
    Gguf(PathBuf),
    /// A directory with a config.json.
    Directory(PathBuf),
}

/// Finds `model`; nothing is fetched.
pub(super) fn find(model: &str) -> Result<Found, LoadError> {
    find_in(model, cache().as_deref())
}

fn find_in(model: &str, cache: Option<&Path>) -> Result<Found, LoadError> {
    let path = Path::new(model);
    if path.exists() {
        return Ok(Found { name: name_of(path), location: at_path(path)? });
    }
    let (true, Some(cache)) = (is_hub_id(model), cache) else {
        let wanted = "give a directory with config.json, a .gguf file, or a hub id (org/name)";
        return Err(LoadError::NotFound(format!("{model}: no such file or directory; {wanted}")));
    };
    match snapshot(cache, model) {
        Some(dir) => Ok(Found { name: model.to_owned(), location: at_path(&dir)? }),
        None => Err(LoadError::NotFound(format!(
            "{model}: not a file or directory here, and not in the Hugging Face cache {}; where \
             there is a network, run `hf download {model} --local-dir DIR`, bring DIR here, then \
             run `sluice serve DIR`",
            cache.display()
        ))),
    }
}

fn name_of(path: &Path) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let is_file = whole.is_file();
    let part = if is_file { whole.file_stem() } else { whole.file_name() };
    part.map_or_else(|| "model".to_owned(), |part| part.to_string_lossy().into_owned())
}

fn at_path(path: &Path) -> Result<Location, LoadError> {
    if !path.is_dir() {
        if has_extension(path, "gguf") {
            return Ok(Location::Gguf(path.to_owned()));
        }
        let wanted = "it must be a .gguf file or a directory with config.json";
        return Err(LoadError::NotFound(format!("{}: not a model: {wanted}", path.display())));
    }
    if path.join("config.json").exists() {
        return Ok(Location::Directory(path.to_owned()));
    }
    let entries = std::fs::read_dir(path).map_err(|source| LoadError::io(path, source))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|file| has_extension(file, "gguf"))
        .collect();
    match (files.pop(), files.len()) {
        (Some(file), 0) => Ok(Location::Gguf(file)),
        (Some(_), more) => Err(LoadError::NotFound(format!(
            "{}: {} .gguf files; name the one to serve",
            path.display(),
            more + 1
        ))),
        (None, _) => Err(LoadError::NotFound(format!(
            "{}: neither a config.json nor a .gguf file is in this directory",
            path.display()
        ))),
    }
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|it| it.eq_ignore_ascii_case(extension))
}

/// Whether this is `org/name`, in the characters that the hub allows.
fn is_hub_id(model: &str) -> bool {
    let valid = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && part.chars().all(valid);
    model.split_once('/').is_some_and(|(org, name)| part(org) && part(name))
}

/// The cache of the `hf` tool: HF_HUB_CACHE, or HF_HOME/hub, or ~/.cache/huggingface/hub.
fn cache() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(cache) = variable("HF_HUB_CACHE") {
        return Some(cache.into());
    }
    if let Some(home) = variable("HF_HOME") {
        return Some(Path::new(&home).join("hub"));
    }
    variable("HOME").map(|home| Path::new(&home).join(".cache/huggingface/hub"))
}

/// The snapshot that `main` points to, or else the newest one.
fn snapshot(cache: &Path, id: &str) -> Option<PathBuf> {
    let repo = cache.join(format!("models--{}", id.replace('/', "--")));
    let snapshots = repo.join("snapshots");
    if let Ok(commit) = std::fs::read_to_string(repo.join("refs/main")) {
        let commit = commit.trim();
        let dir = snapshots.join(commit);
        if commit.chars().all(|c| c.is_ascii_alphanumeric()) && !commit.is_empty() && dir.is_dir() {
            return Some(dir);
        }
    }
    let dirs = std::fs::read_dir(snapshots).ok()?.filter_map(Result::ok);
    let dated = dirs.filter_map(|dir| Some((dir.metadata().ok()?.modified().ok()?, dir.path())));
    dated.filter(|(_, dir)| dir.is_dir()).max().map(|(_, dir)| dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn error(model: &str, cache: Option<&Path>) -> String {
        find_in(model, cache).map(|found| found.name).unwrap_err().to_string()
    }

    #[test]
    fn a_hub_id_is_its_main_snapshot_or_the_only_one() {
        let cache = tempfile::tempdir().unwrap();
        let repo = cache.path().join("models--org--name");
        for commit in ["aaa", "bbb"] {
            fs::create_dir_all(repo.join("snapshots").join(commit)).unwrap();
        }
        fs::write(repo.join("snapshots/aaa/config.json"), "{}").unwrap();
        fs::create_dir_all(repo.join("refs")).unwrap();
        fs::write(repo.join("refs/main"), "aaa\n").unwrap();
        let found = find_in("org/name", Some(cache.path())).unwrap();
        assert_eq!(found.name, "org/name");
        assert!(matches!(found.location, Location::Directory(dir) if dir.ends_with("aaa")));
        // A ref that leads elsewhere is not followed.
        fs::write(repo.join("refs/main"), "../../..").unwrap();
        fs::remove_dir_all(repo.join("snapshots/bbb")).unwrap();
        let found = find_in("org/name", Some(cache.path())).unwrap();
        assert!(matches!(found.location, Location::Directory(dir) if dir.ends_with("aaa")));
    }

    #[test]
    fn what_is_missing_says_where_it_was_looked_for_and_what_to_do() {
        let cache = tempfile::tempdir().unwrap();
        let text = error("org/name", Some(cache.path()));
        assert!(text.contains(cache.path().to_str().unwrap()), "{text}");
        assert!(text.contains("hf download org/name") && text.contains("sluice serve DIR"));
        for model in ["nothing", "/no/such", "org/../name", "org/name/more", "../x/y", ""] {
            let text = error(model, Some(cache.path()));
            assert!(text.contains("no such file or directory; give a directory"), "{text}");
        }
    }

    #[test]
    fn a_directory_has_a_config_or_one_gguf_file() {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().to_str().unwrap();
        assert!(error(model, None).contains("neither a config.json nor a .gguf file"));
        fs::write(dir.path().join("Nice.Q4.gguf"), "").unwrap();
        let found = find_in(model, None).unwrap();
        assert!(matches!(found.location, Location::Gguf(_)));
        fs::write(dir.path().join("other.GGUF"), "").unwrap();
        assert!(error(model, None).contains("2 .gguf files; name the one to serve"));
        let file = dir.path().join("Nice.Q4.gguf");
        assert_eq!(find_in(file.to_str().unwrap(), None).unwrap().name, "Nice.Q4");
        fs::write(dir.path().join("config.json"), "").unwrap();
        assert!(matches!(find_in(model, None).unwrap().location, Location::Directory(_)));
        let text = error(dir.path().join("config.json").to_str().unwrap(), None);
        assert!(text.contains("it must be a .gguf file or a directory"), "{text}");
    }
}
