//! Connects to the API server with a kubeconfig or with the `ServiceAccount` of the gateway's pod.

use std::env;
use std::io::{self, ErrorKind};
use std::path::Path;

pub use kube::Client;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

/// Why no client for the API server could be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No kubeconfig is named, and `~/.kube/config` does not exist.
    #[error("there is no kubeconfig: KUBECONFIG is not set, and ~/.kube/config does not exist")]
    NoKubeconfig,
    /// The named kubeconfig does not exist.
    #[error("the kubeconfig {0} does not exist")]
    Missing(String),
    /// The file exists, but cannot be read.
    #[error("the kubeconfig {path} cannot be read")]
    Unreadable {
        /// The path of the file.
        path: String,
        /// The cause.
        source: io::Error,
    },
    /// The content of the file is not a valid kubeconfig.
    #[error("the kubeconfig {path} is not valid")]
    Invalid {
        /// The path of the file.
        path: String,
        /// The cause.
        source: Box<KubeconfigError>,
    },
    /// The kubeconfig does not have the requested context.
    #[error("the kubeconfig {path} has no context {context:?}; it has {}", contexts(.there))]
    NoContext {
        /// The requested context.
        context: String,
        /// The path of the kubeconfig.
        path: String,
        /// The contexts that it has.
        there: Vec<String>,
    },
    /// In a pod, without a kubeconfig: the pod's `ServiceAccount` cannot be used.
    #[error("there is no kubeconfig, and this pod's ServiceAccount cannot be used to reach the API server")]
    NoServiceAccount(#[source] Box<kube::config::InferConfigError>),
    /// The configuration is not usable: a bad certificate, a bad address.
    #[error("the connection settings for the API server are not valid")]
    Client(#[source] Box<kube::Error>),
}

fn contexts(there: &[String]) -> String {
    match there {
        [] => "none".to_owned(),
        all => all.join(", "),
    }
}

/// Makes a client from `kubeconfig`; without it, from `KUBECONFIG`, `~/.kube/config` or the pod's own `ServiceAccount`,
/// whose token is read again when it is renewed. With a `context`, only a kubeconfig is used, never the `ServiceAccount`.
/// Sends no request yet. Must be called within a Tokio runtime.
pub async fn connect(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Client, ConnectError> {
    let config = match (kubeconfig, context) {
        (None, None) => inferred().await?,
        (path, context) => named(path, context).await?,
    };
    Client::try_from(config).map_err(|error| ConnectError::Client(Box::new(error)))
}

async fn inferred() -> Result<Config, ConnectError> {
    match Config::infer().await {
        Ok(config) => Ok(config),
        // Kubernetes sets this variable in every pod.
        Err(error) if is_set("KUBERNETES_SERVICE_HOST") && !is_set("KUBECONFIG") => {
            Err(ConnectError::NoServiceAccount(Box::new(error)))
        }
        // Not in a pod: read the kubeconfig again, for an error that says what is wrong with it.
        Err(_) => named(None, None).await,
    }
}

async fn named(path: Option<&Path>, context: Option<&str>) -> Result<Config, ConnectError> {
    let place = path.map_or_else(usual_place, |path| path.display().to_string());
    let fault = |source| match source {
        KubeconfigError::FindPath => ConnectError::NoKubeconfig,
        KubeconfigError::ReadConfig(error, at) if error.kind() == ErrorKind::NotFound => {
            let usual = path.is_none() && !is_set("KUBECONFIG");
            if usual { ConnectError::NoKubeconfig } else { ConnectError::Missing(at.display().to_string()) }
        }
        KubeconfigError::ReadConfig(source, at) => {
            ConnectError::Unreadable { path: at.display().to_string(), source }
        }
        source => ConnectError::Invalid { path: place.clone(), source: Box::new(source) },
    };
    let file = path.map_or_else(Kubeconfig::read, Kubeconfig::read_from).map_err(fault)?;
    if let Some(context) = context {
        let there: Vec<String> = file.contexts.iter().map(|there| there.name.clone()).collect();
        if !there.iter().any(|there| there == context) {
            return Err(ConnectError::NoContext { context: context.to_owned(), path: place, there });
        }
    }
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    Config::from_custom_kubeconfig(file, &options).await.map_err(fault)
}

/// The path of the kubeconfig if no flag names one.
fn usual_place() -> String {
    let named = env::var("KUBECONFIG").ok().filter(|named| !named.is_empty());
    named.unwrap_or_else(|| "~/.kube/config".to_owned())
}

fn is_set(variable: &str) -> bool {
    env::var_os(variable).is_some_and(|value| !value.is_empty())
}
