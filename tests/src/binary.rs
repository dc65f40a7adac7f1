//! Finds the `sluice` binary, and builds it first where it is older than its sources.
//!
//! Cargo does not hand a package's binary to the tests of another package. Both `cargo test` and
//! nextest put this test's executable into `target/<profile>/deps`, so the binary lies one folder
//! up, with a file beside it that lists every source it was made of.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// The up-to-date binary: `SLUICE_BIN` if that is set, else the one of this test's profile.
///
/// # Panics
/// If it cannot be built.
pub fn sluice() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("SLUICE_BIN") {
            return PathBuf::from(path);
        }
        let test = std::env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).unwrap();
        let binary = profile.join("sluice");
        if !is_fresh(&binary) {
            build(profile);
        }
        binary
    })
}

/// The folder of the workspace.
///
/// # Panics
/// Never: this package lies in it.
#[must_use]
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// Compares with the sources that cargo noted in `sluice.d` (`binary: source source ...`).
fn is_fresh(binary: &Path) -> bool {
    let (Some(built), Ok(noted)) =
        (modified(binary), fs::read_to_string(binary.with_extension("d")))
    else {
        return false;
    };
    let sources = noted.split_once(": ").map_or("", |(_, sources)| sources);
    sources.split_whitespace().all(|source| modified(Path::new(source)).is_some_and(|m| m <= built))
}

fn build(profile: &Path) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(workspace()).args(["build", "--quiet", "--package", "sluice-server"]);
    if profile.ends_with("release") {
        command.arg("--release");
    }
    command.arg("--target-dir").arg(profile.parent().unwrap());
    let status = command.status().unwrap();
    assert!(status.success(), "cannot build the sluice binary");
}
