//! Runs `curl`, as an independent client.

use tokio::process::Command;

use crate::target::Target;
use crate::wait::within;

/// What curl prints for `path`, with its own arguments before. Panics if it fails.
pub async fn curl(target: &Target, path: &str, arguments: &[&str]) -> String {
    let mut command = Command::new("curl");
    command
        .args(["--silent", "--show-error", "--noproxy", "*", "--max-time", "60"])
        .args(["--connect-to", &format!("{}:80:{}", target.host, target.address)])
        .args(arguments)
        .arg(format!("http://{}{path}", target.host))
        .kill_on_drop(true);
    let output = within("curl", command.output()).await.unwrap_or_else(|error| panic!("no curl: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "curl {path}: {} {stderr}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}
