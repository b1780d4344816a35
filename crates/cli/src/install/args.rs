//! The command-line arguments and help of `rouse install`, and the parsers of its values.

#![allow(clippy::doc_markdown, reason = "doc comments are help texts here, and backticks would be printed")]

use std::path::PathBuf;

use clap::{ArgGroup, Args};

use crate::names::{IMAGE, IpFamily, image, label, object_name};

/// `rouse install`.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("registrations").args(["register_secret", "generate_keys"]).multiple(true))]
#[command(group = ArgGroup::new("xds_certificates").args(["xds_secret", "generate_keys"]).multiple(true))]
pub struct InstallArgs {
    /// The namespace of the gateway and the controller
    #[arg(short, long, value_name = "NAME", default_value = "rouse-system", value_parser = label)]
    pub namespace: String,
    /// The image, with a tag or a digest
    #[arg(long, value_name = "IMAGE", default_value = IMAGE, value_parser = image)]
    pub image: String,
    /// The number of gateways; none leaves it out, so that an apply does not reset the number that an autoscaler
    /// (deploy/optional/hpa.yaml) has set
    #[arg(long, value_name = "COUNT", default_value = "2", value_parser = replicas)]
    pub replicas: Replicas,
    /// The only namespace whose routes and Services are used: gateway and controller get Roles there, and no ClusterRoles
    #[arg(long, value_name = "NAME", value_parser = label)]
    pub watch_namespace: Option<String>,
    /// A namespace whose ConfigMaps the gateway may read, for bodies of responses and for CAs; may be repeated
    #[arg(long, value_name = "NAMESPACE", value_parser = label)]
    pub configmaps_of: Vec<String>,
    /// A namespace whose Secrets the gateway may read, for TLS to pods; may be repeated
    #[arg(long, value_name = "NAMESPACE", value_parser = label)]
    pub secrets_of: Vec<String>,
    /// Also accept requests over TLS, on port 443, with the certificate of this Secret (type kubernetes.io/tls) in the
    /// gateway's namespace
    #[arg(long, value_name = "SECRET", value_parser = object_name)]
    pub tls_secret: Option<String>,
    /// Also accept registrations of pods (push), on port 9443 behind the headless Service rouse-register, with the certificate
    /// of this Secret (type kubernetes.io/tls) in the gateway's namespace
    #[arg(long, value_name = "SECRET", value_parser = object_name)]
    pub register_secret: Option<String>,
    /// Also print private keys: a CA, and the certificates that it signs, as the Secrets of --register-secret
    /// [rouse-register-tls], --controller-secret [rouse-controller-tls] and, with --xds, --xds-secret [rouse-xds-tls] and Envoys' own
    /// [rouse-xds-client]. Without this flag, no key is printed
    #[arg(long)]
    pub generate_keys: bool,
    /// Sign with this CA of an earlier --generate-keys, instead of a new one (PEM)
    #[arg(long, value_name = "FILE", requires_all = ["generate_keys", "ca_key"])]
    pub ca_cert: Option<PathBuf>,
    /// The key of --ca-cert (PEM): tls.key of the Secret rouse-ca
    #[arg(long, value_name = "FILE", requires = "ca_cert")]
    pub ca_key: Option<PathBuf>,
    /// What registrations do [default: on]
    #[arg(long, value_name = "MODE", value_parser = ["on", "observe", "off"], requires = "registrations")]
    pub push: Option<String>,
    /// How tokens of pods are checked; tokenreview adds a ClusterRole [default: jwks]
    #[arg(long, value_name = "CHECK", value_parser = ["jwks", "tokenreview"], requires = "registrations")]
    pub register_token_check: Option<String>,
    /// What is installed of the controller.
    #[command(flatten)]
    pub controller: ControllerFlags,
    /// What is installed for Envoy.
    #[command(flatten)]
    pub xds: XdsFlags,
    /// A variable of the gateway, like ROUSE_MAX_HOLD=2m; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    pub env: Vec<(String, String)>,
    /// Add KEDA's names of headers and metrics to Rouse's own
    #[arg(long)]
    pub keda_compat: bool,
    /// The IP family of the pods
    #[arg(long, value_name = "FAMILY", value_enum, default_value_t)]
    pub ip_family: IpFamily,
    /// Leave the Namespace out: it exists already, and is managed elsewhere
    #[arg(long)]
    pub no_namespace: bool,
    /// Whether the CRDs of routes are printed.
    #[command(flatten)]
    pub crds: Crds,
}

/// What is installed of the controller.
#[derive(Debug, Clone, Default, Args)]
pub struct ControllerFlags {
    /// Leave the controller out: nothing is scaled down by Rouse, and KEDA cannot use it as an external scaler
    #[arg(long, conflicts_with_all = ["controller_secret", "autoscale_default", "endpointslices"])]
    pub no_controller: bool,
    /// Let gateways report their load to the controller, over TLS with the certificate of this Secret (type kubernetes.io/tls,
    /// with the CA as ca.crt) in the controller's namespace. Without a certificate, the controller scales nothing down
    #[arg(long, value_name = "SECRET", value_parser = object_name)]
    pub controller_secret: Option<String>,
    /// Whether the controller scales routes without the annotation rouse.dev/autoscale [default: off]
    #[arg(long, value_name = "DEFAULT", value_parser = ["on", "off"])]
    pub autoscale_default: Option<String>,
    /// Let the controller write the EndpointSlices of Services without a selector that name their pods by the annotation
    /// rouse.dev/selector; this adds permissions
    #[arg(long)]
    pub endpointslices: bool,
}

/// What is installed for Envoy.
#[derive(Debug, Clone, Default, Args)]
pub struct XdsFlags {
    /// Install `rouse xds` too: Envoys get clusters, endpoints and routes from it, and need the gateways for cold starts only. Needs
    /// --xds-secret or --generate-keys
    #[arg(long, requires = "xds_certificates")]
    pub xds: bool,
    /// The Secret (type kubernetes.io/tls) with the certificate of --xds, in its namespace; its ca.crt is the CA of Envoys' client
    /// certificates
    #[arg(long, value_name = "SECRET", value_parser = object_name, requires = "xds")]
    pub xds_secret: Option<String>,
}

/// Whether the CRDs are printed.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct Crds {
    /// Include the CRDs of InterceptorRoute and HTTPScaledObject [default]
    #[arg(long = "crds", overrides_with = "without")]
    with: bool,
    /// Leave out the CRDs: KEDA HTTP add-on has installed its own
    #[arg(long = "no-crds", overrides_with = "with")]
    without: bool,
}

impl Crds {
    /// True if neither flag is given.
    pub fn is_default(self) -> bool {
        !self.with && !self.without
    }

    /// True if the CRDs are printed.
    pub fn wanted(self) -> bool {
        !self.without
    }
}

/// The number of replicas of the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replicas {
    /// This number.
    Count(u32),
    /// Not set, so that an autoscaler decides.
    Unmanaged,
}

/// The text at the end of `rouse install --help`.
pub const HELP: &str = "\
Prints the manifests of deploy/ with these values: a Namespace under the restricted pod security \
standard, the CRDs of the routes, and for the gateway and the controller each a ServiceAccount with the permissions that it \
uses and no others, a Deployment with a PodDisruptionBudget, and two Services. The objects are in the order in which they can be applied. \
The variables of --env are checked as `rouse gateway` checks them, and terminationGracePeriodSeconds follows from the drain \
timeout. \
Variables that name files are refused: nothing is mounted but the certificates of --tls-secret, --register-secret and --controller-secret. \
With --tls-secret and --keda-compat, requests that came over TLS also go to pods over TLS, as with KEDA; --env ROUSE_UPSTREAM_TLS=off turns this off.

The certificate of --register-secret must be for rouse-register.NAMESPACE.svc.cluster.local, and that of --controller-secret for \
rouse-controller.NAMESPACE.svc.cluster.local. --generate-keys makes both, with a CA of its own: apply that output once, and renew with \
--ca-cert and --ca-key. docs/inject.md has the steps, the way with cert-manager, and how to add the sidecar to the apps.

The controller scales only routes with the annotation rouse.dev/autoscale: \"on\", or all with --autoscale-default on. An upgrade \
from a version without it changes no number of replicas. docs/controller.md explains how to operate it.

--xds adds `rouse xds` for Envoys, with the settings of the gateways that decide about routes and pods. The certificate of --xds-secret \
must be for rouse-xds.NAMESPACE.svc.cluster.local. docs/envoy.md has the steps, also for Envoy's own configuration.

deploy/helm/rouse is the same as a Helm chart; deploy/optional has what depends on the cluster: an autoscaler, a \
NetworkPolicy, a ServiceMonitor.

Examples:
  rouse install --image registry.example.com/rouse:0.1.0 | kubectl apply --server-side -f -
  rouse install --no-crds --keda-compat | kubectl diff -f -
  rouse install --namespace edge --watch-namespace shop --replicas 3 --env ROUSE_MAX_HOLD=2m
  rouse install --tls-secret wildcard --secrets-of shop | kubectl apply --server-side --dry-run=server -f -
  rouse install --generate-keys --push observe | kubectl apply --server-side -f -
  rouse install --generate-keys --xds | kubectl apply --server-side -f -
  rouse install --register-secret rouse-register-tls --controller-secret rouse-controller-tls | kubectl apply --server-side -f -

Exit codes: 0 done, 1 failed while running, 2 bad usage.";

fn replicas(text: &str) -> Result<Replicas, String> {
    if text == "none" {
        return Ok(Replicas::Unmanaged);
    }
    let count = text.parse().ok().filter(|count| (1..=1000).contains(count));
    count.map(Replicas::Count).ok_or_else(|| "expected a number from 1 to 1000, or none".to_owned())
}

fn variable(text: &str) -> Result<(String, String), String> {
    let expected = "expected NAME=VALUE, like ROUSE_MAX_HOLD=2m";
    let (name, value) = text.split_once('=').ok_or(expected)?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let starts = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if !starts || !name.bytes().all(fits) || value.contains('\0') {
        return Err(expected.to_owned());
    }
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_has_a_name_and_a_value_that_may_hold_anything() {
        let read = |text| variable(text).ok();
        assert_eq!(read("A=b=c"), Some(("A".to_owned(), "b=c".to_owned())));
        assert_eq!(read("_A1="), Some(("_A1".to_owned(), String::new())));
        for bad in ["", "A", "=b", "1A=b", "A B=c", "A-B=c", "A=\0"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }
}
