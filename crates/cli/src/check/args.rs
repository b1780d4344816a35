//! The command-line arguments and help of `rouse check`.

#![allow(clippy::doc_markdown, reason = "doc comments are help texts here, and backticks would be printed")]

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use rouse_kube::survey::Account;

use rouse_config::duration::HumanDuration;

/// The default namespace of `rouse install`.
pub(super) const NAMESPACE: &str = "rouse-system";

/// `rouse check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The kubeconfig file [default: KUBECONFIG, ~/.kube/config, or the pod's own ServiceAccount]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// The one namespace that the gateway watches [default: the one that the installed gateway watches, or all]
    #[arg(short, long, value_name = "NAMESPACE", value_parser = namespace)]
    pub namespace: Option<String>,
    /// The ServiceAccount whose permissions to check [default: those of the installed gateway; if there is none, your own]
    #[arg(long, value_name = "NAMESPACE/NAME")]
    pub service_account: Option<Account>,
    /// The namespace where the gateway is installed
    #[arg(long, value_name = "NAMESPACE", default_value = NAMESPACE, value_parser = namespace)]
    pub gateway: String,
    /// The output format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub output: CheckFormat,
    /// Repeat the checks until none fails, for at most this long
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    pub wait: HumanDuration,
}

/// The output format of `check`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum CheckFormat {
    /// A list for people
    #[default]
    Text,
    /// {"passed","sections":[{"name","checks":[{"name","result","detail","next"}]}]}
    Json,
}

/// Parses a namespace. It becomes part of a request path, so other characters are refused.
fn namespace(text: &str) -> Result<String, String> {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let fits = (1..=63).contains(&text.len())
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-');
    fits.then(|| text.to_owned())
        .ok_or_else(|| "expected a namespace: lower case letters, digits and dashes".to_owned())
}

/// The text at the end of `rouse check --help`.
pub const HELP: &str = "\
Checks the cluster, the kinds of objects that the gateway needs, the permissions of its ServiceAccount, its Deployment, its \
pods and Services, its certificates (30 days before they expire), push, the controller and what it scales, and the routes. It changes nothing. To check the certificates, you must \
be allowed to get the Secrets that gateway and controller mount. To check the permissions of another account, you must be \
allowed to create subjectaccessreviews (with --namespace: localsubjectaccessreviews in it).

  ✔  passed
  ‼  a feature is missing, or a route does not serve; the exit code stays 0
  ✖  the gateway does not work
  -  not checked

Each check that does not pass has its reason and the next step.

Examples:
  rouse check
  rouse install --image IMAGE | kubectl apply --server-side -f - && rouse check --wait 2m
  rouse check --context staging --namespace shop
  rouse check --service-account rouse-system/rouse-gateway
  rouse check -o json | jq '.sections[].checks[] | select(.result == \"failure\")'

Exit codes: 0 nothing fails, 1 something does, 2 bad usage, or a kubeconfig or context that cannot be read.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_cannot_be_a_path() {
        assert!(namespace("rouse-system").is_ok() && namespace("a").is_ok());
        for bad in ["", "..", "a/b", "A", "-a", "a-", "a.b", "a?b", &"a".repeat(64)] {
            assert!(namespace(bad).is_err(), "{bad}");
        }
    }
}
