//! TLS to pods: dialled by address, verified by the Service's name, with the current content of Secrets and `ConfigMap`s.

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use http::StatusCode;
use rouse_e2e::client::session::{self, FullResponse, Http};
use rouse_e2e::gateway::Gateway;
use rouse_e2e::wait::{patiently, within};
use rouse_net::tls::{Alpn, ClientSettings, ClientTls, Pem, Roots, ServerName};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::app::App;
use crate::authority::{Authority, Leaf, config_map, leaf_secret, leaf_secret_for, secret};
use crate::harness::{Case, trial};
use crate::identity::{grant_named, grant_named_in};
use crate::test_namespace::{DEPLOYMENT, Kind, TestNamespace, programs};

pub(crate) const TRIALS: &[Case] = &[
    trial!(a_pod_is_dialled_by_address_and_verified_by_any_name_of_its_service),
    trial!(the_domain_of_the_cluster_is_the_operators),
    trial!(a_wrong_certificate_is_refused_in_words_and_the_pod_gets_nothing),
    trial!(a_client_certificate_is_shown_where_the_service_names_one),
    trial!(a_secret_that_may_not_be_read_is_told_and_in_use_once_it_may),
    trial!(a_ca_that_is_missing_or_broken_is_told_and_in_use_once_it_is_there),
    trial!(a_secret_of_another_namespace_cannot_be_named),
    trial!(the_operators_ca_counts_where_a_service_has_none),
    trial!(certificates_are_rotated_without_a_restart_and_without_a_failed_request),
    trial!(with_kedas_variables_https_goes_on_as_https_under_the_short_name),
    trial!(kedas_switch_turns_verification_off_with_a_warning),
    trial!(a_fallback_service_is_asked_for_by_its_own_name),
];

const CONFIG_MAP: Kind = ("v1", "ConfigMap");

/// The usual annotation of a Service: the CA of its pods' certificates.
const CA: (&str, &str) = ("upstream-ca", "configmap/ca");

const WRONG_CA: &str = "not issued by a trusted CA";

/// The DNS name of a Service, sent as SNI.
fn dns(space: &TestNamespace, service: &str) -> String {
    format!("{service}.{}.svc", space.name())
}

/// Creates an authority whose certificate is in the `ConfigMap` `ca`, which the gateway may read.
async fn authority(space: &TestNamespace) -> Authority {
    let authority = Authority::named("authority of a trial");
    space.apply(config_map("ca", &[("ca.crt", &authority.pem())])).await;
    grant_named(space, "configmaps", &["ca"]).await;
    authority
}

/// Runs a pod of `app` with the certificate `leaf`.
async fn pod(space: &TestNamespace, app: &str, leaf: &Leaf) {
    space.apply(leaf_secret(app, leaf)).await;
    space.apply(App::new(app).replicas(1).tls(app).deployment()).await;
}

/// Annotations of a Service: `("upstream-ca", "configmap/ca")`.
type Asks<'a> = &'a [(&'a str, &'a str)];

fn annotations(asks: Asks<'_>) -> Value {
    let all: serde_json::Map<String, Value> =
        asks.iter().map(|(name, value)| (format!("rouse.dev/{name}"), json!(value))).collect();
    json!({ "metadata": { "annotations": all } })
}

/// A Service of the pods of `app` with these annotations, and a route to it.
async fn service(space: &TestNamespace, app: &str, name: &str, asks: Asks<'_>) {
    let mut service = App::new(app).service_with(annotations(asks)).service();
    service["metadata"]["name"] = json!(name);
    space.apply(service).await;
    space.apply(space.route(name).object()).await;
}

/// The same with TLS to its pods.
async fn secure(space: &TestNamespace, app: &str, name: &str, asks: Asks<'_>) {
    let asks: Vec<_> = asks.iter().copied().chain([("upstream-tls", "true")]).collect();
    service(space, app, name, &asks).await;
}

async fn ask(space: &TestNamespace, gateway: &Gateway, name: &str) -> FullResponse {
    session::get(&gateway.target(&space.host(name)), "/headers").await
}

/// Asserts that a pod answered, and returns what it saw of the request.
#[track_caller]
fn served(name: &str, answer: &FullResponse) -> Value {
    let said = (answer.status, answer.header("x-rouse-error"));
    assert_eq!(said, (StatusCode::OK, ""), "{name}: {}", answer.text());
    answer.json()
}

/// The response for unusable settings; the reason is in the route's status.
const UNUSABLE: &str = "cannot be used; see the status of its routes";

fn is_refused(answer: &FullResponse, words: &str) -> bool {
    (answer.status, answer.header("x-rouse-error")) == (StatusCode::BAD_GATEWAY, "tls_failed")
        && answer.text().contains(words)
}

#[track_caller]
fn refused(name: &str, answer: &FullResponse, words: &str) {
    let (status, text) = (answer.status, answer.text());
    assert!(is_refused(answer, words), "{name}: expected tls_failed and {words:?}, not {status} {text}");
}

/// Repeats a request until the pod answers. Returns what the pod saw. Until then, every response must be a TLS failure.
async fn until_served(space: &TestNamespace, gateway: &Gateway, name: &str) -> Value {
    patiently(&format!("{name} to be served"), async || {
        let answer = ask(space, gateway, name).await;
        if answer.status == StatusCode::OK {
            return Some(answer.json());
        }
        refused(name, &answer, "");
        None
    })
    .await
}

/// Repeats a request until it is refused with these words.
async fn until_refused(space: &TestNamespace, gateway: &Gateway, name: &str, words: &str) {
    patiently(&format!("{name} to be refused: {words}"), async || {
        is_refused(&ask(space, gateway, name).await, words).then_some(())
    })
    .await;
}

/// Waits until the route's status contains these words, too.
async fn until_told(space: &TestNamespace, route: &str, words: &str) {
    patiently(&format!("the status of {route} to contain: {words}"), async || {
        let told = space.condition(route, "BadUpstreamTls", "True").await;
        told["message"].as_str()?.contains(words).then_some(())
    })
    .await;
}

async fn a_pod_is_dialled_by_address_and_verified_by_any_name_of_its_service(space: TestNamespace) {
    let authority = authority(&space).await;
    let namespace = space.name();
    let names = [
        format!("short.{namespace}"),
        format!("middle.{namespace}.svc"),
        format!("long.{namespace}.svc.cluster.local"),
        dns(&space, "protocol"),
        "shop.example.com".to_owned(),
    ];
    space.apply(leaf_secret("app", &authority.leaf(&names))).await;
    // The first request wakes it.
    space.apply(App::new("app").tls("app").deployment()).await;
    for name in ["short", "middle", "long"] {
        secure(&space, "app", name, &[CA]).await;
    }
    secure(&space, "app", "own", &[CA, ("upstream-server-name", "shop.example.com")]).await;
    let mut protocol = App::new("app").app_protocol("https").service_with(annotations(&[CA])).service();
    protocol["metadata"]["name"] = json!("protocol");
    space.apply(protocol).await;
    space.apply(space.route("protocol").object()).await;
    for mode in ["disabled", "cold-start-only"] {
        let route = space.route(mode).service("middle").annotate("direct-pod-routing", mode);
        space.apply(route.object()).await;
    }
    let gateway = space.gateway().await;
    let cold = ask(&space, &gateway, "short").await;
    assert_eq!(cold.header("x-rouse-cold-start"), "true", "{}", cold.text());
    let [pod] = &space.ready_pods_of("app", &["short", "middle", "long"], 1).await[..] else { panic!() };
    for (route, expected) in [
        ("short", dns(&space, "short")),
        ("middle", dns(&space, "middle")),
        ("long", dns(&space, "long")),
        ("own", "shop.example.com".to_owned()),
        ("protocol", dns(&space, "protocol")),
        ("disabled", dns(&space, "middle")),
        ("cold-start-only", dns(&space, "middle")),
    ] {
        let seen = served(route, &ask(&space, &gateway, route).await);
        assert_eq!(seen["sni"], expected, "{route}");
        assert_eq!(seen["local"], format!("{}:8080", pod.ip), "{route}");
        assert_eq!(seen["client_certificate"], false, "{route}");
        assert_eq!(seen["headers"]["x-forwarded-proto"][0], "http", "{route}: the client's scheme");
    }
    let dialled: BTreeSet<_> = gateway.connections().into_iter().map(|address| address.ip()).collect();
    assert!(dialled.contains(&pod.ip), "{dialled:?}");
    gateway.stop().await;
}

async fn the_domain_of_the_cluster_is_the_operators(space: TestNamespace) {
    let authority = authority(&space).await;
    let namespace = space.name();
    let names =
        [format!("ours.{namespace}.svc.corp.example"), format!("usual.{namespace}.svc.cluster.local")];
    pod(&space, "app", &authority.leaf(&names)).await;
    for name in ["ours", "usual"] {
        secure(&space, "app", name, &[CA]).await;
    }
    space.ready_pods_of("app", &["ours", "usual"], 1).await;
    for (domain, good, bad) in [("corp.example", "ours", "usual"), ("cluster.local", "usual", "ours")] {
        let launch = space.launch().await.flag("--cluster-domain", domain);
        let gateway = launch.start(&programs()).await;
        let seen = served(good, &ask(&space, &gateway, good).await);
        assert_eq!(seen["sni"], dns(&space, good));
        let words = format!("is not for {}", dns(&space, bad));
        refused(bad, &ask(&space, &gateway, bad).await, &words);
        gateway.stop().await;
    }
}

async fn a_wrong_certificate_is_refused_in_words_and_the_pod_gets_nothing(space: TestNamespace) {
    let authority = authority(&space).await;
    space.apply(config_map("stranger", &[("ca.crt", &Authority::named("stranger").pem())])).await;
    grant_named(&space, "configmaps", &["ca", "stranger"]).await;
    let names = ["right", "unknown", "system", "expired"].map(|name| dns(&space, name));
    pod(&space, "app", &authority.leaf(&names)).await;
    pod(&space, "over", &authority.leaf_of(&names, [2000, 2001])).await;
    space.apply(App::new("plain").replicas(1).deployment()).await;
    secure(&space, "app", "right", &[CA]).await;
    let wrong_name = format!("is not for {} but for [", dns(&space, "wrong"));
    let table: &[(_, _, Asks<'_>, _)] = &[
        ("app", "wrong", &[CA], &*wrong_name),
        ("app", "unknown", &[("upstream-ca", "configmap/stranger")], WRONG_CA),
        ("app", "system", &[], WRONG_CA),
        ("over", "expired", &[CA], "has expired"),
        ("plain", "clear", &[CA], "does not speak TLS"),
    ];
    for (app, name, asks, _) in table {
        secure(&space, app, name, asks).await;
        let trustful = format!("{name}-trustful");
        let route = space.route(&trustful).service(name).annotate("upstream-verify", "false");
        space.apply(route.object()).await;
    }
    let mut pods = space.ready_pods_of("app", &["right", "wrong", "unknown", "system"], 1).await;
    pods.extend(space.ready_pods_of("over", &["expired"], 1).await);
    pods.extend(space.ready_pods_of("plain", &["clear"], 1).await);
    let gateway = space.gateway().await;
    for (_, name, _, words) in table {
        refused(name, &ask(&space, &gateway, name).await, words);
    }
    refused("wrong", &ask(&space, &gateway, "wrong").await, &names[0]);
    for pod in &pods {
        let seen = space.requests_seen_by(&pod.name).await;
        assert!(seen.is_empty(), "{} got {seen:?}", pod.name);
    }
    let seen = served("right", &ask(&space, &gateway, "right").await);
    assert_eq!(seen["sni"], dns(&space, "right"), "another Service's certificate still works");

    // Without verification, any certificate is accepted, but the pod must speak TLS.
    for (_, name, _, words) in table {
        let trustful = format!("{name}-trustful");
        let answer = ask(&space, &gateway, &trustful).await;
        if *name == "clear" {
            refused(&trustful, &answer, words);
        } else {
            assert_eq!(served(&trustful, &answer)["sni"], dns(&space, name), "{trustful}");
        }
        refused(name, &ask(&space, &gateway, name).await, words);
    }
    gateway.stop().await;
}

async fn a_client_certificate_is_shown_where_the_service_names_one(space: TestNamespace) {
    let authority = authority(&space).await;
    let clients = Authority::named("authority of clients");
    let names = ["mutual", "nobody", "stranger", "plain-text"].map(|name| dns(&space, name));
    space.apply(leaf_secret_for("app", &authority.leaf(&names), &clients.pem())).await;
    space.apply(App::new("app").replicas(1).tls("app").client_certificates().deployment()).await;
    let ours = ["rouse".to_owned()];
    space.apply(leaf_secret("ours", &clients.leaf(&ours))).await;
    space.apply(leaf_secret("theirs", &Authority::named("stranger").leaf(&ours))).await;
    grant_named(&space, "secrets", &["ours", "theirs"]).await;
    secure(&space, "app", "mutual", &[CA, ("upstream-client-cert", "ours")]).await;
    secure(&space, "app", "stranger", &[CA, ("upstream-client-cert", "theirs")]).await;
    secure(&space, "app", "nobody", &[CA]).await;
    let [pod] = &space.ready_pods_of("app", &["mutual", "stranger", "nobody"], 1).await[..] else { panic!() };
    let gateway = space.gateway().await;
    refused("nobody", &ask(&space, &gateway, "nobody").await, "requires a client certificate");
    refused("stranger", &ask(&space, &gateway, "stranger").await, "rejected our certificate");
    assert!(space.requests_seen_by(&pod.name).await.is_empty());
    let seen = served("mutual", &ask(&space, &gateway, "mutual").await);
    assert_eq!((&seen["client_certificate"], &seen["sni"]), (&json!(true), &json!(names[0])));
    gateway.stop().await;
}

async fn a_secret_that_may_not_be_read_is_told_and_in_use_once_it_may(space: TestNamespace) {
    let authority = Authority::named("authority of a trial");
    let names = ["signed", "mutual"].map(|name| dns(&space, name));
    let leaf = authority.leaf(&names);
    space.apply(leaf_secret_for("app", &leaf, &authority.pem())).await;
    space.apply(App::new("app").replicas(1).tls("app").client_certificates().deployment()).await;
    space.apply(secret("root", &[("bundle.pem", &authority.pem())])).await;
    space.apply(leaf_secret("ours", &authority.leaf(&["rouse".to_owned()]))).await;
    let root = ("upstream-ca", "secret/root/bundle.pem");
    secure(&space, "app", "mutual", &[root, ("upstream-client-cert", "ours")]).await;
    let [pod] = &space.ready_pods_of("app", &["mutual"], 1).await[..] else { panic!() };
    let gateway = space.gateway().await;

    let of = |name: &str| format!("Secret {}/{name}", space.name());
    let right = format!("permission to list and watch secrets in namespace {} is missing", space.name());
    for (granted, missing) in [(&[][..], &["root", "ours"][..]), (&["root"], &["ours"])] {
        if !granted.is_empty() {
            grant_named(&space, "secrets", granted).await;
        }
        let answer = ask(&space, &gateway, "mutual").await;
        refused("mutual", &answer, UNUSABLE);
        assert!(!answer.text().contains("permission"), "{}", answer.text());
        for name in missing {
            let told = patiently("the route's status", async || {
                let told = space.condition("mutual", "BadUpstreamTls", "True").await;
                let words = told["message"].as_str().unwrap_or_default().to_owned();
                let right = words.contains(&of(name)) && words.contains(&right);
                (right && granted.iter().all(|name| !words.contains(&of(name)))).then_some(told)
            })
            .await;
            assert_eq!(told["reason"], "BadUpstreamTls");
        }
        assert_eq!(space.condition("mutual", "Ready", "False").await["reason"], "BadUpstreamTls");
    }
    assert!(space.requests_seen_by(&pod.name).await.is_empty());

    grant_named(&space, "secrets", &["root", "ours"]).await;
    let seen = until_served(&space, &gateway, "mutual").await;
    assert_eq!(seen["client_certificate"], true);
    space.condition("mutual", "Ready", "True").await;
    gateway.stop().await;
}

async fn a_ca_that_is_missing_or_broken_is_told_and_in_use_once_it_is_there(space: TestNamespace) {
    let authority = Authority::named("authority of a trial");
    pod(&space, "app", &authority.leaf(&[dns(&space, "shop")])).await;
    grant_named(&space, "configmaps", &["ca"]).await;
    secure(&space, "app", "shop", &[CA]).await;
    space.ready_pods_of("app", &["shop"], 1).await;
    let gateway = space.gateway().await;
    let object = format!("ConfigMap {}/ca", space.name());
    let missing = format!("there is no {object}");
    refused("shop", &ask(&space, &gateway, "shop").await, UNUSABLE);
    until_told(&space, "shop", &missing).await;

    let pem = authority.pem();
    let broken = pem.replace("-----END", "!-----END");
    for (entries, words) in [
        (("other.crt", &*pem), &*format!("{object} has no entry \"ca.crt\"")),
        (("ca.crt", "nothing"), "cannot be set up"),
        (("ca.crt", &*broken), "cannot be set up"),
    ] {
        space.apply(config_map("ca", &[entries])).await;
        until_refused(&space, &gateway, "shop", "").await;
        until_told(&space, "shop", words).await;
    }
    space.apply(config_map("ca", &[("ca.crt", &pem)])).await;
    assert_eq!(until_served(&space, &gateway, "shop").await["sni"], dns(&space, "shop"));
    space.condition("shop", "Ready", "True").await;
    space.delete(CONFIG_MAP, "ca").await;
    until_refused(&space, &gateway, "shop", UNUSABLE).await;
    gateway.stop().await;
}

async fn a_secret_of_another_namespace_cannot_be_named(space: TestNamespace) {
    let other = TestNamespace::create().await;
    let outcome = AssertUnwindSafe(neighbours_secrets(&space, &other)).catch_unwind().await;
    other.remove().await;
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

/// `other` has the needed objects, and the gateway may read them there: only the namespace rule prevents their use.
async fn neighbours_secrets(space: &TestNamespace, other: &TestNamespace) {
    let authority = Authority::named("authority of a trial");
    let apps = ["root", "root-entry", "path", "mutual", "mutual-dots"];
    pod(space, "app", &authority.leaf(&apps.map(|name| dns(space, name)))).await;
    other.apply(secret("root", &[("ca.crt", &authority.pem())])).await;
    other.apply(leaf_secret("ours", &authority.leaf(&["rouse".to_owned()]))).await;
    grant_named_in(other, space, "secrets", &["root", "ours"]).await;
    space.apply(config_map("ca", &[("ca.crt", &authority.pem())])).await;
    grant_named(space, "configmaps", &["ca"]).await;
    // The other namespace's name is also an object's name: the gateway looks for that object in the route's namespace.
    grant_named(space, "secrets", &[other.name()]).await;
    let there = other.name();
    let at_home = format!("there is no Secret {}/{there}", space.name());
    let table = [
        ("root", ("upstream-ca", format!("secret/{there}/root")), &*at_home),
        ("root-entry", ("upstream-ca", format!("secret/{there}/root/ca.crt")), "expected configmap/NAME"),
        ("path", ("upstream-ca", format!("secret/../{there}/root")), "expected configmap/NAME"),
        ("mutual", ("upstream-client-cert", format!("{there}/ours")), "expected the name of a Secret"),
        (
            "mutual-dots",
            ("upstream-client-cert", format!("../{there}/ours")),
            "expected the name of a Secret",
        ),
    ];
    for (name, (annotation, value), _) in &table {
        secure(space, "app", name, &[CA, (annotation, value)]).await;
    }
    let [pod] = &space.ready_pods_of("app", &apps, 1).await[..] else { panic!("one pod") };
    let gateway = space.gateway().await;
    for (name, _, words) in &table {
        refused(name, &ask(space, &gateway, name).await, "");
        until_told(space, name, words).await;
    }
    assert!(space.requests_seen_by(&pod.name).await.is_empty());
    gateway.stop().await;
}

async fn the_operators_ca_counts_where_a_service_has_none(space: TestNamespace) {
    let authority = Authority::named("authority of a trial");
    let stranger = Authority::named("stranger");
    pod(&space, "app", &authority.leaf(&["shop", "own"].map(|name| dns(&space, name)))).await;
    space.apply(config_map("ca", &[("ca.crt", &stranger.pem())])).await;
    grant_named(&space, "configmaps", &["ca"]).await;
    secure(&space, "app", "shop", &[]).await;
    secure(&space, "app", "own", &[CA]).await;
    space.ready_pods_of("app", &["shop", "own"], 1).await;
    let file = space.files().join("roots.pem");
    fs::write(&file, stranger.pem()).unwrap();
    let gateway = space.launch().await.flag("--upstream-ca", file.display()).start(&programs()).await;
    refused("shop", &ask(&space, &gateway, "shop").await, WRONG_CA);
    let new = space.files().join("roots.new");
    fs::write(&new, authority.pem()).unwrap();
    fs::rename(&new, &file).unwrap();
    assert_eq!(until_served(&space, &gateway, "shop").await["sni"], dns(&space, "shop"));
    refused("own", &ask(&space, &gateway, "own").await, WRONG_CA);
    gateway.stop().await;
}

/// Requests one after the other, until it is stopped.
struct Trickle {
    over: Arc<AtomicBool>,
    clients: JoinSet<(usize, Vec<String>)>,
}

impl Trickle {
    fn start(space: &TestNamespace, gateway: &Gateway, app: &str) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for keeps_its_connection in [true, false] {
            let (target, over) = (gateway.target(&space.host(app)), Arc::clone(&over));
            clients.spawn(async move {
                let (mut asked, mut failures) = (0, Vec::new());
                let mut http = Http::one(&target).await;
                while !over.load(Ordering::Relaxed) {
                    if !keeps_its_connection {
                        http = Http::one(&target).await;
                    }
                    // The pod's delay sets the rate.
                    let answer = http.get("/slow/50").await;
                    asked += 1;
                    if answer.status != StatusCode::OK {
                        failures.push(format!("number {asked}: {} {}", answer.status, answer.text()));
                    }
                }
                (asked, failures)
            });
        }
        Self { over, clients }
    }

    /// Stops, and returns the number of requests; all must have succeeded.
    async fn end(mut self) -> usize {
        self.over.store(true, Ordering::Relaxed);
        let mut all = 0;
        while let Some(client) = within("the last request", self.clients.join_next()).await {
            let (asked, failures) = client.expect("a client");
            assert!(failures.is_empty(), "{} of {asked}: {failures:#?}", failures.len());
            all += asked;
        }
        all
    }
}

async fn certificates_are_rotated_without_a_restart_and_without_a_failed_request(space: TestNamespace) {
    let (old, new) = (Authority::named("old"), Authority::named("new"));
    let (only_old, only_new) = (old.pem(), new.pem());
    let both = format!("{only_old}{only_new}");
    let names = ["shop", "stays", "ahead"].map(|name| dns(&space, name));
    // `stays` never gets a certificate of the new authority; `ahead` does not trust the old one.
    for (secret, authority, clients) in
        [("shop-1", &old, &both), ("shop-2", &new, &both), ("stays", &old, &both), ("ahead", &new, &only_new)]
    {
        space.apply(leaf_secret_for(secret, &authority.leaf(&names), clients)).await;
    }
    let asks = annotations(&[CA, ("upstream-client-cert", "ours"), ("upstream-tls", "true")]);
    let shop = App::new("shop")
        .replicas(2)
        .client_certificates()
        // Pods keep serving until all gateways know that they are terminating.
        .env("TERM_DELAY_MS", 3000)
        .service_with(asks.clone())
        .deployment_with(json!({ "spec": {
            "strategy": { "rollingUpdate": { "maxSurge": 1, "maxUnavailable": 0 } },
        }}));
    space.serve(&shop.clone().tls("shop-1")).await;
    for name in ["stays", "ahead"] {
        let app = App::new(name).replicas(1).client_certificates().tls(name).service_with(asks.clone());
        space.serve(&app).await;
    }
    let ours = ["rouse".to_owned()];
    space.apply(config_map("ca", &[("ca.crt", &only_old)])).await;
    space.apply(leaf_secret("ours", &old.leaf(&ours))).await;
    grant_named(&space, "configmaps", &["ca"]).await;
    grant_named(&space, "secrets", &["ours"]).await;
    let before = space.ready_pods("shop", 2).await;
    for name in ["stays", "ahead"] {
        space.ready_pods(name, 1).await;
    }
    let gateway = space.gateway().await;
    served("stays", &ask(&space, &gateway, "stays").await);
    refused("ahead", &ask(&space, &gateway, "ahead").await, WRONG_CA);
    let trickle = Trickle::start(&space, &gateway, "shop");

    space.apply(config_map("ca", &[("ca.crt", &both)])).await;
    // Now the gateway trusts the pod, but the pod does not trust the gateway's certificate.
    until_refused(&space, &gateway, "ahead", "rejected our certificate").await;
    space.apply(shop.tls("shop-2").deployment()).await;
    rolled_out(&space, "shop").await;
    space.apply(leaf_secret("ours", &new.leaf(&ours))).await;
    until_served(&space, &gateway, "ahead").await;
    space.apply(config_map("ca", &[("ca.crt", &only_new)])).await;
    until_refused(&space, &gateway, "stays", WRONG_CA).await;

    let seen = served("shop", &ask(&space, &gateway, "shop").await);
    assert_eq!(seen["client_certificate"], true);
    assert!(before.iter().all(|pod| seen["pod"] != pod.name), "{before:?} are gone: {seen}");
    let asked = trickle.end().await;
    assert!(asked > 20, "only {asked} requests");
    gateway.stop().await;
}

async fn rolled_out(space: &TestNamespace, app: &str) {
    space
        .until(DEPLOYMENT, app, "to be rolled out", |deployment| {
            let (status, wanted) = (&deployment["status"], &deployment["spec"]["replicas"]);
            let counts = ["updatedReplicas", "readyReplicas", "replicas"];
            status["observedGeneration"] == deployment["metadata"]["generation"]
                && counts.iter().all(|count| &status[count] == wanted)
        })
        .await;
}

/// A gateway with KEDA's variables, and a client of its TLS listener.
struct Keda {
    gateway: Gateway,
    root: String,
}

impl Keda {
    async fn start(space: &TestNamespace, leaf: &Leaf, variables: &[(&str, &str)]) -> Self {
        let (chain, key) = (space.files().join("tls.crt"), space.files().join("tls.key"));
        fs::write(&chain, &leaf.chain).unwrap();
        fs::write(&key, &leaf.key).unwrap();
        let mut launch = space
            .launch()
            .await
            .flag("--tls-listen", "127.0.0.1:0")
            .env("KEDA_HTTP_PROXY_TLS_ENABLED", "true")
            .env("KEDA_HTTP_PROXY_TLS_CERT_PATH", chain.display())
            .env("KEDA_HTTP_PROXY_TLS_KEY_PATH", key.display());
        for (name, value) in variables {
            launch = launch.env(name, value);
        }
        Self { gateway: launch.start(&programs()).await, root: leaf.chain.clone() }
    }

    /// GET over TLS.
    async fn get(&self, host: &str, alpn: Alpn) -> FullResponse {
        let find = |line: &str| line.split_once("listening on https://")?.1.parse().ok();
        let address: std::net::SocketAddr = self.gateway.output.find("the TLS address", find).await;
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let roots = Roots::Pem(vec![Pem::Bytes(self.root.as_bytes().into())]);
        let settings = ClientSettings { alpn: vec![alpn], ..ClientSettings::new(name, roots) };
        let (client, _) = ClientTls::new(settings).unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let (stream, agreed) = client.connect(stream, Instant::now() + Duration::from_mins(1)).await.unwrap();
        assert_eq!(agreed, Some(alpn));
        let mut http = match alpn {
            Alpn::Http1 => Http::one_over(stream, host).await,
            Alpn::H2 => Http::two_over(stream, "https", host).await,
        };
        http.get("/headers").await
    }
}

async fn with_kedas_variables_https_goes_on_as_https_under_the_short_name(space: TestNamespace) {
    let short = format!("shop.{}", space.name());
    let hosts = ["shop", "plain", "stranger"].map(|name| space.host(name));
    let [shop, plain, stranger] = &hosts;
    // KEDA's gateway and its pods may present the same self-signed certificate.
    let names: Vec<String> = hosts.iter().cloned().chain([short.clone()]).collect();
    let leaf = Leaf::self_signed(&names);
    space.apply(leaf_secret("shop", &leaf)).await;
    space.serve(&App::new("shop").tls("shop")).await;
    space.serve(&App::new("plain").replicas(1)).await;
    pod(&space, "stranger", &Authority::named("stranger").leaf(&[dns(&space, "stranger")])).await;
    service(&space, "stranger", "stranger", &[]).await;
    space.ready_pods("plain", 1).await;
    space.ready_pods("stranger", 1).await;
    let keda = Keda::start(&space, &leaf, &[]).await;
    for (alpn, cold) in [(Alpn::Http1, "true"), (Alpn::H2, "false")] {
        let answer = keda.get(shop, alpn).await;
        let seen = served("shop", &answer);
        assert_eq!(seen["sni"], short);
        assert_eq!(seen["headers"]["x-forwarded-proto"][0], "https");
        assert_eq!(
            (&seen["version"], &seen["uri"]),
            (&json!("HTTP/2.0"), &json!(format!("https://{shop}/headers")))
        );
        let said = (answer.header("x-rouse-cold-start"), answer.header("x-keda-http-cold-start"));
        assert_eq!(said, (cold, cold));
    }
    // A request over plain HTTP goes to the pod over plain HTTP, and one over TLS goes over TLS.
    let seen = served("plain", &ask(&space, &keda.gateway, "plain").await);
    assert_eq!(seen["sni"], Value::Null);
    refused("plain", &keda.get(plain, Alpn::Http1).await, "does not speak TLS");
    refused("stranger", &keda.get(stranger, Alpn::Http1).await, WRONG_CA);
    keda.gateway.stop().await;
}

async fn kedas_switch_turns_verification_off_with_a_warning(space: TestNamespace) {
    let host = space.host("stranger");
    pod(&space, "stranger", &Authority::named("stranger").leaf(&["elsewhere.test".to_owned()])).await;
    service(&space, "stranger", "stranger", &[]).await;
    space.ready_pods("stranger", 1).await;
    let leaf = Leaf::self_signed(std::slice::from_ref(&host));
    let off = "KEDA_HTTP_TLS_SKIP_VERIFY";
    for (value, verified) in [("false", true), ("true", false)] {
        let keda = Keda::start(&space, &leaf, &[(off, value)]).await;
        let answer = keda.get(&host, Alpn::Http1).await;
        let lines = keda.gateway.output.lines();
        let warned = lines.iter().any(|line| line.contains("WARN") && line.contains(off));
        assert_eq!(warned, !verified, "{off}={value}: {lines:#?}");
        if verified {
            refused("stranger", &answer, WRONG_CA);
        } else {
            assert_eq!(served("stranger", &answer)["sni"], format!("stranger.{}", space.name()));
        }
        keda.gateway.stop().await;
    }
}

async fn a_fallback_service_is_asked_for_by_its_own_name(space: TestNamespace) {
    let authority = authority(&space).await;
    pod(&space, "spare", &authority.leaf(&[dns(&space, "spare")])).await;
    secure(&space, "spare", "spare", &[CA]).await;
    secure(&space, "spare", "impostor", &[CA]).await;
    // The Service has no pods and no workload to wake.
    secure(&space, "nobody", "shop", &[CA]).await;
    for (route, fallback) in [("shop", "spare"), ("misled", "impostor")] {
        let to = json!({ "coldStart": { "fallback": { "service": { "name": fallback, "port": 80 } } } });
        space.apply(space.route(route).service("shop").readiness_timeout("1s").spec(&to).object()).await;
    }
    let [pod] = &space.ready_pods_of("spare", &["spare", "impostor"], 1).await[..] else { panic!("one pod") };
    let gateway = space.gateway().await;
    let seen = served("shop", &ask(&space, &gateway, "shop").await);
    assert_eq!(seen["sni"], dns(&space, "spare"));
    assert_eq!(seen["local"], format!("{}:8080", pod.ip));
    let words = format!("is not for {}", dns(&space, "impostor"));
    refused("misled", &ask(&space, &gateway, "misled").await, &words);
    gateway.stop().await;
}
