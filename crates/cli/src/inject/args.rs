//! The command-line arguments and help of `rouse inject`, and the parsers of its values.

#![allow(clippy::doc_markdown, reason = "doc comments are help texts here, and backticks would be printed")]

use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rouse_config::duration::HumanDuration;
use rouse_daemon::sidecar::settings::{AppCheck, DRAIN_SECRET_RULE, is_drain_secret};

use crate::names::{IMAGE, IpFamily, image, label, object_name};

/// `rouse inject`.
#[derive(Debug, Args)]
pub struct InjectArgs {
    /// File with the workloads and their Services, or - for standard input
    ///
    /// JSON or YAML: one object, several documents, or a List as kubectl prints it. All objects are printed, also those that
    /// are not changed.
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub file: PathBuf,
    /// Remove everything that `rouse inject` has added
    #[arg(long)]
    pub remove: bool,
    /// A workload to change; may be repeated [default: every Deployment, StatefulSet and DaemonSet of the file]
    #[arg(long, value_name = "NAME", value_parser = object_name)]
    pub workload: Vec<String>,
    /// The Service that the pods register for, if several select them; may be repeated
    #[arg(long, value_name = "NAME", value_parser = object_name)]
    pub service: Vec<String>,
    /// The name or number of the Service's port that gets the sidecar, if it has several
    #[arg(long, value_name = "PORT")]
    pub port: Option<String>,
    /// Add the sidecar as a native sidecar: an init container that keeps running
    #[arg(long)]
    pub native: bool,
    /// The sidecar's image, with a tag or a digest
    #[arg(long, value_name = "IMAGE", default_value = IMAGE, value_parser = image)]
    pub image: String,
    /// The namespace of the gateways, where the pods register
    #[arg(long, value_name = "NAME", default_value = "rouse-system", value_parser = label)]
    pub gateway_namespace: String,
    /// The URL where the pods register [default: the Service rouse-register of --gateway-namespace]
    #[arg(long, value_name = "URL", conflicts_with = "gateway_namespace")]
    pub register: Option<String>,
    /// The ConfigMap with the CA of the gateways, under the key ca.crt, in the namespace of the workload
    #[arg(long, value_name = "NAME", default_value = "rouse-ca", value_parser = object_name)]
    pub ca_configmap: String,
    /// How long a token of a pod is valid: 10m to 24h. The kubelet renews it in time
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = token_lifetime)]
    pub token_lifetime: HumanDuration,
    /// How the sidecar checks whether the app is ready: tcp, http:PATH or grpc:SERVICE [default: as the readinessProbe of the
    /// app; without one, tcp]
    #[arg(long, value_name = "PROBE")]
    pub probe: Option<AppCheck>,
    /// The most requests that the app gets at a time; 0 for no limit
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    pub concurrency: u32,
    /// The port that the sidecar listens on for requests
    #[arg(long, value_name = "PORT", default_value = "8012")]
    pub sidecar_port: NonZeroU16,
    /// The port of the sidecar for health, metrics and the hooks of the kubelet
    #[arg(long, value_name = "PORT", default_value = "8022")]
    pub admin_port: NonZeroU16,
    /// The secret that the kubelet shows to start a drain [default: the one that is there already, or else a random one]
    #[arg(long, value_name = "TEXT", env = "ROUSE_DRAIN_SECRET", hide_env_values = true, value_parser = secret)]
    pub drain_secret: Option<String>,
    /// The IP family of the pods
    #[arg(long, value_name = "FAMILY", value_enum, default_value_t)]
    pub ip_family: IpFamily,
    /// The output format [default: that of the input]
    #[arg(short, long, value_name = "FORMAT", value_enum)]
    pub output: Option<ObjectFormat>,
}

impl InjectArgs {
    /// The seconds that a token is valid.
    pub(super) fn token_seconds(&self) -> u64 {
        self.token_lifetime.get().as_secs()
    }

    /// The concurrency limit, if there is one.
    pub(super) fn limit(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.concurrency)
    }
}

/// The output format of `inject`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ObjectFormat {
    /// As kubectl -o yaml, one document for each object
    Yaml,
    /// As kubectl -o json, one value for each object
    Json,
}

/// Kubernetes issues no token for less than ten minutes.
fn token_lifetime(text: &str) -> Result<HumanDuration, String> {
    let lifetime: HumanDuration = text.parse().map_err(|error| format!("{error}"))?;
    match lifetime.get().as_secs() {
        600..=86_400 => Ok(lifetime),
        _ => Err("expected 10m to 24h".to_owned()),
    }
}

fn secret(text: &str) -> Result<String, String> {
    if is_drain_secret(text) { Ok(text.to_owned()) } else { Err(format!("expected {DRAIN_SECRET_RULE}")) }
}

/// The text at the end of `rouse inject --help`.
pub const HELP: &str = "\
The pods of the workload get a sidecar, which tells every gateway the moment that the app is ready, not ready, or leaving. \
Requests go through it: the target port of the Service becomes the port of the sidecar. The sidecar takes over the \
readinessProbe of the app, and both containers get a preStop hook that waits until the pod has drained. An app that has a \
preStop hook keeps it.

The file must have the workload and the Service that selects its pods. The annotation rouse.dev/injected on both records what \
was there; --remove restores it. Comments and the layout of the file are not kept. With the same \
flags a second run on the output changes nothing; other flags replace the first.

The gateways must accept registrations (rouse install --register-secret), and the namespace of the workload needs the ConfigMap \
of --ca-configmap.

Examples:
  rouse inject -f app.yaml | kubectl apply -f -
  rouse inject -f app.yaml --native --probe http:/ready | kubectl diff -f -
  kubectl -n shop get deployment/cart service/cart -o yaml | rouse inject -f - | kubectl apply -f -
  rouse inject -f app.yaml --remove | kubectl apply -f -

Exit codes: 0 done, 1 failed while running, 2 bad usage or malformed input.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        for good in ["tcp", "http:/", "http:/a:b", "grpc:", "grpc:cart.v1.Cart"] {
            assert_eq!(good.parse::<AppCheck>().unwrap().to_string(), good);
        }
        for bad in ["", "udp", "http", "http:ready", "grpc", "tcp:80"] {
            assert!(bad.parse::<AppCheck>().is_err(), "{bad}");
        }
        assert!(token_lifetime("10m").is_ok() && token_lifetime("24h").is_ok());
        for bad in ["9m", "25h", "0s", "x"] {
            assert!(token_lifetime(bad).is_err(), "{bad}");
        }
        assert!(secret("0123456789abcdef").is_ok());
        for bad in ["", "short", "0123456789 abcdef", "0123456789abcdef\n", &"x".repeat(129)] {
            assert!(secret(bad).is_err(), "{bad}");
        }
    }
}
