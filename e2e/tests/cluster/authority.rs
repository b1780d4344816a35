//! Certificates for trials, and the Secrets and `ConfigMap`s that hold them.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::{Value, json};

/// Issues certificates.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
pub(crate) struct Leaf {
    pub(crate) chain: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Its own certificate, in PEM.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for these names.
    pub(crate) fn leaf(&self, names: &[String]) -> Leaf {
        self.signed(&CertificateParams::new(names).unwrap())
    }

    /// One whose time is over.
    pub(crate) fn expired(&self, names: &[String]) -> Leaf {
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        self.signed(&params)
    }

    fn signed(&self, params: &CertificateParams) -> Leaf {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Leaf { chain: certificate.pem(), key: key.serialize_pem() }
    }
}

impl Leaf {
    /// A certificate that is its own root.
    pub(crate) fn of_itself(names: &[String]) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
        Self { chain: certificate.pem(), key: key.serialize_pem() }
    }

    /// A Secret with it.
    pub(crate) fn secret(&self, name: &str) -> Value {
        secret(name, &[("tls.crt", &self.chain), ("tls.key", &self.key)])
    }

    /// A Secret for pods that want certificates of `clients`.
    pub(crate) fn secret_for(&self, name: &str, clients: &str) -> Value {
        secret(name, &[("tls.crt", &self.chain), ("tls.key", &self.key), ("ca.crt", clients)])
    }
}

/// A Secret.
pub(crate) fn secret(name: &str, entries: &[(&str, &str)]) -> Value {
    holder("Secret", "stringData", name, entries)
}

/// A `ConfigMap`.
pub(crate) fn config_map(name: &str, entries: &[(&str, &str)]) -> Value {
    holder("ConfigMap", "data", name, entries)
}

fn holder(kind: &str, field: &str, name: &str, entries: &[(&str, &str)]) -> Value {
    let entries: serde_json::Map<String, Value> =
        entries.iter().map(|(key, text)| ((*key).to_owned(), json!(text))).collect();
    json!({ "apiVersion": "v1", "kind": kind, "metadata": { "name": name }, field: entries })
}
