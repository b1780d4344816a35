//! Checks whether an account has the permissions of the gateway, with access reviews of the API server.

use kube::api::PostParams;
use kube::core::Request;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{Account, NamedObject, SurveyClient, SurveyError};
use crate::client::path;
use crate::client::permissions::{PERMISSIONS, Permission, PermissionRole, Scope};

/// Access reviews in flight at a time.
const AT_ONCE: usize = 6;
/// The most objects of one kind, named by routes and Services, for which access is reviewed.
const OBJECTS: usize = 50;

/// A permission in one place, and what of it is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionCheck {
    /// The permission.
    pub permission: &'static Permission,
    /// Where it was reviewed.
    pub place: PermissionScope,
    /// The verbs that are not allowed.
    pub denied: Vec<Denied>,
}

/// Where a permission is reviewed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PermissionScope {
    /// In all namespaces.
    Everywhere,
    /// In one namespace.
    Namespace(String),
    /// One object.
    Object {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

/// A verb that is not allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// The verb.
    pub verb: &'static str,
    /// The reason that the authorizer gives, if any.
    pub reason: String,
}

impl PermissionScope {
    fn namespace(&self) -> Option<&str> {
        match self {
            Self::Everywhere => None,
            Self::Namespace(namespace) | Self::Object { namespace, .. } => Some(namespace),
        }
    }
}

#[derive(Deserialize)]
struct Review {
    #[serde(default)]
    status: ReviewStatus,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct ReviewStatus {
    #[serde(default)]
    allowed: bool,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    evaluation_error: String,
}

/// The reviews to send for a role: every permission where it is needed. `own` is the namespace where Rouse is installed. Objects
/// that no route or Service names are left out, and permissions for features that a gateway may not use.
pub(super) fn questions(
    role: PermissionRole,
    namespace: Option<&str>,
    own: &str,
    named: &[NamedObject],
) -> Vec<(&'static Permission, PermissionScope)> {
    let mut all = Vec::new();
    for permission in role.permissions() {
        match permission.scope {
            Scope::Own => all.push((permission, PermissionScope::Namespace(own.to_owned()))),
            Scope::Watched => {
                let place = namespace.map_or(PermissionScope::Everywhere, |namespace| {
                    PermissionScope::Namespace(namespace.into())
                });
                all.push((permission, place));
            }
            Scope::OnDemand => {}
            Scope::Named => {
                let ours = named.iter().filter(|named| named.resource == permission.resource).take(OBJECTS);
                all.extend(ours.map(|named| {
                    let (namespace, name) = (named.namespace.clone(), named.name.clone());
                    (permission, PermissionScope::Object { namespace, name })
                }));
            }
        }
    }
    all
}

/// The reviews for a feature that the gateway asks the API server for only if it is on.
pub(super) fn on_demand() -> Vec<(&'static Permission, PermissionScope)> {
    let all = PERMISSIONS.iter().filter(|permission| permission.scope == Scope::OnDemand);
    all.map(|permission| (permission, PermissionScope::Everywhere)).collect()
}

/// Sends all reviews for `account`; without one, for the sender.
pub(super) async fn check_permissions(
    client: &SurveyClient<'_>,
    account: Option<&Account>,
    watched: Option<&str>,
    questions: Vec<(&'static Permission, PermissionScope)>,
) -> Result<Vec<PermissionCheck>, SurveyError> {
    let mut grants: Vec<PermissionCheck> = questions
        .into_iter()
        .map(|(permission, place)| PermissionCheck { permission, place, denied: Vec::new() })
        .collect();
    let mut reviews = Vec::new();
    for (at, grant) in grants.iter().enumerate() {
        for verb in grant.permission.verbs {
            reviews.push((at, *verb, review(account, watched, grant, verb)));
        }
    }
    let mut under_way = JoinSet::new();
    let mut denied = Vec::new();
    let mut waiting = reviews.into_iter();
    loop {
        while under_way.len() < AT_ONCE
            && let Some((at, verb, (path, body))) = waiting.next()
        {
            let client = client.0.clone();
            under_way.spawn(async move { (at, verb, submit(&SurveyClient(&client), path, &body).await) });
        }
        let Some(answer) = under_way.join_next().await else { break };
        let (at, verb, status) = answer.map_err(|error| SurveyError::Failed(error.to_string()))?;
        let status = status?;
        if !status.allowed {
            let reason = [status.reason, status.evaluation_error].into_iter().find(|text| !text.is_empty());
            denied.push((at, Denied { verb, reason: reason.unwrap_or_default() }));
        }
    }
    for (at, denied) in denied {
        grants.get_mut(at).into_iter().for_each(|grant| grant.denied.push(denied.clone()));
    }
    // Reviews end in any order.
    for grant in &mut grants {
        let order = |verb: &str| grant.permission.verbs.iter().position(|known| *known == verb);
        grant.denied.sort_by_key(|denied| order(denied.verb));
    }
    Ok(grants)
}

async fn submit(client: &SurveyClient<'_>, path: String, body: &Value) -> Result<ReviewStatus, SurveyError> {
    let request = Request::new(path).create(&PostParams::default(), body.to_string().into_bytes());
    let request = request.map_err(|error| SurveyError::Failed(error.to_string()))?;
    let review: Review = client.request(request).await.map_err(|error| SurveyError::new(&error))?;
    Ok(review.status)
}

/// The path and the body of one review.
fn review(
    account: Option<&Account>,
    watched: Option<&str>,
    grant: &PermissionCheck,
    verb: &str,
) -> (String, Value) {
    let (resource, subresource) = grant.permission.parts();
    let mut attributes = json!({ "group": grant.permission.group, "resource": resource, "verb": verb });
    let mut set = |field: &str, value: Option<&str>| {
        if let (Some(value), Some(members)) = (value, attributes.as_object_mut()) {
            members.insert(field.to_owned(), value.into());
        }
    };
    set("subresource", subresource);
    set("namespace", grant.place.namespace());
    if let PermissionScope::Object { name, .. } = &grant.place {
        set("name", Some(name));
    }
    let (kind, plural, namespace) = match (account, watched) {
        (None, _) => ("SelfSubjectAccessReview", "selfsubjectaccessreviews", None),
        (Some(_), None) => ("SubjectAccessReview", "subjectaccessreviews", None),
        // The administrator of one namespace has the permission for this review alone.
        (Some(_), Some(_)) => {
            ("LocalSubjectAccessReview", "localsubjectaccessreviews", grant.place.namespace())
        }
    };
    let mut spec = json!({ "resourceAttributes": attributes });
    if let (Some(account), Some(members)) = (account, spec.as_object_mut()) {
        members.insert("user".to_owned(), account.to_string().into());
        // Roles may be bound to the groups of a ServiceAccount, and a review does not derive them from its name.
        let own = format!("system:serviceaccounts:{}", account.namespace);
        members.insert("groups".to_owned(), json!(["system:serviceaccounts", own, "system:authenticated"]));
    }
    let mut body = json!({ "apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec });
    if let (Some(namespace), Some(members)) = (namespace, body.as_object_mut()) {
        members.insert("metadata".to_owned(), json!({ "namespace": namespace }));
    }
    (path("authorization.k8s.io", "v1", plural, namespace), body)
}
