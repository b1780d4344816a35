//! How much memory this process may use: its cgroup's limit, or the machine's memory.

use std::fs;
use std::path::{Path, PathBuf};

/// The smallest memory limit that holds for this process, in bytes; `None` if the system does not say.
pub(crate) fn limit() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = of_cgroups(Path::new("/sys/fs/cgroup"), &groups);
    machine.into_iter().chain(group).min()
}

/// `MemTotal` of `/proc/meminfo`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

/// The smallest limit of the cgroups that `/proc/self/cgroup` names, and of those above them.
fn of_cgroups(root: &Path, groups: &str) -> Option<u64> {
    groups.lines().filter_map(|line| of_cgroup(root, line)).min()
}

/// `hierarchy:controllers:path`; version 2 has no controllers there.
fn of_cgroup(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let (folder, file) = match controllers {
        "" => (root.to_owned(), "memory.max"),
        names if names.split(',').any(|name| name == "memory") => {
            (root.join("memory"), "memory.limit_in_bytes")
        }
        _ => return None,
    };
    let own = folder.join(path.trim_start_matches('/'));
    // In a container the path may be the host's while the folder is the container's own: then the root has its limit.
    let above = own.ancestors().take_while(|above| above.starts_with(&folder)).map(Path::to_owned);
    let limits = above.map(|group: PathBuf| fs::read_to_string(group.join(file)));
    // `max` means no limit, and does not parse as a number.
    limits.filter_map(|limit| limit.ok()?.trim().parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(files: &[(&str, &str)], groups: &str, expected: Option<u64>) {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        assert_eq!(of_cgroups(dir.path(), groups), expected, "{groups}");
    }

    #[test]
    fn the_smallest_limit_of_a_cgroup_and_those_above_it_counts() {
        let v2 = [("pods/memory.max", "1000\n"), ("pods/one/memory.max", "max\n"), ("memory.max", "2000\n")];
        check(&v2, "0::/pods/one\n", Some(1000));
        check(&v2, "0::/elsewhere\n", Some(2000));
        check(&[("memory.max", "max\n")], "0::/\n", None);
        let v1 = [("memory/docker/memory.limit_in_bytes", "3000\n"), ("cpu/docker/memory.max", "1\n")];
        check(&v1, "5:cpu,cpuacct:/docker\n4:memory:/docker\n", Some(3000));
        check(&v1, "", None);
    }

    #[test]
    fn the_memory_of_a_machine_is_read_in_bytes() {
        assert_eq!(total("MemFree: 1 kB\nMemTotal:       16384 kB\n"), Some(16 << 20));
        assert_eq!(total("MemTotal: a lot\n"), None);
    }
}
