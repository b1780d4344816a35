//! Runs haproxy as a load balancer in front of gateways, without retries.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU16, Ordering};

use rouse_e2e::output::Output;
use rouse_e2e::wait::eventually;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

/// Where haproxy is, if it is installed.
pub(crate) fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian installs it in a folder that only root has in PATH.
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join("haproxy")).find(|file| file.is_file())
}

/// A free port below the ephemeral range, so that it stays free while its gateway restarts. No port is returned twice.
pub(crate) fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 12_000 + u16::try_from(std::process::id() % 5_000).unwrap();
    let next = || first + NEXT.fetch_add(1, Ordering::Relaxed);
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (0..3_000).map(|_| next()).find(free).expect("there is a free port")
}

/// A running haproxy.
pub(crate) struct Haproxy {
    pub(crate) address: SocketAddr,
    output: Output,
    _child: Child,
    _dir: TempDir,
}

impl Haproxy {
    /// In front of these gateways: the port of each for requests, and for health checks.
    pub(crate) async fn before(gateways: &[(u16, u16)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], port()));
        let server = |(port, admin): &(u16, u16)| {
            format!("  server g{port} 127.0.0.1:{port} check port {admin} inter 100ms fall 1 rise 1\n")
        };
        let servers: Vec<String> = gateways.iter().map(server).collect();
        let servers = servers.concat();
        let config = format!(
            "global\n  maxconn 1000\ndefaults\n  mode http\n  retries 0\n  timeout connect 5s\n  timeout client 60s\n  \
             timeout server 60s\nfrontend in\n  bind {address}\n  default_backend gateways\nbackend gateways\n  \
             option httpchk\n  http-check send meth GET uri /readyz hdr Host 127.0.0.1\n  \
             http-check expect status 200\n{servers}"
        );
        let file = dir.path().join("haproxy.cfg");
        std::fs::write(&file, config).unwrap();
        let mut child = Command::new(find().expect("haproxy is installed"))
            .args(["-db", "-f"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let output = Output::of(&mut child);
        eventually("haproxy to listen", async || TcpStream::connect(address).await.ok()).await;
        Self { address, output, _child: child, _dir: dir }
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        self.output.show_if_panicking("haproxy");
    }
}
