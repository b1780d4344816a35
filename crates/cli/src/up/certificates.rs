//! The certificates of the TLS listener: read at the start, watched, and replaced without a restart.

use std::path::Path;
use std::sync::Arc;

use rouse_net::tls::{CertEntry, Identity, LoadError, Pem, ServerSettings, ServerTls, Warning};
use tokio_util::sync::CancellationToken;

use super::lines;
use super::source::Source;
use crate::config::{Config, Tls};
use crate::failure::Failure;
use crate::process::screen::Screen;

/// What a TLS listener shows, and what is odd about it.
#[derive(Debug)]
pub(super) struct Certificates {
    pub(super) server: Arc<ServerTls>,
    pub(super) warnings: Vec<Warning>,
}

/// What the file asks for, if it asks for TLS.
pub(super) fn open(source: &Source, config: &Config) -> Result<Option<Certificates>, Failure> {
    let Some(tls) = &config.tls else { return Ok(None) };
    let (server, warnings) = ServerTls::new(settings(source, tls))
        .map_err(|error| Failure::Input(format!("{}: tls.certs: {error}", source.name())))?;
    Ok(Some(Certificates { server: Arc::new(server), warnings }))
}

fn settings(source: &Source, tls: &Tls) -> ServerSettings {
    let folder = match source {
        Source::File { folder, .. } => folder.as_path(),
        Source::Demo => Path::new(""),
    };
    let pem = |path: &Path| Pem::File(folder.join(path));
    let entry = |cert: &crate::config::Cert| CertEntry {
        identity: Identity { chain: pem(&cert.cert), key: pem(&cert.key) },
        names: Vec::new(),
    };
    ServerSettings::new(tls.certs.iter().map(entry).collect())
}

/// The file has changed: other certificates, perhaps.
pub(super) fn replace(server: &ServerTls, source: &Source, tls: &Tls, screen: &Screen) {
    tell(server.replace(settings(source, tls)), screen);
}

/// Reads the certificates again whenever their files change.
pub(super) async fn watch(server: Arc<ServerTls>, screen: Screen) {
    server.watch(CancellationToken::new(), |loaded| tell(loaded, &screen)).await;
}

fn tell(loaded: Result<Vec<Warning>, LoadError>, screen: &Screen) {
    match loaded {
        Ok(warnings) => warn(&warnings, screen),
        Err(error) => {
            screen.say(lines::error(&error.to_string()));
            screen.say("the old certificates keep serving");
        }
    }
}

/// What is odd but not wrong.
pub(super) fn warn(warnings: &[Warning], screen: &Screen) {
    for warning in warnings {
        screen.say(lines::warning(&warning.to_string()));
    }
}
