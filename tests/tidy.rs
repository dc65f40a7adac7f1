//! The house rules that a machine can check. Each list of exceptions is short and says why.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use harness::binary::workspace;

const MAX_FILE_LINES: usize = 500;
const MAX_FUNCTION_LINES: usize = 70;
const MAX_COLUMNS: usize = 100;

/// Files or functions that may exceed a limit, and why.
const EXCEPTIONS: [(&str, &str); 0] = [];

/// Words for things left undone, put together here so that this file does not contain them.
const MARKS: [&str; 4] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("todo", "!("),
    concat!("unimpl", "emented!("),
];

struct Source {
    /// Path from the workspace's folder.
    path: String,
    text: String,
}

/// All files of the workspace with one of these endings, without build output and hidden folders.
fn sources(endings: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = vec![workspace().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_string_lossy();
            if name.starts_with('.') || name == "target" {
                continue;
            }
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                let text = fs::read_to_string(&path).unwrap();
                found.push(Source { path: relative(&path), text });
            }
        }
    }
    assert!(!found.is_empty(), "no {endings:?} below {}", workspace().display());
    found
}

fn relative(path: &Path) -> String {
    path.strip_prefix(workspace()).unwrap().to_string_lossy().into_owned()
}

fn is_excepted(place: &str) -> bool {
    EXCEPTIONS.iter().any(|(excepted, _)| *excepted == place)
}

/// Fails with all offending places at once, so that one run shows everything.
fn expect_none(rule: &str, places: impl Iterator<Item = String>) {
    let places: Vec<String> = places.collect();
    assert!(places.is_empty(), "{rule}:\n  {}", places.join("\n  "));
}

#[test]
fn files_fit_in_one_sitting() {
    let long = sources(&[".rs", ".cu", ".cuh", ".py", ".sh"]).into_iter().filter_map(|source| {
        let lines = source.text.lines().count();
        let is_long = lines > MAX_FILE_LINES && !is_excepted(&source.path);
        is_long.then(|| format!("{}: {lines} lines", source.path))
    });
    expect_none("files exceed 500 lines", long);
}

#[test]
fn functions_fit_on_one_screen() {
    let sources = sources(&[".rs"]);
    let long = sources.iter().flat_map(|source| {
        functions(&source.text)
            .filter(|(_, lines)| *lines > MAX_FUNCTION_LINES)
            .map(|(name, lines)| (format!("{}::{name}", source.path), lines))
            .filter(|(place, _)| !is_excepted(place))
            .map(|(place, lines)| format!("{place}: {lines} lines"))
    });
    expect_none("functions exceed 70 lines", long);
}

/// Names and lengths of functions. In formatted code a body ends at the first line that is a
/// closing brace in the column where the function begins.
fn functions(text: &str) -> impl Iterator<Item = (&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    (0..lines.len()).filter_map(move |start| {
        let line = lines[start];
        let name = function_name(line)?;
        let end = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
        let length = lines[start..].iter().position(|line| *line == end)? + 1;
        Some((name, length))
    })
}

fn function_name(line: &str) -> Option<&str> {
    const BEFORE: [&str; 8] =
        ["pub", "pub(crate)", "pub(super)", "const", "async", "unsafe", "extern", "\"C\""];
    let mut words = line.split_whitespace().skip_while(|word| BEFORE.contains(word));
    (words.next() == Some("fn") && line.trim_end().ends_with('{'))
        .then(|| words.next()?.split(['(', '<']).next())
        .flatten()
}

#[test]
fn the_length_of_a_function_is_told_right() {
    let text = "\
impl X {
    pub async fn a(&self) -> u8 {
        if x {
        }
    }

    fn b() {}
}
fn c<T>() {
}
";
    let found: Vec<_> = functions(text).collect();
    assert_eq!(found, [("a", 4), ("c", 2)]);
}

#[test]
fn lines_fit_beside_each_other() {
    let sources = sources(&[".rs", ".py"]);
    let bad = sources.iter().flat_map(|source| {
        (1..).zip(source.text.lines()).filter_map(|(number, line)| {
            let is_bad = line.chars().count() > MAX_COLUMNS || line.contains('\t');
            is_bad.then(|| format!("{}:{number}", source.path))
        })
    });
    expect_none("lines exceed 100 columns or contain tabs", bad);
}

#[test]
fn every_file_says_what_it_is_for() {
    let silent = sources(&[".rs"])
        .into_iter()
        .filter(|source| !source.text.starts_with("//!"))
        .map(|source| source.path);
    expect_none("files do not open with `//!`", silent);
}

#[test]
fn nothing_is_left_for_later() {
    let sources = sources(&[".rs", ".py", ".sh", ".cu", ".cuh", ".toml", ".md"]);
    let marks = sources.iter().flat_map(|source| {
        (1..).zip(source.text.lines()).filter_map(|(number, line)| {
            let mark = MARKS.iter().find(|mark| line.contains(*mark))?;
            Some(format!("{}:{number}: {mark}", source.path))
        })
    });
    expect_none("marks of unfinished work", marks);
}

#[test]
fn exceptions_are_still_needed() {
    let known: BTreeSet<String> =
        sources(&[".rs", ".cu", ".cuh", ".py", ".sh"]).into_iter().map(|s| s.path).collect();
    let stale = EXCEPTIONS
        .iter()
        .map(|(place, _)| place.split("::").next().unwrap_or(place))
        .filter(|file| !known.contains(*file))
        .map(str::to_owned);
    expect_none("exceptions for files that are gone", stale);
}
