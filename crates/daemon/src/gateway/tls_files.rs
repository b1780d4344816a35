//! Opens the files of certificates and keys that the settings name: a missing file stops the start, and `--check-config` reports it.

use std::path::Path;
use std::sync::Arc;

use rouse_config::settings::{AnySetting, Problem, Problems, Values};
use rouse_net::tls::{ClientAuth, LoadError, Pem, ServerSettings, ServerTls, Versions, Warning};

use super::load_reports;
use super::registration::{self, RegistrationFiles};
use super::settings::{
    ClientAuthMode, TLS_CERT, TLS_CERT_DIR, TLS_CLIENT_AUTH, TLS_CLIENT_CA, TLS_KEY, TLS_LISTEN,
    TLS_MAX_VERSION, TLS_MIN_VERSION, XDS_LISTEN,
};
use super::upstream::Upstreams;
use crate::certificates::{CertificateFiles, Certificates, HTTPS, OpenError};
use crate::rouse_yaml::Cert;
use crate::settings::about_file;
use crate::xds_listener::files::{self, XdsFiles};

/// The opened certificates, and warnings about them.
#[derive(Debug, Default)]
pub(super) struct LoadedCertificates {
    /// The certificates of the TLS listeners, if there are any.
    pub(super) certificates: Option<Certificates>,
    /// Warnings about the root certificates for pods and controllers.
    pub(super) warnings: Vec<Warning>,
    /// The files of the registration listener.
    pub(super) registration: RegistrationFiles,
    /// The files of the listener for Envoys.
    pub(super) xds: XdsFiles,
}

impl LoadedCertificates {
    /// The warnings that the start reports; those of the TLS listeners are reported by their watch.
    pub(super) fn at_start(&self) -> impl Iterator<Item = &Warning> {
        self.warnings.iter().chain(&self.registration.warnings).chain(&self.xds.warnings)
    }

    /// All warnings.
    pub(super) fn warnings(&self) -> impl Iterator<Item = &Warning> {
        let of_listeners = self.certificates.iter().flat_map(Certificates::warnings);
        of_listeners.chain(self.at_start())
    }

    /// The TLS listeners, each with its name in metrics.
    pub(super) fn servers(&self) -> impl Iterator<Item = (&'static str, Arc<ServerTls>)> {
        let requests = self.certificates.iter().map(|it| (HTTPS, Arc::clone(it.server())));
        let registrations = self.registration.server().map(|it| ("registrations", Arc::clone(it)));
        requests.chain(registrations).chain(self.xds.server())
    }
}

/// Opens all files, and reports every file that cannot be opened.
pub(super) fn open(values: &Values) -> Result<LoadedCertificates, Problems> {
    let problem = |setting: &'static dyn AnySetting, what: String| {
        let (origin, what) = about_file(values, setting, &what);
        Problem { origin, what }
    };
    let mut problems = Vec::new();
    let mut opened = LoadedCertificates::default();
    match certificates(values) {
        Ok(certificates) => opened.certificates = certificates,
        Err(OpenError::Folders(what)) => problems.push(problem(&TLS_CERT_DIR, what)),
        Err(OpenError::File(error)) => problems.push(problem(named_by(&error, values), error.to_string())),
    }
    // With keda-compat the listeners' certificates are also roots: report a problem with one only once.
    for (setting, read) in Upstreams::read_roots(values) {
        match read {
            Ok(warnings) => {
                let new: Vec<_> =
                    warnings.into_iter().filter(|new| opened.warnings().all(|known| known != new)).collect();
                opened.warnings.extend(new);
            }
            Err(error) => {
                let new = problem(setting, error.to_string());
                if !problems.contains(&new) {
                    problems.push(new);
                }
            }
        }
    }
    opened.warnings.extend(load_reports::read_roots(values, &mut problems));
    opened.registration = registration::open(values, &mut problems);
    if values.get(&XDS_LISTEN).is_some() {
        opened.xds = files::open(values, &mut problems);
    }
    Problems::none_in(problems, opened)
}

fn certificates(values: &Values) -> Result<Option<Certificates>, OpenError> {
    if values.get(&TLS_LISTEN).is_empty() {
        return Ok(None);
    }
    let pairs = values.get(&TLS_CERT).into_iter().zip(values.get(&TLS_KEY));
    let client_auth = match (values.get(&TLS_CLIENT_AUTH), values.get(&TLS_CLIENT_CA)) {
        // The checks of settings reject a mode that needs roots but has none.
        (ClientAuthMode::None, _) | (_, None) => ClientAuth::None,
        (ClientAuthMode::Optional, Some(ca)) => ClientAuth::Optional(Pem::File(ca)),
        (ClientAuthMode::Required, Some(ca)) => ClientAuth::Required(Pem::File(ca)),
    };
    let versions = Versions::new(values.get(&TLS_MIN_VERSION), values.get(&TLS_MAX_VERSION))
        .map_err(|error| OpenError::Folders(error.to_string()))?;
    let files = CertificateFiles {
        certs: pairs.map(|(cert, key)| Cert { cert, key }).collect(),
        folders: values.get(&TLS_CERT_DIR),
        template: ServerSettings { client_auth, versions, ..ServerSettings::new(Vec::new()) },
    };
    Certificates::open(files).map(Some)
}

/// The setting that names the file of `error`.
fn named_by(error: &LoadError, values: &Values) -> &'static dyn AnySetting {
    let is = |path: &Path| path.display().to_string() == error.file;
    if values.get(&TLS_CERT).iter().any(|cert| is(cert)) {
        &TLS_CERT
    } else if values.get(&TLS_KEY).iter().any(|key| is(key)) {
        &TLS_KEY
    } else if values.get(&TLS_CLIENT_CA).is_some_and(|ca| is(&ca)) {
        &TLS_CLIENT_CA
    } else {
        &TLS_CERT_DIR
    }
}
