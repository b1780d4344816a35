//! `rouse install --generate-keys`: what is printed, and that sidecars accept it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rouse_daemon::process::time_of_day;
use rouse_net::tls::{
    CertEntry, ClientTls, Identity, InspectedCertificate, Pem, Roots, ServerName, ServerSettings, ServerTls,
    TlsError,
};
use rouse_register::client::GatewayUrl;
use rouse_testkit::certificates::{Authority, pem};
use serde_json::Value;
use tokio::io::duplex;
use tokio::time::Instant;

use crate::support::{Answer, install, key, objects, text};

const KEY: &str = "PRIVATE KEY";

/// The objects with keys and certificates that a run prints.
struct Printed {
    all: Vec<Value>,
    err: String,
}

impl Printed {
    fn new(arguments: &str) -> Self {
        let Answer { code, out, err } = install(arguments);
        assert_eq!(code, 0, "{arguments}: {err}");
        Self { all: objects(&out), err }
    }

    fn find(&self, wanted: &str) -> &Value {
        let found: Vec<&Value> = self.all.iter().filter(|object| key(object) == wanted).collect();
        assert_eq!(found.len(), 1, "{wanted}");
        found[0]
    }

    /// The decoded text of a key of a Secret.
    fn secret(&self, name: &str, field: &str) -> String {
        let secret = self.find(&format!("Secret {name}"));
        assert_eq!(text(secret, "/type"), "kubernetes.io/tls");
        let data = secret.pointer("/data").and_then(|data| data.get(field)).and_then(Value::as_str);
        decode(data.unwrap_or_else(|| panic!("{name} has no {field}")))
    }

    fn leaf(&self) -> Identity {
        let part = |field| pem(&self.secret("rouse-system/rouse-register-tls", field));
        Identity { chain: part("tls.crt"), key: part("tls.key") }
    }

    fn ca(&self) -> Pem {
        pem(text(self.find("ConfigMap rouse-system/rouse-ca"), "/data/ca.crt"))
    }

    fn write_ca(&self, folder: &Path) -> String {
        for (field, file) in [("tls.crt", "ca.crt"), ("tls.key", "ca.key")] {
            fs::write(folder.join(file), self.secret("rouse-system/rouse-ca", field)).unwrap();
        }
        format!("--ca-cert {0}/ca.crt --ca-key {0}/ca.key", folder.display())
    }
}

/// Base64 as Kubernetes reads it.
fn decode(text: &str) -> String {
    String::from_utf8(STANDARD.decode(text).unwrap()).unwrap()
}

/// The handshake of the sidecar's client with a gateway that has this certificate.
async fn shake(leaf: Identity, ca: Pem, namespace: &str) -> Result<(), TlsError> {
    let url = GatewayUrl::of_namespace(namespace).unwrap();
    let settings = url.tls(Roots::Pem(vec![ca]), None).unwrap();
    let (client, _) = ClientTls::new(settings).unwrap();
    let (server, warnings) =
        ServerTls::new(ServerSettings::new(vec![CertEntry { identity: leaf, names: Vec::new() }])).unwrap();
    assert_eq!(warnings, []);
    let (ours, theirs) = duplex(64 * 1024);
    let deadline = Instant::now() + Duration::from_secs(20);
    let (_, connected) = tokio::join!(server.accept(ours, deadline), client.connect(theirs, deadline));
    connected.map(drop)
}

#[tokio::test]
async fn a_sidecar_that_trusts_the_printed_ca_accepts_the_printed_certificate_and_no_other() {
    let (one, two) = (Printed::new("--generate-keys"), Printed::new("--generate-keys"));
    shake(one.leaf(), one.ca(), "rouse-system").await.unwrap();
    shake(one.leaf(), two.ca(), "rouse-system").await.unwrap_err();
    shake(one.leaf(), one.ca(), "edge").await.unwrap_err();
    let both = [&one, &two].map(|run| text(run.find("ConfigMap rouse-system/rouse-ca"), "/data/ca.crt"));
    for run in [&one, &two] {
        shake(run.leaf(), pem(&both.concat()), "rouse-system").await.unwrap();
    }
    for (name, field) in [("rouse-register-tls", "tls.key"), ("rouse-ca", "tls.key")] {
        let name = format!("rouse-system/{name}");
        assert_ne!(one.secret(&name, field), two.secret(&name, field), "{name}");
    }
    assert_eq!(pem(&one.secret("rouse-system/rouse-register-tls", "ca.crt")), one.ca());
    assert_eq!(pem(&one.secret("rouse-system/rouse-ca", "tls.crt")), one.ca());
}

#[test]
fn the_certificate_is_for_the_names_of_the_service_and_servers_only_and_lasts_a_year() {
    let run = Printed::new("--generate-keys --namespace rouse-system");
    let leaf = InspectedCertificate::new(run.leaf().chain).unwrap();
    for (name, expected) in [
        ("rouse-register.rouse-system.svc.cluster.local", true),
        ("rouse-register.rouse-system.svc", true),
        ("rouse-register", false),
        ("rouse-gateway.rouse-system.svc", false),
    ] {
        assert_eq!(leaf.is_for(&ServerName::try_from(name).unwrap()), expected, "{name}");
    }
    leaf.check_key(run.leaf().key).unwrap();
    leaf.check_trust(&run.ca(), time_of_day()).unwrap();
    let days = |certificate: &InspectedCertificate| {
        certificate.expires().unwrap().duration_since(time_of_day()).unwrap().as_secs().div_ceil(86_400)
    };
    assert_eq!(days(&leaf), 365);
    assert_eq!(days(&InspectedCertificate::new(run.ca()).unwrap()), 3650);
    // OID 2.5.29.37 (extended key usage) with serverAuth (1.3.6.1.5.5.7.3.1) alone.
    let usage = [0x30, 0x0a, 0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x01];
    let der = der(&run.secret("rouse-system/rouse-register-tls", "tls.crt"));
    assert!(der.windows(usage.len()).any(|window| window == usage));
}

fn der(pem: &str) -> Vec<u8> {
    let body: String = pem.lines().filter(|line| !line.starts_with("-----")).collect();
    STANDARD.decode(body).unwrap()
}

#[test]
fn the_controllers_certificate_is_for_the_url_that_gateways_report_to_and_of_the_same_ca() {
    let run = Printed::new("--generate-keys --namespace edge");
    let part = |field| pem(&run.secret("edge/rouse-controller-tls", field));
    let leaf = InspectedCertificate::new(part("tls.crt")).unwrap();
    leaf.check_key(part("tls.key")).unwrap();
    let ca = pem(text(run.find("ConfigMap edge/rouse-ca"), "/data/ca.crt"));
    assert_eq!(part("ca.crt"), ca, "what gateways mount");
    leaf.check_trust(&ca, time_of_day()).unwrap();
    let deployment = run.find("Deployment edge/rouse-gateway");
    let env = deployment.pointer("/spec/template/spec/containers/0/env").unwrap().as_array().unwrap();
    let url = env.iter().find(|it| text(it, "/name") == "ROUSE_REPORT_TO").unwrap();
    let host = text(url, "/value").strip_prefix("https://").unwrap().rsplit_once(':').unwrap().0;
    for (name, expected) in
        [(host, true), ("rouse-controller.edge.svc", true), ("rouse-register.edge.svc", false)]
    {
        assert_eq!(leaf.is_for(&ServerName::try_from(name.to_owned()).unwrap()), expected, "{name}");
    }
    let named = Printed::new("--generate-keys --controller-secret mine");
    named.secret("rouse-system/mine", "tls.key");
    let without = Printed::new("--generate-keys --no-controller");
    assert!(!without.all.iter().any(|object| key(object).contains("controller")));
}

#[test]
fn the_certificates_of_xds_prove_its_service_to_envoys_and_an_envoy_to_it() {
    let run = Printed::new("--generate-keys --xds --namespace edge");
    let ca = pem(text(run.find("ConfigMap edge/rouse-ca"), "/data/ca.crt"));
    // OID 2.5.29.37 (extended key usage) with serverAuth (…3.1) or clientAuth (…3.2) alone.
    let usage = |last: u8| [0x30, 0x0a, 0x06, 0x08, 0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, last];
    for (secret, name, last) in [
        ("edge/rouse-xds-tls", "rouse-xds.edge.svc.cluster.local", 1),
        ("edge/rouse-xds-client", "rouse-xds-client.edge.svc.cluster.local", 2),
    ] {
        let leaf = InspectedCertificate::new(pem(&run.secret(secret, "tls.crt"))).unwrap();
        leaf.check_key(pem(&run.secret(secret, "tls.key"))).unwrap();
        assert_eq!(pem(&run.secret(secret, "ca.crt")), ca, "what the other side is verified by");
        assert!(leaf.is_for(&ServerName::try_from(name).unwrap()), "{name}");
        let der = der(&run.secret(secret, "tls.crt"));
        assert!(der.windows(12).any(|window| window == usage(last)), "{secret}");
        assert!(!der.windows(12).any(|window| window == usage(3 - last)), "{secret}");
    }
    assert!(run.err.contains("--xds --xds-secret rouse-xds-tls from then on"), "{}", run.err);
}

#[test]
fn no_key_is_printed_without_the_flag_and_with_it_there_is_a_warning() {
    for arguments in ["", "--register-secret r", "--tls-secret w --register-secret r --push observe"] {
        let answer = install(arguments);
        assert_eq!(answer.code, 0, "{}", answer.err);
        assert!(!answer.out.contains("kind: Secret") && !answer.out.contains(KEY), "{arguments}");
        assert!(!answer.err.contains("private key"), "{arguments}: {}", answer.err);
    }
    let run = Printed::new("--generate-keys");
    assert!(run.err.contains("warning: the output contains private keys"), "{}", run.err);
    assert!(run.err.contains("--ca-cert and --ca-key"), "{}", run.err);
    assert!(!run.err.contains(KEY), "{}", run.err);
    let secrets: Vec<String> = run.all.iter().map(key).filter(|key| key.starts_with("Secret ")).collect();
    let expected = ["rouse-ca", "rouse-register-tls", "rouse-controller-tls"];
    assert_eq!(secrets, expected.map(|name| format!("Secret rouse-system/{name}")));
    let flags =
        "use --register-secret rouse-register-tls --controller-secret rouse-controller-tls from then on";
    assert!(run.err.contains(flags), "{}", run.err);
    let map = run.find("ConfigMap rouse-system/rouse-ca").to_string();
    assert!(!map.contains(KEY), "only Secrets have keys");
}

#[test]
fn the_flag_turns_registrations_on_with_the_secret_that_it_prints_and_pods_do_not_mount_the_ca() {
    for (arguments, name) in [
        ("--generate-keys --no-controller", "rouse-register-tls"),
        ("--generate-keys --no-controller --register-secret mine --push observe", "mine"),
    ] {
        let run = Printed::new(arguments);
        run.find("Service rouse-system/rouse-register");
        run.secret(&format!("rouse-system/{name}"), "tls.key");
        let volumes = run.find("Deployment rouse-system/rouse-gateway");
        let volumes = volumes.pointer("/spec/template/spec/volumes").unwrap();
        let expected = serde_json::json!([{"name": "register-certs", "secret": {"secretName": name}}]);
        assert_eq!(volumes, &expected, "{arguments}");
    }
    assert_eq!(install("--push observe").code, 2, "it needs a certificate");
}

#[tokio::test]
async fn a_certificate_is_renewed_with_the_same_ca_and_its_bundles_stay() {
    let folder = tempfile::tempdir().unwrap();
    let first = Printed::new("--generate-keys");
    let flags = first.write_ca(folder.path());
    let renewed = Printed::new(&format!("--generate-keys {flags}"));
    assert_eq!(renewed.ca(), first.ca());
    assert_ne!(renewed.leaf(), first.leaf());
    shake(renewed.leaf(), first.ca(), "rouse-system").await.unwrap();
    let ca_key = |run: &Printed| run.secret("rouse-system/rouse-ca", "tls.key");
    assert_eq!(ca_key(&renewed), ca_key(&first));
}

#[test]
fn a_ca_that_cannot_sign_is_refused_without_showing_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let at = |file: &str| folder.path().join(file);
    let flags = Printed::new("--generate-keys").write_ca(folder.path());
    let refused = |expected: &str| {
        let answer = install(&format!("--generate-keys {flags}"));
        assert_eq!((answer.code, &*answer.out), (2, ""), "{}", answer.err);
        assert!(answer.err.contains(expected) && !answer.err.contains(KEY), "{expected}: {}", answer.err);
    };
    let key = fs::read_to_string(at("ca.key")).unwrap();
    let other = Printed::new("--generate-keys").secret("rouse-system/rouse-ca", "tls.key");
    fs::write(at("ca.key"), other).unwrap();
    refused("are not a CA of `rouse install --generate-keys`");
    fs::write(at("ca.key"), "no key").unwrap();
    refused("expected a private key in PEM");
    fs::remove_file(at("ca.key")).unwrap();
    refused("--ca-key");
    fs::write(at("ca.key"), key).unwrap();
    fs::write(at("ca.crt"), Authority::new().pem()).unwrap();
    refused("are not a CA of");
    for arguments in ["--ca-cert a --ca-key b", "--generate-keys --ca-cert a", "--generate-keys --ca-key b"] {
        assert_eq!(install(arguments).code, 2, "{arguments}");
    }
}
