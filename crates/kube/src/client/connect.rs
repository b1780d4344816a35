//! Connects to the API server: by a kubeconfig, or by the `ServiceAccount` of the own pod.

use std::env;
use std::io::{self, ErrorKind};
use std::path::Path;

pub use kube::Client;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

/// Why there is no connection to the API server.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No kubeconfig is named, and none is at the usual place.
    #[error("there is no kubeconfig: KUBECONFIG is not set, and ~/.kube/config does not exist")]
    NoKubeconfig,
    /// A kubeconfig is named, and is not there.
    #[error("the kubeconfig {0} does not exist")]
    Missing(String),
    /// The file is there, and cannot be read.
    #[error("the kubeconfig {path} cannot be read")]
    Unreadable {
        /// Which file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The file is there, and says nothing that can be used.
    #[error("the kubeconfig {path} is not valid")]
    Invalid {
        /// Which file.
        path: String,
        /// Why.
        source: Box<KubeconfigError>,
    },
    /// There are contexts, but not this one.
    #[error("there is no context {context:?} in the kubeconfig {path}; there {}", contexts(.there))]
    NoContext {
        /// Which was asked for.
        context: String,
        /// Where.
        path: String,
        /// Which there are.
        there: Vec<String>,
    },
    /// In a pod, without a kubeconfig: the pod's `ServiceAccount` cannot be used.
    #[error("neither a kubeconfig nor the ServiceAccount of this pod says where the API server is")]
    NoServiceAccount(#[source] Box<kube::config::InferConfigError>),
    /// The configuration is not usable: a bad certificate, a bad address.
    #[error("cannot talk to the API server")]
    Client(#[source] Box<kube::Error>),
}

fn contexts(there: &[String]) -> String {
    match there {
        [] => "are none".to_owned(),
        [only] => format!("is {only}"),
        all => format!("are {}", all.join(", ")),
    }
}

/// A client by this kubeconfig; without one, by `KUBECONFIG`, `~/.kube/config` or the pod's own `ServiceAccount`, whose
/// token is read again when it is renewed. With a `context`, by that of a kubeconfig and nothing else. Nothing is asked
/// of the API server yet. Must be called within a runtime.
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
        // Not in a pod: what is wrong with the kubeconfig.
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

/// Where a kubeconfig is that no flag names.
fn usual_place() -> String {
    let named = env::var("KUBECONFIG").ok().filter(|named| !named.is_empty());
    named.unwrap_or_else(|| "~/.kube/config".to_owned())
}

fn is_set(variable: &str) -> bool {
    env::var_os(variable).is_some_and(|value| !value.is_empty())
}
