//! Opens the certificate of the listener for Envoys, and the CAs of their client certificates.

use std::path::PathBuf;
use std::sync::Arc;

use rouse_config::settings::{AnySetting, Problem, Values};
use rouse_net::tls::{
    Alpn, CertEntry, ClientAuth, Identity, LoadError, Pem, ServerSettings, ServerTls, Warning,
};

use super::settings::{XDS_CLIENT_CA, XDS_TLS_CERT, XDS_TLS_KEY};
use crate::settings::about_file;

/// The opened files.
#[derive(Debug, Default)]
pub(crate) struct XdsFiles {
    /// The TLS of the listener; none if it has no certificate.
    pub(crate) tls: Option<Arc<ServerTls>>,
    /// Warnings about the certificates.
    pub(crate) warnings: Vec<Warning>,
}

impl XdsFiles {
    /// The listener with TLS, with its name in metrics.
    pub(crate) fn server(&self) -> Option<(&'static str, Arc<ServerTls>)> {
        self.tls.clone().map(|tls| ("xds", tls))
    }
}

/// Opens all files, and adds a problem for each that cannot be opened.
pub(crate) fn open(values: &Values, problems: &mut Vec<Problem>) -> XdsFiles {
    let Some((chain, key)) = values.get(&XDS_TLS_CERT).zip(values.get(&XDS_TLS_KEY)) else {
        return XdsFiles::default();
    };
    let identity = Identity { chain: Pem::File(chain), key: Pem::File(key) };
    let entry = CertEntry { identity, names: Vec::new() };
    let client_auth =
        values.get(&XDS_CLIENT_CA).map_or(ClientAuth::None, |ca| ClientAuth::Required(Pem::File(ca)));
    let settings = ServerSettings { alpn: vec![Alpn::H2], client_auth, ..ServerSettings::new(vec![entry]) };
    match ServerTls::new(settings) {
        Ok((tls, warnings)) => XdsFiles { tls: Some(Arc::new(tls)), warnings },
        Err(error) => {
            let (origin, what) = about_file(values, named_by(&error, values), &error.to_string());
            problems.push(Problem { origin, what });
            XdsFiles::default()
        }
    }
}

/// The setting that names the file of `error`.
fn named_by(error: &LoadError, values: &Values) -> &'static dyn AnySetting {
    let is = |path: Option<PathBuf>| path.is_some_and(|path| path.display().to_string() == error.file);
    if is(values.get(&XDS_TLS_KEY)) {
        &XDS_TLS_KEY
    } else if is(values.get(&XDS_CLIENT_CA)) {
        &XDS_CLIENT_CA
    } else {
        &XDS_TLS_CERT
    }
}
