//! RBAC: the gateway uses every permission that `deploy/` grants and no other, and `rouse check` reports missing ones.

use std::collections::BTreeSet;
use std::fmt;

use http::StatusCode;
use rouse_e2e::client::session;
use rouse_e2e::command::run;
use rouse_e2e::gateway::Gateway;
use rouse_e2e::wait::patiently;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::app::App;
use crate::cluster;
use crate::harness::{Case, trial};
use crate::identity;
use crate::node::Node;
use crate::test_namespace::{DEPLOYMENT, TestNamespace, programs};

pub(crate) const TRIALS: &[Case] = &[
    trial!(whatever_is_granted_is_used_and_nothing_else_is_asked_for).on_our_node(),
    trial!(check_passes_with_all_that_is_granted_and_names_each_rule_that_is_taken_away),
];

/// One verb on one resource that a rule allows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    group: String,
    /// With its subresource, as in rules: `deployments/scale`.
    resource: String,
    verb: String,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dot = if self.group.is_empty() { "" } else { "." };
        write!(f, "{} {}{dot}{}", self.verb, self.resource, self.group)
    }
}

impl Right {
    /// All rights in a rule.
    fn in_rule(rule: &Value) -> Vec<Self> {
        let words = |field: &str| {
            let words = rule[field].as_array().unwrap_or_else(|| panic!("no {field} in {rule}"));
            words.iter().map(|word| word.as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let mut rights = Vec::new();
        for group in words("apiGroups") {
            for resource in words("resources") {
                let right = |verb| Self { group: group.clone(), resource: resource.clone(), verb };
                rights.extend(words("verbs").into_iter().map(right));
            }
        }
        rights
    }

    /// The right that a request needs, from its entry in the audit log; `None` if it is not for an object.
    fn needed_for(entry: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let object = &entry["objectRef"];
        let resource = text(&object["resource"])?;
        let sub = text(&object["subresource"]).map(|sub| format!("/{sub}")).unwrap_or_default();
        Some(Self {
            group: text(&object["apiGroup"]).unwrap_or_default(),
            resource: resource + &sub,
            verb: text(&entry["verb"])?,
        })
    }
}

/// What `deploy/` grants to a gateway: for all namespaces, and for a `ConfigMap` or a Secret that a route or Service names.
fn granted() -> BTreeSet<Right> {
    let roles = cluster::deployed("optional/named-objects.yaml").into_iter();
    let named = roles.filter(|object| object["kind"] == "Role").map(|mut role| role["rules"].take());
    let all = named.chain([identity::granted()]);
    all.flat_map(|rules| rules.as_array().expect("rules").iter().flat_map(Right::in_rule).collect::<Vec<_>>())
        .collect()
}

const PAGE: &str = "page";
const AUTHORITY: &str = "authority";

/// The same app as a `StatefulSet`.
fn stateful(app: &App) -> Value {
    let mut object = app.deployment();
    object["kind"] = json!("StatefulSet");
    object["spec"]["serviceName"] = json!(app.name());
    object
}

/// Creates a workload, its Service, and a route with a placeholder page for cold starts.
async fn serve(space: &TestNamespace, app: &App, workload: Value) {
    let page = json!({ "statusCode": 503, "bodyFromConfigMap": { "name": PAGE } });
    space.apply(workload).await;
    space.apply(app.service()).await;
    let route =
        space.route(app.name()).spec(&json!({ "coldStart": { "placeholder": { "response": page } } }));
    space.apply(route.object()).await;
}

async fn whatever_is_granted_is_used_and_nothing_else_is_asked_for(space: TestNamespace) {
    let granted = granted();
    identity::grant_named(&space, "configmaps", &[PAGE]).await;
    identity::grant_named(&space, "secrets", &[AUTHORITY]).await;
    let gateway = space.gateway().await;
    do_everything(&space, &gateway).await;

    // The audit log is written asynchronously, and some requests come later.
    let (node, user) = (Node::ours(), identity::user(&space));
    for right in &granted {
        let what = format!("the gateway to {right}, which it is allowed to");
        node.until_asked(&user, &what, |entry| Right::needed_for(entry).as_ref() == Some(right)).await;
    }
    gateway.stop().await;
    for entry in node.asked_by(&user) {
        let code = entry["responseStatus"]["code"].as_u64().unwrap_or_default();
        assert!(code != 401 && code != 403, "refused: {entry:#}");
        let needed = Right::needed_for(&entry).unwrap_or_else(|| panic!("of no object: {entry:#}"));
        assert!(granted.contains(&needed), "deploy/ does not grant {needed}: {entry:#}");
        let object = &entry["objectRef"];
        assert_eq!(object["namespace"], space.name(), "the gateway watches only this namespace: {entry:#}");
        let named = match &*needed.resource {
            "configmaps" => PAGE,
            "secrets" => AUTHORITY,
            _ => continue,
        };
        assert_eq!(object["name"], named, "of this kind, only the named object: {entry:#}");
    }
}

/// Makes the gateway use all its permissions.
async fn do_everything(space: &TestNamespace, gateway: &Gateway) {
    let page = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": PAGE }, "data": { "body": "soon" } });
    space.apply(page).await;
    let authority = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": AUTHORITY }, "stringData": { "ca.crt": "none" },
    });
    space.apply(authority).await;

    // Wakes of both kinds of workloads, by routes of both kinds. For the route without a scale target, the gateway searches
    // the workload.
    let shop = App::new("shop");
    serve(space, &shop, shop.deployment()).await;
    let store = App::new("store");
    serve(space, &store, stateful(&store)).await;
    let old = space.route("shop").named("old").hosts(&[&space.host("old")]);
    space.apply(old.scaled_object()).await;
    // The gateway writes the status of this kind only if something is wrong.
    space.apply(space.route("nothing").scaled_object()).await;
    // Two that are scaled up but have no pods: their objects give the reason.
    let nowhere =
        json!({ "spec": { "template": { "spec": { "nodeSelector": { "rouse-e2e": "nowhere" } } } } });
    let stuck = App::new("stuck").replicas(1).deployment_with(nowhere.clone());
    serve(space, &stuck, stuck.deployment()).await;
    let still = App::new("still").replicas(1).deployment_with(nowhere);
    serve(space, &still, stateful(&still)).await;
    // A Service that names a Secret.
    let annotations =
        json!({ "rouse.dev/upstream-tls": "true", "rouse.dev/upstream-ca": format!("secret/{AUTHORITY}") });
    let vault = App::new("vault").service_with(json!({ "metadata": { "annotations": annotations } }));
    serve(space, &vault, vault.deployment()).await;

    let asked = async |host: &str, status, says: &str| {
        let target = gateway.target(&space.host(host));
        patiently(&format!("{host} to answer {status}"), async || {
            let answer = session::get(&target, "/healthz").await;
            (answer.status == status && answer.text() == says).then_some(())
        })
        .await;
    };
    for never in ["stuck", "still"] {
        asked(never, StatusCode::SERVICE_UNAVAILABLE, "soon").await;
    }
    for woken in ["shop", "store", "old"] {
        asked(woken, StatusCode::OK, "ok\n").await;
    }
}

/// The gateway of `deploy/manifests`, in this namespace. Its cluster-wide objects are removed with it.
struct Installed {
    space: TestNamespace,
    role: Value,
}

impl Installed {
    async fn into(space: &TestNamespace) -> Self {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace" });
        let namespace = cluster::api_of(space.client(), None, &namespace).get(space.name()).await.unwrap();
        let owner = json!([{
            "apiVersion": "v1", "kind": "Namespace", "name": space.name(), "uid": namespace.metadata.uid,
        }]);
        let mut installed = Self { space: space.clone(), role: Value::Null };
        for file in ["00-namespace", "10-rbac", "20-gateway", "30-services"] {
            for object in cluster::deployed(&format!("manifests/{file}.yaml")) {
                let text = object.to_string().replace("rouse-system", space.name());
                let mut object: Value = serde_json::from_str(&text).unwrap();
                match object["kind"].as_str().unwrap() {
                    "ClusterRole" | "ClusterRoleBinding" => {
                        object["metadata"]["ownerReferences"] = owner.clone();
                    }
                    "Deployment" => stand_in(&mut object),
                    _ => {}
                }
                let inside = object["metadata"]["namespace"].as_str();
                cluster::apply(space.client(), inside, &object).await;
                if object["kind"] == "ClusterRole" {
                    installed.role = object;
                }
            }
        }
        installed
    }

    /// Replaces the role's rules; the API server may take a moment to apply them.
    async fn with_rules(&self, rules: &[Value]) {
        let mut role = self.role.clone();
        role["rules"] = json!(rules);
        cluster::apply(self.space.client(), None, &role).await;
    }

    /// The result of `rouse check` for it; `None` if `rouse check` examined another account.
    async fn check(&self) -> Option<Seen> {
        let mut command = Command::new(programs().rouse);
        command.args(["check", "--output", "json", "--gateway", self.space.name(), "--kubeconfig"]);
        command.arg(cluster::kubeconfig());
        let ran = run(command).await;
        let report: Value =
            serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
        let code = ran.code.expect("an exit code");
        assert_eq!(report["passed"], code == 0, "{ran:?}");
        let account = format!("Permissions of system:serviceaccount:{}:rouse-gateway", self.space.name());
        let sections = report["sections"].as_array().expect("sections");
        let section = sections.iter().find(|section| section["name"] == account)?;
        let checks = section["checks"].as_array().expect("checks").iter();
        // Routes of concurrent trials name objects in their own namespaces.
        let rights = checks.filter(|check| check["name"].as_str().unwrap().ends_with(" in all namespaces"));
        let (missing, has) = rights.cloned().partition(|check| check["result"] != "pass");
        Some(Seen { code, missing, has })
    }
}

/// What `rouse check` reports about the gateway's rights.
struct Seen {
    code: i32,
    missing: Vec<Value>,
    has: Vec<Value>,
}

impl Seen {
    fn is_whole(&self) -> bool {
        self.code == 0 && self.missing.is_empty() && !self.has.is_empty()
    }
}

/// The gateway cannot work without these rights; without the others, only a feature is lost.
const NEEDED: &[&str] = &[
    "endpointslices",
    "services",
    "interceptorroutes",
    "httpscaledobjects",
    "deployments/scale",
    "deployments",
];

/// Runs the test app in place of the gateway: only ready pods are needed here.
fn stand_in(deployment: &mut Value) {
    let container = &mut deployment["spec"]["template"]["spec"]["containers"][0];
    container["image"] = json!(cluster::image());
    let more = [("HOST", "0.0.0.0"), ("PORT", "8080"), ("MORE_PORTS", "9090")];
    let more = more.iter().map(|(name, value)| json!({ "name": name, "value": value }));
    container["env"].as_array_mut().expect("variables").extend(more);
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        container[probe]["httpGet"]["path"] = json!("/healthz");
    }
}

/// Whether a check says that this right is missing, and how to grant it.
fn misses(check: &Value, right: &Right) -> bool {
    let text = |field: &str| check[field].as_str().unwrap_or_default();
    let Right { group, resource, verb } = right;
    let named = right.to_string();
    let named = named.split_once(' ').expect("a verb and a resource").1;
    let told = text("detail").split('.').next().unwrap_or_default();
    ["failure", "warning"].contains(&text("result"))
        && text("name").ends_with(&format!(" {named} in all namespaces"))
        && told.starts_with("may not ")
        && told.split(' ').any(|word| word == verb)
        && text("next").contains(&format!("apiGroups: [\"{group}\"], resources: [\"{resource}\"], verbs: ["))
}

async fn check_passes_with_all_that_is_granted_and_names_each_rule_that_is_taken_away(space: TestNamespace) {
    let installed = Installed::into(&space).await;
    space
        .until(DEPLOYMENT, "rouse-gateway", "to be available", |it| it["status"]["availableReplicas"] == 2)
        .await;
    let all = "check to pass, with all that is granted";
    patiently(all, async || installed.check().await.filter(Seen::is_whole)).await;

    let rules = installed.role["rules"].as_array().unwrap().clone();
    for (at, rule) in rules.iter().enumerate() {
        let mut fewer = rules.clone();
        fewer.remove(at);
        installed.with_rules(&fewer).await;
        let taken = Right::in_rule(rule);
        // The previous rule may still be missing for a moment.
        let what = format!("check to say that {rule} is missing, and nothing else");
        let seen = patiently(&what, async || {
            let seen = installed.check().await?;
            let told = taken.iter().all(|right| seen.missing.iter().any(|check| misses(check, right)));
            let others = seen.missing.iter().any(|check| !taken.iter().any(|right| misses(check, right)));
            (told && !others).then_some(seen)
        })
        .await;
        let fails = taken.iter().any(|right| NEEDED.contains(&&*right.resource));
        assert_eq!(seen.code, i32::from(fails), "without {rule}: {:#?}", seen.missing);
    }
    installed.with_rules(&rules).await;
    patiently(all, async || installed.check().await.filter(Seen::is_whole)).await;
}
