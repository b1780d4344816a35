//! `rouse install --generate-keys`: the install CA, and the certificates that it signs, as Secrets and a `ConfigMap`.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rouse_kube::objects::injected::CA_KEY;
use rouse_net::tls::{InspectedCertificate, Pem};
use serde_json::{Value, json};

use super::args::InstallArgs;
use super::objects::labels;
use super::{controller, registration, xds};
use crate::CommandError;

/// The name of the Secret with the key of the CA, and of the `ConfigMap` with its certificate.
pub(super) const CA: &str = "rouse-ca";
const CA_NAME: &str = "Rouse install CA";
const CA_VALID: Duration = Duration::from_hours(24 * 3650);
const LEAF_VALID: Duration = Duration::from_hours(24 * 365);
/// Clocks of sidecars may be behind.
const EARLIER: Duration = Duration::from_hours(1);
/// The last second, since 1970, of a year that a certificate can express.
const LATEST: u64 = 253_402_300_799;

/// A certificate that the CA signs: one row for each component that serves TLS inside the cluster, and one for Envoys.
struct Leaf {
    /// The Service that it is for, or the name of a client.
    service: &'static str,
    /// The Secret that the component mounts.
    secret: fn(&InstallArgs) -> Option<String>,
    /// What it proves.
    usage: ExtendedKeyUsagePurpose,
}

const LEAVES: &[Leaf] = &[
    Leaf {
        service: registration::SERVICE,
        secret: |args| args.register_secret.clone(),
        usage: ExtendedKeyUsagePurpose::ServerAuth,
    },
    Leaf {
        service: controller::NAME,
        secret: |args| args.controller.controller_secret.clone(),
        usage: ExtendedKeyUsagePurpose::ServerAuth,
    },
    Leaf {
        service: xds::NAME,
        secret: |args| args.xds.xds_secret.clone(),
        usage: ExtendedKeyUsagePurpose::ServerAuth,
    },
    Leaf { service: xds::CLIENT, secret: xds::client_secret, usage: ExtendedKeyUsagePurpose::ClientAuth },
];

/// The arguments with the Secrets that `--generate-keys` implies.
pub(super) fn with_secrets(args: &InstallArgs) -> InstallArgs {
    let mut args = args.clone();
    if args.generate_keys {
        args.register_secret.get_or_insert_with(|| registration::SECRET.to_owned());
        if !args.controller.no_controller {
            args.controller.controller_secret.get_or_insert_with(|| controller::SECRET.to_owned());
        }
        if args.xds.xds {
            args.xds.xds_secret.get_or_insert_with(|| xds::SECRET.to_owned());
        }
    }
    args
}

/// The CA: its certificate and its key, as PEM.
struct Authority {
    certificate: String,
    key: KeyPair,
}

/// The Secrets and the `ConfigMap`; none without `--generate-keys`.
pub(super) fn objects(args: &InstallArgs, now: SystemTime) -> Result<Vec<Value>, CommandError> {
    if !args.generate_keys {
        return Ok(Vec::new());
    }
    let authority = match (&args.ca_cert, &args.ca_key) {
        (Some(certificate), Some(key)) => Authority::read(certificate, key)?,
        _ => Authority::generate(now).map_err(|error| broken(&error))?,
    };
    let mut objects = vec![
        tls_secret(args, CA, &authority.certificate, &authority.key, None),
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": { "name": CA, "namespace": args.namespace, "labels": labels("ca") },
            "data": { CA_KEY: authority.certificate },
        }),
    ];
    for leaf in LEAVES {
        let Some(secret) = (leaf.secret)(args) else { continue };
        let key = KeyPair::generate().map_err(|error| broken(&error))?;
        let names = names(leaf.service, &args.namespace);
        let chain = authority.sign((names, &leaf.usage), &key, now)?;
        objects.push(tls_secret(args, &secret, &chain, &key, Some(&authority.certificate)));
    }
    Ok(objects)
}

/// The names of a Service that a client in another namespace verifies.
fn names(service: &str, namespace: &str) -> Vec<String> {
    ["svc.cluster.local", "svc"].map(|zone| format!("{service}.{namespace}.{zone}")).into()
}

impl Authority {
    fn generate(now: SystemTime) -> Result<Self, rcgen::Error> {
        let key = KeyPair::generate()?;
        let mut params = ca_params()?;
        valid(&mut params, now, now.checked_add(CA_VALID).unwrap_or(now));
        Ok(Self { certificate: params.self_signed(&key)?.pem(), key })
    }

    /// Reads the CA of an earlier installation.
    fn read(certificate: &Path, key: &Path) -> Result<Self, CommandError> {
        let read = |flag: &str, path: &Path| {
            fs::read_to_string(path)
                .map_err(|error| CommandError::Input(format!("{flag} {}: {error}", path.display())))
        };
        let certificate = read("--ca-cert", certificate)?;
        let parsed = KeyPair::from_pem(&read("--ca-key", key)?);
        let key = parsed.map_err(|error| {
            CommandError::Input(format!("--ca-key {}: expected a private key in PEM: {error}", key.display()))
        })?;
        Ok(Self { certificate, key })
    }

    /// A certificate for `names`, which clients that trust the CA accept. It does not outlive the CA.
    fn sign(
        &self,
        (names, usage): (Vec<String>, &ExtendedKeyUsagePurpose),
        key: &KeyPair,
        now: SystemTime,
    ) -> Result<String, CommandError> {
        let pem = |text: &str| Pem::Bytes(Arc::from(text.as_bytes()));
        let unusable = |why: &dyn std::fmt::Display| {
            CommandError::Input(format!(
                "--ca-cert and --ca-key are not a CA of `rouse install --generate-keys` that is valid now: {why}"
            ))
        };
        let authority =
            InspectedCertificate::new(pem(&self.certificate)).map_err(|error| unusable(&error.reason))?;
        let ends = now.checked_add(LEAF_VALID).into_iter().chain(authority.expires()).min().unwrap_or(now);
        if ends <= now {
            return Err(unusable(&"it has expired"));
        }
        let mut params = CertificateParams::new(names).map_err(|error| broken(&error))?;
        valid(&mut params, now, ends);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage.clone()];
        params.use_authority_key_identifier_extension = true;
        params.distinguished_name = DistinguishedName::new();
        let issuer = Issuer::new(ca_params().map_err(|error| broken(&error))?, &self.key);
        let chain = params.signed_by(key, &issuer).map_err(|error| broken(&error))?.pem();
        // Catches a key of another certificate, and a CA with another name. The check is that of a client, so a client's own certificate
        // does not pass it; servers' ones of the same CA are signed before.
        if *usage == ExtendedKeyUsagePurpose::ServerAuth {
            InspectedCertificate::new(pem(&chain))
                .and_then(|leaf| leaf.check_trust(&pem(&self.certificate), now))
                .map_err(|error| unusable(&error.reason))?;
        }
        Ok(chain)
    }
}

/// The parameters of every install CA. The name is constant, so that its key alone can sign further certificates.
fn ca_params() -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new([])?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, CA_NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

/// Sets the validity: from shortly before `now`.
fn valid(params: &mut CertificateParams, now: SystemTime, ends: SystemTime) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since = |time: SystemTime| {
        let seconds = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        Duration::from_secs(seconds.min(LATEST))
    };
    params.not_before = epoch + since(now.checked_sub(EARLIER).unwrap_or(now));
    params.not_after = epoch + since(ends);
}

/// A Secret of the type that cert-manager and the gateway read.
fn tls_secret(args: &InstallArgs, name: &str, chain: &str, key: &KeyPair, ca: Option<&str>) -> Value {
    let mut data = json!({
        "tls.crt": STANDARD.encode(chain),
        "tls.key": STANDARD.encode(key.serialize_pem()),
    });
    if let (Some(ca), Some(data)) = (ca, data.as_object_mut()) {
        data.insert(CA_KEY.to_owned(), STANDARD.encode(ca).into());
    }
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": name, "namespace": args.namespace, "labels": labels("ca") },
        "type": "kubernetes.io/tls",
        "data": data,
    })
}

fn broken(error: &rcgen::Error) -> CommandError {
    CommandError::Failed(format!("cannot generate a certificate: {error}"))
}
