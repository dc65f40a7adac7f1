//! How much memory is free: what the system says, or what the control group leaves if that is less.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes that can be allocated without swapping or being killed; `None` where it cannot be told.
#[must_use]
pub(super) fn available() -> Option<u64> {
    let system = fs::read_to_string("/proc/meminfo").ok().as_deref().and_then(mem_available);
    let group = cgroup_dir().and_then(|dir| cgroup_available(&dir));
    match (system, group) {
        (Some(system), Some(group)) => Some(system.min(group)),
        (system, group) => system.or(group),
    }
}

fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1_024)
}

/// The directory of this process's group, version 2.
fn cgroup_dir() -> Option<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(Path::new("/sys/fs/cgroup").join(path.trim_start_matches('/')))
}

/// What the tightest of the group's ancestors leaves.
fn cgroup_available(dir: &Path) -> Option<u64> {
    dir.ancestors()
        .take_while(|dir| dir.starts_with("/sys/fs/cgroup") || !dir.starts_with("/sys"))
        .filter_map(group_available)
        .min()
}

fn group_available(dir: &Path) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        fs::read_to_string(dir.join(name)).ok()?.trim().parse().ok()
    };
    // Without a limit the file reads `max`, which is no number.
    let limit = number("memory.max")?;
    let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let used = number("memory.current")?.saturating_sub(reclaimable(&stat));
    Some(limit.saturating_sub(used))
}

/// Cached file contents, which the kernel drops before it kills anybody.
fn reclaimable(stat: &str) -> u64 {
    let line = stat.lines().find_map(|line| line.strip_prefix("inactive_file "));
    line.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read() {
        let text = "MemTotal:  8000 kB\nMemAvailable:    4000 kB\n";
        assert_eq!(mem_available(text), Some(4_096_000));
        assert_eq!(mem_available("MemTotal: 1 kB\n"), None);
        assert_eq!(mem_available("MemAvailable: x kB\n"), None);
    }

    #[test]
    fn a_group_without_a_limit_does_not_count_and_caches_are_free() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            fs::write(dir.path().join(name), text).expect("written");
        };
        write("memory.max", "max\n");
        write("memory.current", "600\n");
        write("memory.stat", "anon 1\ninactive_file 200\n");
        assert_eq!(group_available(dir.path()), None);
        write("memory.max", "1000\n");
        assert_eq!(group_available(dir.path()), Some(600));
    }
}
