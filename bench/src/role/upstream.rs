//! The upstream server of all proxies for HTTP/1.1: writes a configuration for nginx from HOST and PORT, which nginx does
//! not read itself, and then executes nginx.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::{LARGE, SMALL, address};
use crate::Result;
use crate::args::Upstream;

/// Returns only if it fails.
pub(crate) fn run(Upstream { nginx, folder }: &Upstream) -> Result<()> {
    let address = address()?;
    // Pods of one app share the folder, but no port.
    let folder = folder.join(format!("upstream-{}", address.port()));
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("large"), "x".repeat(LARGE))?;
    let config = include_str!("../../peers/upstream.conf")
        .replace("@LISTEN@", &address.to_string())
        .replace("@FOLDER@", &folder.display().to_string())
        .replace("@SMALL@", &"x".repeat(SMALL));
    let file = folder.join("nginx.conf");
    fs::write(&file, config)?;
    let error = Command::new(nginx).arg("-p").arg(&folder).args(["-e", "stderr", "-c"]).arg(&file).exec();
    Err(format!("cannot execute nginx: {error}").into())
}
