//! Starts, controls and ends the `rouse up` process that is measured.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;
use tempfile::TempDir;

use crate::certificate::Certificate;
use crate::child::Running;
use crate::clock::until;
use crate::{Result, http};

/// Long enough for a busy machine; a working product needs far less.
const PATIENCE: Duration = Duration::from_mins(1);

/// A running `rouse up`.
#[derive(Debug)]
pub(crate) struct Rouse {
    running: Running,
    pub(crate) address: SocketAddr,
    /// Its TLS listener, if it has a certificate.
    pub(crate) secure: Option<SocketAddr>,
    pub(crate) admin: SocketAddr,
    // Dropped last: it is the working folder.
    _folder: TempDir,
}

/// One app of its file.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) name: String,
    /// A program and its arguments.
    pub(crate) command: Vec<String>,
    pub(crate) env: Vec<(&'static str, String)>,
    pub(crate) hosts: Vec<String>,
    pub(crate) h2c: bool,
    /// Whether its pods have the sidecar.
    pub(crate) sidecar: bool,
    /// The fixed number of pods; 0: the app starts at zero.
    pub(crate) pods: u32,
}

/// A service in the admin API, with the fields that are needed here.
#[derive(Debug, Deserialize)]
pub(crate) struct Service {
    #[serde(rename = "service")]
    id: String,
    state: String,
    pub(crate) endpoints: Vec<Pod>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Pod {
    pub(crate) address: SocketAddr,
    state: String,
}

/// The `rouse` binary: `asked`, or the one in the folder of this program.
pub(crate) fn binary(asked: Option<&Path>) -> Result<PathBuf> {
    let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("rouse"));
    let file = asked.map_or_else(beside, std::path::absolute)?;
    if file.is_file() {
        return Ok(file);
    }
    let built = "build it with cargo build --release -p rouse-cli, or set --rouse FILE";
    Err(format!("there is no {}: {built}", file.display()).into())
}

impl Rouse {
    /// Starts it and waits until it listens.
    pub(crate) fn start(
        binary: &Path,
        apps: &[App],
        certificate: Option<&Certificate>,
        arguments: &[&str],
    ) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("rouse.yaml");
        std::fs::write(&file, yaml(apps, certificate)?)?;
        let mut command = Command::new(binary);
        command.arg("up").arg(&file).args(arguments).current_dir(folder.path());
        let mut running = Running::start("rouse up", &mut command)?;
        let (address, secure, admin) = running.until("listens", PATIENCE, |running| {
            let lines = running.lines();
            let address =
                |prefix: &str| lines.iter().find_map(|line| line.strip_prefix(prefix)?.parse().ok());
            let secure = address("listening on https://");
            // The admin address is printed last.
            Some((address("listening on http://")?, secure, address("admin on http://")?))
        })?;
        if certificate.is_some() && secure.is_none() {
            return Err("rouse up does not listen over TLS".into());
        }
        Ok(Self { running, address, secure, admin, _folder: folder })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// GETs a path of the admin API.
    pub(crate) fn ask<T: for<'d> Deserialize<'d>>(&self, path: &str) -> Result<T> {
        let answer = http::get(self.admin, &self.admin.to_string(), path)?;
        if answer.status != 200 {
            return Err(format!("{path} answered {}: {}", answer.status, answer.body).into());
        }
        Ok(serde_json::from_str(&answer.body)?)
    }

    fn service(&self, app: &str) -> Result<Service> {
        let name = format!("local/{app}");
        let all: Vec<Service> = self.ask("/api/v1/services")?;
        all.into_iter().find(|one| one.id == name).ok_or_else(|| format!("there is no {name}").into())
    }

    /// The addresses of an app's pods, once `count` are ready.
    pub(crate) fn pods(&self, app: &str, count: u32) -> Result<Vec<SocketAddr>> {
        until(&format!("{count} pods of {app}"), PATIENCE, || {
            let pods = self.service(app)?.endpoints;
            let ready = pods.iter().filter(|pod| pod.state == "Ready").map(|pod| pod.address);
            let ready: Vec<SocketAddr> = ready.collect();
            Ok((ready.len() == usize::try_from(count)?).then_some(ready))
        })
    }

    /// Stops all pods of an app. The next request starts one, and gives the app back to the autoscaler.
    pub(crate) fn to_zero(&self, app: &str) -> Result<()> {
        let path = format!("/api/v1/services/local/{app}/scale");
        let answer = http::post_json(self.admin, &path, r#"{"pods": 0}"#)?;
        if answer.status != 200 {
            return Err(format!("{path} answered {}: {}", answer.status, answer.body).into());
        }
        until(&format!("{app} at zero"), PATIENCE, || {
            let service = self.service(app)?;
            Ok((service.state == "zero" && service.endpoints.is_empty()).then_some(()))
        })
    }
}

/// The file. JSON strings are YAML strings too.
fn yaml(apps: &[App], certificate: Option<&Certificate>) -> Result<String> {
    let mut text = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n".to_owned();
    if let Some(Certificate { cert, key, .. }) = certificate {
        let (cert, key) = (serde_json::to_string(cert)?, serde_json::to_string(key)?);
        writeln!(text, "tls: {{listen: 127.0.0.1:0, certs: [{{cert: {cert}, key: {key}}}]}}")?;
    }
    text.push_str("apps:\n");
    for app in apps {
        let App { name, pods, .. } = app;
        let command = serde_json::to_string(&app.command)?;
        let hosts = serde_json::to_string(&app.hosts)?;
        let env: Vec<String> = app.env.iter().map(|(key, value)| format!("{key}: {value:?}")).collect();
        let env = env.join(", ");
        let protocol = if app.h2c { "h2c" } else { "http" };
        let max = (*pods).max(1);
        writeln!(
            text,
            "  {name}:\n    command: {command}\n    env: {{{env}}}\n    hosts: {hosts}\n    protocol: {protocol}\n    \
             sidecar: {}\n    scale: {{min: {pods}, max: {max}, target: 1000, idle-after: 1h}}\n    \
             timeouts: {{request: 60s, response-header: 30s}}",
            app.sidecar
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_holds_each_app() {
        let app = App {
            name: "app".into(),
            command: vec!["run".into(), "it".into()],
            env: vec![("DELAY", "3".into())],
            hosts: vec!["a.bench".into()],
            h2c: true,
            sidecar: true,
            pods: 0,
        };
        let text = yaml(&[app], None).unwrap();
        assert!(!text.contains("tls"), "{text}");
        for part in [
            r#"command: ["run","it"]"#,
            r#"env: {DELAY: "3"}"#,
            "protocol: h2c",
            "sidecar: true",
            "min: 0, max: 1",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn the_file_names_the_certificate() {
        let [cert, key, both] = ["cert.pem", "key.pem", "both.pem"].map(PathBuf::from);
        let text = yaml(&[], Some(&Certificate { cert, key, both })).unwrap();
        let tls = r#"tls: {listen: 127.0.0.1:0, certs: [{cert: "cert.pem", key: "key.pem"}]}"#;
        assert!(text.lines().any(|line| line == tls), "{text}");
    }
}
