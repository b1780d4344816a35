//! The command-line arguments and help of `rouse install`, and the parsers of its values.

#![allow(clippy::doc_markdown, reason = "doc comments are help texts here, and backticks would be printed")]

use clap::{Args, ValueEnum};

/// `rouse install`.
#[derive(Debug, Clone, Args)]
pub struct InstallArgs {
    /// The namespace of the gateway
    #[arg(short, long, value_name = "NAME", default_value = "rouse-system", value_parser = label)]
    pub namespace: String,
    /// The gateway's image, with a tag or a digest
    #[arg(long, value_name = "IMAGE", default_value = concat!("localhost/rouse:", env!("CARGO_PKG_VERSION")), value_parser = image)]
    pub image: String,
    /// The number of replicas; none leaves it out, so that an apply does not reset the number that an autoscaler
    /// (deploy/optional/hpa.yaml) has set
    #[arg(long, value_name = "COUNT", default_value = "2", value_parser = replicas)]
    pub replicas: Replicas,
    /// The only namespace whose routes and Services are used: the gateway gets a Role there, and no ClusterRole
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

/// The IP family of the pods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum IpFamily {
    /// 10.0.0.7
    #[default]
    Ipv4,
    /// fd00::7; also for dual-stack clusters whose first family it is
    Ipv6,
}

/// The text at the end of `rouse install --help`.
pub const HELP: &str = "\
Prints the manifests of deploy/ with these values: a Namespace under the restricted pod security \
standard, the CRDs of the routes, a ServiceAccount with the permissions that the gateway uses and no others, a \
Deployment with a PodDisruptionBudget, and two Services. The objects are in the order in which they can be applied. \
The variables of --env are checked as `rouse gateway` checks them, and terminationGracePeriodSeconds follows from the drain \
timeout. \
Variables that name files are refused: nothing is mounted but the certificate of --tls-secret. With --tls-secret and \
--keda-compat, requests that came over TLS also go to pods over TLS, as with KEDA; --env ROUSE_UPSTREAM_TLS=off turns this off.

deploy/helm/rouse is the same as a Helm chart; deploy/optional has what depends on the cluster: an autoscaler, a \
NetworkPolicy, a ServiceMonitor.

Examples:
  rouse install --image registry.example.com/rouse:0.1.0 | kubectl apply --server-side -f -
  rouse install --no-crds --keda-compat | kubectl diff -f -
  rouse install --namespace edge --watch-namespace shop --replicas 3 --env ROUSE_MAX_HOLD=2m
  rouse install --tls-secret wildcard --secrets-of shop | kubectl apply --server-side --dry-run=server -f -

Exit codes: 0 done, 1 failed while running, 2 bad usage.";

/// A namespace's name.
fn label(text: &str) -> Result<String, String> {
    if is_label(text) {
        return Ok(text.to_owned());
    }
    Err("expected 1 to 63 lower-case letters, digits and hyphens, with no hyphen at the start or the end"
        .to_owned())
}

fn is_label(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(fits) && !text.starts_with('-') && !text.ends_with('-')
}

/// The name of a Secret.
fn object_name(text: &str) -> Result<String, String> {
    if text.len() <= 253 && text.split('.').all(is_label) {
        return Ok(text.to_owned());
    }
    Err("expected a Secret's name: lower-case letters, digits, hyphens and dots".to_owned())
}

fn replicas(text: &str) -> Result<Replicas, String> {
    if text == "none" {
        return Ok(Replicas::Unmanaged);
    }
    let count = text.parse().ok().filter(|count| (1..=1000).contains(count));
    count.map(Replicas::Count).ok_or_else(|| "expected a number from 1 to 1000, or none".to_owned())
}

/// Parses an image. A tag or digest is required: without one the running version is not known later.
fn image(text: &str) -> Result<String, String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:/@".contains(&byte);
    let name = text.rsplit('/').next().unwrap_or_default();
    let tagged = name.split_once(['@', ':']).is_some_and(|(name, tag)| !name.is_empty() && !tag.is_empty());
    let starts = text.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts && tagged && text.bytes().all(plain) && !text.contains("//") {
        return Ok(text.to_owned());
    }
    Err("expected an image with a tag or a digest, like registry.example.com/rouse:0.1.0".to_owned())
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
    fn an_image_says_which_one_it_is() {
        let digest = "registry.example.com:5000/team/rouse@sha256:0123456789abcdef";
        for good in ["rouse:1", "localhost/rouse:0.1.0", "registry.example.com:5000/rouse:v1", digest] {
            assert_eq!(image(good).as_deref(), Ok(good));
        }
        let bad = ["", "rouse", "registry.example.com:5000/rouse", "rouse:", ":1", "a b:1", "a:1\n", "/a:1"];
        for bad in bad.into_iter().chain(["-a:1", "a//b:1", "rouse:\"1\""]) {
            assert!(image(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn names_are_those_that_kubernetes_takes() {
        let longest = "a".repeat(63);
        for good in ["a", "rouse-system", "7", &*longest] {
            assert!(label(good).is_ok() && object_name(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a_b", "a b", "a/b", &*"a".repeat(64)] {
            assert!(label(bad).is_err() && object_name(bad).is_err(), "{bad}");
        }
        assert!(label("a.b").is_err() && object_name("a.b").is_ok() && object_name("a..b").is_err());
    }

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
