//! TLS between the gateway and the pods of a Service: its annotations, and the settings that follow from them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::objects::workload::is_object_name;

/// On a Service: whether its pods speak TLS. Overrides `appProtocol`.
pub const UPSTREAM_TLS: &str = "rouse.dev/upstream-tls";
/// On a Service: the name that its pods' certificates are for.
pub const UPSTREAM_SERVER_NAME: &str = "rouse.dev/upstream-server-name";
/// On a Service: the CA that signs its pods' certificates.
pub const UPSTREAM_CA: &str = "rouse.dev/upstream-ca";
/// On a Service: the Secret with the gateway's client certificate and its key.
pub const UPSTREAM_CLIENT_CERT: &str = "rouse.dev/upstream-client-cert";

/// The number of bytes of an invalid value that an error shows.
const LONGEST: usize = 200;
const EXPECTED_CA: &str = "configmap/NAME, configmap/NAME/KEY, secret/NAME or secret/NAME/KEY";
const DEFAULT_CA_KEY: &str = "ca.crt";
const CLIENT_KEYS: [&str; 2] = ["tls.crt", "tls.key"];

/// Certificates or a key in PEM, not checked yet.
pub type PemBytes = Arc<[u8]>;

/// The TLS settings for the pods of a Service. Certificates are not checked yet: the data plane that uses them does it.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct TlsFacts {
    /// Whether TLS is spoken; `None`: as the port's protocol says.
    pub on: Option<bool>,
    /// The name that certificates must be for; `None`: the Service's DNS name.
    pub server_name: Option<Arc<str>>,
    /// The CA certificates in PEM; `None`: those that the gateway trusts by default.
    pub ca: Option<PemBytes>,
    /// The gateway's client certificate and its key, in PEM.
    pub client: Option<(PemBytes, PemBytes)>,
    /// Why TLS is not possible as the Service asks, for the status of its routes and the log. Requests that
    /// need TLS are refused: without what is missing they would go to pods that the gateway did not verify. Clients
    /// do not get these words, since they may quote the API server.
    pub fault: Option<Arc<str>>,
}

impl fmt::Debug for TlsFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A plan that is printed must not show a key.
        let bytes = |bytes: &PemBytes| format!("{} bytes", bytes.len());
        f.debug_struct("TlsFacts")
            .field("on", &self.on)
            .field("server_name", &self.server_name)
            .field("ca", &self.ca.as_ref().map(bytes))
            .field("client", &self.client.as_ref().map(|(certificate, _)| bytes(certificate)))
            .field("fault", &self.fault)
            .finish()
    }
}

/// The TLS annotations of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsAnnotations {
    on: Option<bool>,
    server_name: Option<Arc<str>>,
    ca: Option<DataRef>,
    client: Option<DataRef>,
    fault: Option<Arc<str>>,
}

/// Entries of an object in the Service's own namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataRef {
    /// Its kind.
    pub kind: DataKind,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// The keys of the entries.
    pub keys: Vec<Arc<str>>,
}

/// The kind of object that holds certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DataKind {
    /// A `ConfigMap`, for data that is not secret.
    ConfigMap,
    /// A Secret.
    Secret,
}

impl fmt::Display for DataRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            DataKind::ConfigMap => "ConfigMap",
            DataKind::Secret => "Secret",
        };
        write!(f, "{kind} {}/{}", self.namespace, self.name)
    }
}

/// The entries of a [`DataRef`], in the order of its keys, or why there are none.
pub type DataLookup = Result<Vec<PemBytes>, Arc<str>>;

impl TlsAnnotations {
    /// What the `annotations` of a Service in `namespace` ask for.
    pub fn read(namespace: &str, annotations: &BTreeMap<String, String>) -> Self {
        let mut faults: Vec<String> = Vec::new();
        let on = read(annotations, UPSTREAM_TLS, "true or false", &mut faults, |text| text.parse().ok());
        let off = on == Some(false);
        // An invalid value counts as true: false would send requests in plain text that were meant to be encrypted.
        let on = if faults.is_empty() { on } else { Some(true) };
        let name = "a DNS name or an IP address";
        let server_name = read(annotations, UPSTREAM_SERVER_NAME, name, &mut faults, server_name);
        let object = |kind, name: &str, keys: &[&str]| DataRef {
            kind,
            namespace: namespace.into(),
            name: name.into(),
            keys: keys.iter().map(|key| Arc::from(*key)).collect(),
        };
        let ca = read(annotations, UPSTREAM_CA, EXPECTED_CA, &mut faults, |text| {
            let (kind, rest) = text.split_once('/')?;
            let kind = match kind {
                "configmap" => DataKind::ConfigMap,
                "secret" => DataKind::Secret,
                _ => return None,
            };
            let (name, key) = rest.split_once('/').unwrap_or((rest, DEFAULT_CA_KEY));
            (is_object_name(name) && is_key(key)).then(|| object(kind, name, &[key]))
        });
        let secret = "the name of a Secret with tls.crt and tls.key";
        let client = read(annotations, UPSTREAM_CLIENT_CERT, secret, &mut faults, |name| {
            is_object_name(name).then(|| object(DataKind::Secret, name, &CLIENT_KEYS))
        });
        if off {
            // Without TLS the other annotations are not used, so their faults are not reported.
            return Self { on, ..Self::default() };
        }
        let fault = (!faults.is_empty()).then(|| faults.join("; ").into());
        Self { on, server_name, ca, client, fault }
    }

    /// The objects that it needs.
    pub fn wanted(&self) -> impl Iterator<Item = &DataRef> {
        [&self.ca, &self.client].into_iter().flatten()
    }

    /// The settings, with the content of the objects. `None` while one of them was not read yet.
    pub fn resolve(&self, find: impl Fn(&DataRef) -> Option<DataLookup>) -> Option<TlsFacts> {
        let mut faults: Vec<Arc<str>> = self.fault.iter().cloned().collect();
        let mut entries = |wanted: &Option<DataRef>| {
            let Some(wanted) = wanted else { return Some(Vec::new()) };
            let found = find(wanted)?;
            Some(found.unwrap_or_else(|words| {
                faults.push(words);
                Vec::new()
            }))
        };
        let ca = entries(&self.ca)?.into_iter().next();
        let mut client = entries(&self.client)?.into_iter();
        let fault = if faults.is_empty() { None } else { Some(faults.join("; ").into()) };
        Some(TlsFacts {
            on: self.on,
            server_name: self.server_name.clone(),
            ca,
            client: client.next().zip(client.next()),
            fault,
        })
    }

    /// The settings until the objects were read: requests that need TLS are refused.
    pub fn unresolved(&self) -> TlsFacts {
        let all: Vec<String> = self.wanted().map(ToString::to_string).collect();
        let words = format!("{} has not been read yet", all.join(" or "));
        TlsFacts {
            on: self.on,
            server_name: self.server_name.clone(),
            fault: Some(words.into()),
            ..TlsFacts::default()
        }
    }
}

fn read<T>(
    annotations: &BTreeMap<String, String>,
    key: &str,
    expected: &str,
    faults: &mut Vec<String>,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Option<T> {
    let text = annotations.get(key)?;
    let parsed = parse(text);
    if parsed.is_none() {
        faults.push(invalid_annotation(key, text, expected));
    }
    parsed
}

/// The error text for an invalid annotation. A long value is cut.
pub(crate) fn invalid_annotation(key: &str, text: &str, expected: &str) -> String {
    let (start, rest) = text.split_at(text.floor_char_boundary(LONGEST));
    let more = if rest.is_empty() { "" } else { "…" };
    format!("annotation {key} is {start:?}{more}: expected {expected}")
}

fn server_name(text: &str) -> Option<Arc<str>> {
    let lower = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let label = |label: &str| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        !label.is_empty() && label.len() <= 63 && label.bytes().all(plain)
    };
    let name = lower.len() <= 253 && lower.split('.').all(label);
    (name || lower.parse::<IpAddr>().is_ok()).then(|| lower.into())
}

/// Whether `text` can be a key of a `ConfigMap` or a Secret.
fn is_key(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=253).contains(&text.len()) && text.bytes().all(plain)
}
