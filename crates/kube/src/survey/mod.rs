//! Inspects a cluster once, for `rouse check`: the version, the kinds, the gateway, its permissions, its
//! certificates, push, the controller, the control plane of Envoys, the routes.
//!
//! Every request has a deadline. A request that the server refuses does not end the survey: its result is a [`SurveyError`].

mod access;
mod certificates;
mod container;
mod controller;
mod gateway;
mod registration;
mod routes;
mod xds;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use kube::Client;
use kube::api::ListParams;
use kube::core::Request;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::client::permissions::PermissionRole;
use crate::client::{self, ObjectKind, describe, has_code};
use crate::objects::workload::is_object_name;
pub use access::{Denied, PermissionCheck, PermissionScope};
pub use certificates::{BundleSurvey, BundleTrust, CertificateSurvey, SecretSurvey};
pub use controller::{CONTROLLER, InstalledController, Leader, ReportService, ReportSurvey};
pub use gateway::{GATEWAY, GatewayPod, GatewayService, InstalledGateway};
pub use registration::{InjectedWorkload, RegistrationService, RegistrationSurvey, SidecarReach};
pub use routes::{ContestedHost, NamedObject, RouteProblem, RouteScaling, RouteSurvey, ScalingStatus};
pub use xds::{InstalledXds, XDS, XdsService};

/// How long one request may take.
const ANSWER: Duration = Duration::from_secs(10);
/// The most objects of one kind that are read.
const MOST: usize = 10_000;

/// What to inspect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SurveyScope {
    /// The one namespace that the gateway watches; `None`: as the gateway that is installed says, or else all.
    pub namespace: Option<String>,
    /// The namespace where the gateway is installed.
    pub gateway: String,
    /// The account whose permissions are checked; `None`: that of the installed gateway, or of the sender if there is none.
    pub account: Option<Account>,
    /// The time of day: certificates expire.
    pub now: SystemTime,
}

/// A `ServiceAccount`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A text that does not name a `ServiceAccount`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("expected a namespace and a name, like rouse-system/rouse-gateway")]
pub struct BadAccount;

impl FromStr for Account {
    type Err = BadAccount;

    fn from_str(text: &str) -> Result<Self, BadAccount> {
        let (namespace, name) = text.split_once('/').ok_or(BadAccount)?;
        let fits = is_object_name(namespace) && is_object_name(name);
        fits.then(|| Self { namespace: namespace.to_owned(), name: name.to_owned() }).ok_or(BadAccount)
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "system:serviceaccount:{}:{}", self.namespace, self.name)
    }
}

/// Why a part of the cluster could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SurveyError {
    /// The sender of the request has no permission.
    #[error("{0}")]
    Forbidden(String),
    /// The server did not answer, or not as it should.
    #[error("{0}")]
    Failed(String),
}

impl SurveyError {
    fn new(error: &kube::Error) -> Self {
        match error {
            error if has_code(error, 403) || has_code(error, 401) => Self::Forbidden(describe(error)),
            error => Self::Failed(describe(error)),
        }
    }
}

/// What was found in a cluster that answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survey {
    /// The time of day when it was found.
    pub now: SystemTime,
    /// Its Kubernetes version.
    pub version: KubernetesVersion,
    /// The kinds that the gateway follows and a cluster may lack.
    pub kinds: Vec<KindSurvey>,
    /// The gateway, if it is installed.
    pub gateway: Result<Option<InstalledGateway>, SurveyError>,
    /// The controller, if it is installed.
    pub controller: Result<Option<InstalledController>, SurveyError>,
    /// The control plane of Envoys, if it is installed.
    pub xds: Result<Option<InstalledXds>, SurveyError>,
    /// The one namespace that was inspected; `None`: all.
    pub namespace: Option<String>,
    /// The account whose permissions these are; `None`: that of the sender.
    pub account: Option<Account>,
    /// Each permission, with the verbs that are denied.
    pub grants: Result<Vec<PermissionCheck>, SurveyError>,
    /// The routes.
    pub routes: Result<RouteSurvey, SurveyError>,
}

/// A Kubernetes version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubernetesVersion {
    /// As the server says it.
    pub text: String,
    /// Major and minor, if they can be read.
    pub number: Option<(u32, u32)>,
}

/// A kind of object, and the versions in which the cluster has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindSurvey {
    /// `InterceptorRoute`.
    pub name: &'static str,
    /// `http.keda.sh`.
    pub group: &'static str,
    /// The version that the gateway asks for.
    pub version: &'static str,
    /// `interceptorroutes`.
    pub plural: &'static str,
    /// All versions that are served.
    pub served: Result<Vec<Served>, SurveyError>,
}

/// A version in which a kind is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Served {
    /// `v1beta1`.
    pub version: String,
    /// Whether it has a `status` subresource.
    pub status: bool,
}

/// The kinds that a cluster may lack.
const KINDS: [ObjectKind; 4] =
    [ObjectKind::SLICE, ObjectKind::ROUTE, ObjectKind::HTTP_SCALED_OBJECT, ObjectKind::SCALED_OBJECT];

/// Inspects everything in the scope. `Err` says why the API server does not answer.
pub async fn survey(client: &Client, wanted: &SurveyScope) -> Result<Survey, String> {
    let client = SurveyClient(client);
    let version = client.version().await.map_err(|error| describe(&error))?;
    let kinds = client.kinds().await;
    let gateway = gateway::look(&client, wanted).await;
    let installed = gateway.as_ref().ok().and_then(Option::as_ref);
    let namespace =
        wanted.namespace.clone().or_else(|| installed.and_then(|gateway| gateway.watches.clone()));
    let account = wanted.account.clone().or_else(|| match &gateway {
        Ok(installed) => installed.as_ref().map(|gateway| gateway.account.clone()),
        // The gateway may be installed although it could not be seen, so the permissions of the sender say nothing.
        Err(_) => Some(Account { namespace: wanted.gateway.clone(), name: GATEWAY.to_owned() }),
    });
    let routes = routes::look(&client, namespace.as_deref()).await;
    let named = routes.as_ref().map(|seen| &*seen.named).unwrap_or_default();
    let role = PermissionRole::Gateway;
    let questions = access::questions(role, namespace.as_deref(), &wanted.gateway, named);
    let grants = access::check_permissions(&client, account.as_ref(), namespace.as_deref(), questions).await;
    let controller = controller::look(&client, wanted, namespace.as_deref()).await;
    let xds = xds::look(&client, wanted, namespace.as_deref()).await;
    let now = wanted.now;
    Ok(Survey { now, version, kinds, gateway, controller, xds, namespace, account, grants, routes })
}

/// Asks the API server, under a deadline.
struct SurveyClient<'a>(&'a Client);

#[derive(Deserialize)]
struct VersionInfo {
    major: String,
    minor: String,
    #[serde(rename = "gitVersion", default)]
    text: String,
}

#[derive(Deserialize)]
struct Group {
    versions: Vec<GroupVersion>,
}

#[derive(Deserialize)]
struct GroupVersion {
    version: String,
}

#[derive(Deserialize)]
struct Resources {
    #[serde(default)]
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    name: String,
}

/// The versions of a group, each with its resources.
type Versions = Vec<(String, Resources)>;

#[derive(Deserialize)]
struct Page<T> {
    metadata: PageMeta,
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

#[derive(Deserialize)]
struct PageMeta {
    #[serde(default, rename = "continue")]
    next: Option<String>,
}

impl SurveyClient<'_> {
    async fn request<T: DeserializeOwned>(&self, request: http::Request<Vec<u8>>) -> Result<T, kube::Error> {
        client::within(ANSWER, self.0.request(request)).await
    }

    /// The object at `path`; `None` if there is none.
    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, SurveyError> {
        let request = http::Request::get(path).body(Vec::new());
        let request = request.map_err(|error| SurveyError::Failed(error.to_string()))?;
        match self.request(request).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if has_code(&error, 404) => Ok(None),
            Err(error) => Err(SurveyError::new(&error)),
        }
    }

    /// All objects at `path` with these labels, up to [`MOST`]; none if the kind is not there.
    async fn list<T: DeserializeOwned>(
        &self,
        path: String,
        labels: Option<String>,
    ) -> Result<Vec<T>, SurveyError> {
        let request = Request::new(path);
        let (mut all, mut next) = (Vec::new(), None);
        loop {
            let params = ListParams {
                limit: Some(500),
                continue_token: next,
                label_selector: labels.clone(),
                ..ListParams::default()
            };
            let page = request.list(&params).map_err(|error| SurveyError::Failed(error.to_string()))?;
            let page: Page<T> = match self.request(page).await {
                Err(error) if has_code(&error, 404) => return Ok(Vec::new()),
                page => page.map_err(|error| SurveyError::new(&error))?,
            };
            all.extend(page.items);
            next = page.metadata.next.filter(|next| !next.is_empty());
            if next.is_none() || all.len() >= MOST {
                return Ok(all);
            }
        }
    }

    async fn version(&self) -> Result<KubernetesVersion, kube::Error> {
        let request = http::Request::get("/version").body(Vec::new()).map_err(kube::Error::HttpError)?;
        let info: VersionInfo = self.request(request).await?;
        // Some providers say `26+`.
        let number = |text: &str| text.trim_end_matches('+').parse().ok();
        let number = number(&info.major).zip(number(&info.minor));
        Ok(KubernetesVersion { text: info.text, number })
    }

    async fn kinds(&self) -> Vec<KindSurvey> {
        let mut groups: BTreeMap<&str, Result<Versions, SurveyError>> = BTreeMap::new();
        for kind in KINDS {
            if !groups.contains_key(kind.group) {
                groups.insert(kind.group, self.group(kind.group).await);
            }
        }
        let seen = |kind: &ObjectKind| {
            let group = groups.get(kind.group)?;
            let served = group.as_ref().map(|group| served(kind, group)).map_err(Clone::clone);
            let ObjectKind { name, group, version, plural, .. } = *kind;
            Some(KindSurvey { name, group, version, plural, served })
        };
        KINDS.iter().filter_map(seen).collect()
    }

    /// The versions of a group, each with its resources.
    async fn group(&self, group: &str) -> Result<Versions, SurveyError> {
        let Some(found) = self.get::<Group>(&format!("/apis/{group}")).await? else { return Ok(Vec::new()) };
        let mut all = Vec::new();
        for GroupVersion { version } in found.versions {
            if let Some(resources) = self.get(&format!("/apis/{group}/{version}")).await? {
                all.push((version, resources));
            }
        }
        Ok(all)
    }
}

fn served(kind: &ObjectKind, group: &[(String, Resources)]) -> Vec<Served> {
    let status = format!("{}/status", kind.plural);
    let has =
        |resources: &Resources, name: &str| resources.resources.iter().any(|resource| resource.name == name);
    let there = group.iter().filter(|(_, resources)| has(resources, kind.plural));
    there
        .map(|(version, resources)| Served { version: version.clone(), status: has(resources, &status) })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::future::{Pending, Ready, pending, ready};
    use std::task::{Context, Poll};

    use futures_util::future::Either;
    use kube::client::Body;

    use super::*;

    type Answer = Result<http::Response<Body>, std::convert::Infallible>;

    /// Answers requests for this path, and no others.
    #[derive(Clone)]
    struct Silent(Option<&'static str>);

    impl tower_service::Service<http::Request<Body>> for Silent {
        type Response = http::Response<Body>;
        type Error = std::convert::Infallible;
        type Future = Either<Ready<Answer>, Pending<Answer>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<Body>) -> Self::Future {
            let answers = self.0.is_some_and(|path| request.uri().path() == path);
            let body = br#"{"major":"1","minor":"36","gitVersion":"v1.36.4"}"#;
            let answer = http::Response::new(Body::from(body.to_vec()));
            if answers { Either::Left(ready(Ok(answer))) } else { Either::Right(pending()) }
        }
    }

    async fn look(api: Silent) -> Result<Survey, String> {
        let now = SystemTime::UNIX_EPOCH;
        let wanted = SurveyScope { namespace: None, gateway: "rouse-system".to_owned(), account: None, now };
        let client = Client::new(api, "default");
        let limit = Duration::from_mins(5);
        tokio::time::timeout(limit, survey(&client, &wanted)).await.expect("every question has a deadline")
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_never_answers_is_given_up() {
        let words = look(Silent(None)).await.unwrap_err();
        assert!(words.contains("no answer within 10 s"), "{words}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_answered_is_not_seen_and_the_rest_is() {
        let seen = look(Silent(Some("/version"))).await.unwrap();
        assert_eq!(seen.version, KubernetesVersion { text: "v1.36.4".to_owned(), number: Some((1, 36)) });
        let failed = |unseen: &SurveyError| matches!(unseen, SurveyError::Failed(words) if words.contains("no answer"));
        assert!(seen.kinds.iter().all(|kind| kind.served.as_ref().is_err_and(failed)), "{seen:?}");
        assert!(seen.gateway.is_err_and(|unseen| failed(&unseen)));
        assert!(seen.grants.is_err_and(|unseen| failed(&unseen)));
        assert!(seen.routes.is_err_and(|unseen| failed(&unseen)));
    }

    #[test]
    fn an_account_is_a_namespace_and_a_name() {
        let account: Account = "rouse-system/rouse-gateway".parse().unwrap();
        assert_eq!(account.to_string(), "system:serviceaccount:rouse-system:rouse-gateway");
        for bad in ["", "a", "a/", "/a", "a/b/c", "A/b", "a/..", "a b/c"] {
            assert_eq!(bad.parse::<Account>(), Err(BadAccount), "{bad}");
        }
    }
}
