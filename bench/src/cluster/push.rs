//! What cold starts with push need: a gateway that takes registrations at an address that pods reach, and pods with the
//! sidecar that `rouse inject` adds.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kube::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::Gateway;
use super::objects::apply;
use crate::{Result, certificate};

const SERVICE: &str = "rouse-register";

/// Push in one namespace.
#[derive(Debug)]
pub(super) struct Push {
    binary: PathBuf,
    image: String,
    address: String,
    namespace: String,
    /// The certificate of the gateway, which is its own authority.
    certificate: certificate::Certificate,
    /// The port for registrations; 0 until the gateway runs.
    port: u16,
    _folder: TempDir,
}

impl Push {
    /// With sidecars from `image`; pods reach the gateway at `address`.
    pub(super) fn new(binary: &Path, namespace: &str, image: &str, address: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let certificate = certificate::make(&host(namespace), folder.path())?;
        Ok(Self {
            binary: binary.to_owned(),
            image: image.to_owned(),
            address: address.to_owned(),
            namespace: namespace.to_owned(),
            certificate,
            port: 0,
            _folder: folder,
        })
    }

    /// The flags of the gateway.
    pub(super) fn flags(&self) -> Vec<String> {
        let flag = |name: &str, value: String| [format!("--register-{name}"), value];
        [
            flag("listen", format!("{}:0", self.address)),
            flag("tls-cert", self.certificate.cert.display().to_string()),
            flag("tls-key", self.certificate.key.display().to_string()),
        ]
        .concat()
    }

    /// Creates what sidecars need to find and verify the gateway: its name in DNS, and its authority.
    pub(super) async fn publish(&mut self, client: &Client, gateway: &Gateway) -> Result<()> {
        let find = |line: &String| line.split_once("registrations on ")?.1.rsplit_once(':')?.1.parse().ok();
        let port = gateway.running.lines().iter().find_map(find);
        self.port = port.ok_or("the gateway takes no registrations")?;
        let ports = json!([{"name": "register", "port": self.port, "protocol": "TCP"}]);
        let objects = [
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "rouse-ca"},
                "data": {"ca.crt": fs::read_to_string(&self.certificate.cert)?},
            }),
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": SERVICE},
                "spec": {"clusterIP": "None", "ports": ports},
            }),
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": SERVICE, "labels": {"kubernetes.io/service-name": SERVICE}},
                "addressType": "IPv4", "ports": ports,
                "endpoints": [{"addresses": [self.address], "conditions": {"ready": true}}],
            }),
        ];
        for object in &objects {
            apply(client, &self.namespace, object).await?;
        }
        Ok(())
    }

    /// The objects with the sidecar.
    pub(super) fn inject(&self, objects: &[Value]) -> Result<Vec<Value>> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string();
        let url = format!("https://{}:{}", host(&self.namespace), self.port);
        let mut command = Command::new(&self.binary);
        command.args([
            "inject",
            "--file",
            "-",
            "--output",
            "json",
            "--image",
            &self.image,
            "--register",
            &url,
        ]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        child.stdin.take().ok_or("no standard input")?.write_all(list.as_bytes())?;
        let output = child.wait_with_output()?;
        if !output.status.success() {
            return Err("rouse inject failed".into());
        }
        let documents = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Value>();
        let mut all = Vec::new();
        for document in documents {
            let document = document?;
            match document["items"].as_array() {
                Some(items) => all.extend(items.iter().cloned()),
                None => all.push(document),
            }
        }
        Ok(all)
    }
}

/// The name of the gateway in DNS.
fn host(namespace: &str) -> String {
    format!("{SERVICE}.{namespace}.svc.cluster.local")
}
