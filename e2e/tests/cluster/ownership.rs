//! Two namespaces under one gateway: which one owns a host, and that a route reaches nothing in another namespace.
//!
//! The gateway sees the whole cluster, but writes only in the two namespaces: concurrent trials have their own.

use std::panic::{AssertUnwindSafe, resume_unwind};

use futures_util::FutureExt;
use kube::api::DeleteParams;
use rouse_e2e::client::session;
use rouse_e2e::gateway::Gateway;
use rouse_e2e::wait::patiently;
use serde_json::{Value, json};

use crate::app::App;
use crate::authority::{self, Authority};
use crate::cluster;
use crate::harness::{Case, trial};
use crate::identity;
use crate::test_namespace::{Kind, ROUTE, TestNamespace, programs};

pub(crate) const TRIALS: &[Case] = &[
    trial!(a_host_belongs_to_the_namespace_that_claimed_it_first),
    trial!(a_route_reaches_nothing_of_another_namespace),
];

const SCALED: Kind = ("http.keda.sh/v1alpha1", "HTTPScaledObject");

/// Runs `check` with a second namespace and a gateway for both, and removes the cluster-wide objects.
async fn with_a_neighbour(
    space: TestNamespace,
    check: impl AsyncFnOnce(&TestNamespace, &TestNamespace, &Gateway),
) {
    let neighbour = TestNamespace::create().await;
    let reader = rights_to_read(&space);
    for object in &reader {
        cluster::apply(space.client(), None, object).await;
    }
    let outcome = AssertUnwindSafe(async {
        let launch = space.launch().await.without("--watch-namespace");
        grant_in(&neighbour, &space).await;
        let gateway = launch.start(&programs()).await;
        check(&space, &neighbour, &gateway).await;
        gateway.stop().await;
    });
    let outcome = outcome.catch_unwind().await;
    if outcome.is_err() {
        eprintln!("---- the neighbour:\n{}\n----", neighbour.tell().await);
    }
    for object in &reader {
        let name = object["metadata"]["name"].as_str().unwrap();
        let api = cluster::api_of(space.client(), None, object);
        if let Err(error) = api.delete(name, &DeleteParams::default()).await {
            eprintln!("cannot remove {name}: {error}");
        }
    }
    neighbour.remove().await;
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

fn gateway_of(space: &TestNamespace) -> Value {
    let user = identity::user(space);
    json!([{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }])
}

/// Cluster-wide read permissions for the gateway of `space`: those that it has in its own namespace.
fn rights_to_read(space: &TestNamespace) -> [Value; 2] {
    let Value::Array(mut rules) = identity::granted() else { panic!("a list of rules") };
    rules.retain(|rule| {
        let verbs = rule["verbs"].as_array().unwrap();
        verbs.iter().all(|verb| ["get", "list", "watch"].contains(&verb.as_str().unwrap()))
    });
    let group = "rbac.authorization.k8s.io";
    let role = json!({
        "apiVersion": format!("{group}/v1"), "kind": "ClusterRole",
        "metadata": { "name": space.name() }, "rules": rules,
    });
    let binding = json!({
        "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding",
        "metadata": { "name": space.name() },
        "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": space.name() },
        "subjects": gateway_of(space),
    });
    [role, binding]
}

/// Grants the gateway of `home` its usual permissions in `space`, and to read a `ConfigMap` and a Secret by name.
async fn grant_in(space: &TestNamespace, home: &TestNamespace) {
    let Value::Array(mut rules) = identity::granted() else { panic!("a list of rules") };
    for resource in ["configmaps", "secrets"] {
        identity::grant_named(home, resource, &["theirs"]).await;
        rules.push(json!({
            "apiGroups": [""], "resources": [resource], "resourceNames": ["theirs"], "verbs": ["list", "watch"],
        }));
    }
    let group = "rbac.authorization.k8s.io";
    space
        .apply(json!({
            "apiVersion": format!("{group}/v1"), "kind": "Role",
            "metadata": { "name": "gateway-next-door" }, "rules": rules,
        }))
        .await;
    space
        .apply(json!({
            "apiVersion": format!("{group}/v1"), "kind": "RoleBinding",
            "metadata": { "name": "gateway-next-door" },
            "roleRef": { "apiGroup": group, "kind": "Role", "name": "gateway-next-door" },
            "subjects": gateway_of(home),
        }))
        .await;
}

/// A route that answers with the name of its namespace, without a pod: by a placeholder, and below `/static` by a
/// static answer.
fn route(space: &TestNamespace, name: &str, host: &str, path: &str) -> Value {
    let response = json!({ "statusCode": 202, "body": space.name() });
    let rule = json!({ "hosts": [host], "paths": [{ "value": path }] });
    let fixed =
        json!({ "hosts": [host], "paths": [{ "value": format!("{}/static", path.trim_end_matches('/')) }] });
    space
        .route(name)
        .service("shop")
        .spec(&json!({
            "rules": [rule],
            "coldStart": { "placeholder": { "response": response } },
            "staticRoutes": [{ "rules": [fixed], "response": response, "responseMode": "Always" }],
        }))
        .object()
}

async fn a_host_belongs_to_the_namespace_that_claimed_it_first(space: TestNamespace) {
    with_a_neighbour(space, async |one, other, gateway| {
        // By name and by the age of its objects the neighbour would come first, but the time of the claim decides.
        let (space, neighbour) = if one.name() > other.name() { (one, other) } else { (other, one) };
        for namespace in [space, neighbour] {
            namespace.apply(App::new("shop").service()).await;
        }
        let host = space.host("shop");
        let target = gateway.target(&host);
        let answers = async |path: &str| {
            let answer = session::get(&target, path).await;
            (answer.status.as_u16(), answer.text())
        };
        let also = neighbour.host("also");
        neighbour.apply(route(neighbour, "a", &neighbour.host("early"), "/")).await;
        neighbour.condition("a", "Ready", "True").await;
        space.apply(route(space, "z", &host, "/")).await;
        let record = space.condition("z", "HostsClaimed", "True").await;
        assert!(record["message"].as_str().unwrap().ends_with(&format!(" {host}")), "{record}");
        neighbour.apply(route(neighbour, "a", &host, "/")).await;
        neighbour.apply(route(neighbour, "longer", &host, "/deep/down")).await;
        let both = json!({ "rules": [{ "hosts": [host, also] }] });
        let mut mixed = route(neighbour, "mixed", &also, "/");
        crate::app::merge(&mut mixed["spec"], &both);
        neighbour.apply(mixed).await;

        let scaled = neighbour.route("scaled").service("shop").hosts(&[&host]);
        neighbour.apply(scaled.spec(&json!({ "pathPrefixes": ["/deep/down/scaled"] })).scaled_object()).await;
        let told = format!("{host} is claimed earlier by namespace {}", space.name());
        let conflict = |object: &Value| {
            let conditions = object["status"]["conditions"].as_array();
            conditions.is_some_and(|all| {
                all.iter().any(|is| is["message"].as_str().is_some_and(|is| is.contains(&told)))
            })
        };
        neighbour.until(SCALED, "scaled", "to be told of the conflict", conflict).await;

        for name in ["a", "longer", "mixed"] {
            let conflict = neighbour.condition(name, "HostConflict", "True").await;
            let words = conflict["message"].as_str().unwrap();
            for word in [host.as_str(), space.name()] {
                assert!(words.contains(word), "{word} in {words:?}");
            }
            assert_eq!(neighbour.condition(name, "Ready", "False").await["reason"], "HostConflict");
        }
        for path in ["/", "/static", "/deep/down", "/deep/down/static", "/deep/down/scaled"] {
            assert_eq!(answers(path).await, (202, space.name().to_owned()), "{path}");
        }
        let other = session::get(&gateway.target(&also), "/").await;
        assert_eq!(other.text(), neighbour.name(), "a host without another claim belongs to the neighbour");
        assert_eq!(space.condition("z", "Ready", "True").await["reason"], "Reconciled");

        // Now the neighbour has the only claim.
        space.delete(ROUTE, "z").await;
        for name in ["a", "longer", "mixed"] {
            neighbour.condition(name, "Ready", "True").await;
        }
        for path in ["/", "/static", "/deep/down", "/deep/down/static"] {
            patiently("the neighbour to answer", async || {
                let (status, by) = answers(path).await;
                assert_eq!(status, 202, "{path}: {by}");
                (by == neighbour.name()).then_some(())
            })
            .await;
        }
        // The neighbour keeps the host: the route that comes back has the later claim.
        space.apply(route(space, "z", &host, "/")).await;
        space.condition("z", "HostConflict", "True").await;
        assert_eq!(answers("/").await, (202, neighbour.name().to_owned()));
    })
    .await;
}

async fn a_route_reaches_nothing_of_another_namespace(space: TestNamespace) {
    with_a_neighbour(space, async |space, neighbour, gateway| {
        let page = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "theirs" }, "data": { "body": "a page of theirs" },
        });
        space.apply(page).await;
        let authority = Authority::named("an authority of theirs");
        space.apply(authority::secret("theirs", &[("ca.crt", &authority.pem())])).await;
        space.apply(App::new("theirs").service()).await;
        let tls = json!({ "metadata": { "annotations": {
            "rouse.dev/upstream-tls": "true",
            "rouse.dev/upstream-ca": "secret/theirs",
        } } });
        for namespace in [space, neighbour] {
            namespace.apply(App::new("own").service()).await;
            namespace.apply(App::new("secret").service_with(tls.clone()).service()).await;
        }
        let page = json!({ "coldStart": { "placeholder": { "response": { "bodyFromConfigMap": { "name": "theirs" } } } } });
        let fallback = json!({ "coldStart": { "fallback": { "service": { "name": "theirs", "port": 80 } } } });
        for namespace in [space, neighbour] {
            namespace.apply(namespace.route("target").service("theirs").object()).await;
            namespace.apply(namespace.route("fallback").service("own").spec(&fallback).object()).await;
            namespace.apply(namespace.route("page").service("own").spec(&page).object()).await;
            namespace.apply(namespace.route("secret").object()).await;
        }
        // Service names that contain a namespace.
        let elsewhere = [("dotted", format!("theirs.{}", space.name())), ("slashed", format!("{}/theirs", space.name()))];
        for (name, service) in &elsewhere {
            neighbour.apply(neighbour.route(name).service(service).object()).await;
        }

        // In their own namespace all of them are found, so only the namespace keeps the neighbour from using them.
        for name in ["target", "fallback", "page", "secret"] {
            space.condition(name, "Ready", "True").await;
        }
        let page = session::get(&gateway.target(&space.host("page")), "/").await;
        assert_eq!(page.text(), "a page of theirs");
        for (name, kind) in [
            ("target", "NoService"),
            ("fallback", "BadFallback"),
            ("page", "MissingBody"),
            ("secret", "BadUpstreamTls"),
            ("dotted", "Ready"),
            ("slashed", "Ready"),
        ] {
            let status = if kind == "Ready" { "False" } else { "True" };
            let condition = neighbour.condition(name, kind, status).await;
            let words = condition["message"].as_str().unwrap();
            assert!(!words.contains("of theirs"), "{name}: {words}");
        }
        for (name, error) in [("target", "no_service"), ("secret", "tls_failed")] {
            let answer = session::get(&gateway.target(&neighbour.host(name)), "/").await;
            assert_eq!(answer.header("x-rouse-error"), error, "{name}: {}", answer.text());
        }
        let page = session::get(&gateway.target(&neighbour.host("page")), "/").await;
        assert_eq!(page.text(), "", "nothing of the other namespace");
    })
    .await;
}
