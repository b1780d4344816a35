//! `rouse check` against a fake API server: its requests, its output and its exit code.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "tests")]

mod objects;
mod push;
mod scaling;

use std::collections::BTreeSet;
use std::io::empty;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;

use anstream::StripStream;
use clap::Parser as _;
use objects::{forbid, good_cluster, pod, route, service, slice};
use rouse_cli::args::Rouse;
use rouse_cli::{CommandError, Streams};
use rouse_kube::client::permissions::{PERMISSIONS, Scope};
use rouse_testkit::api_server::ApiServer;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::spawn_blocking;

const ROUTES: &str = "/apis/http.keda.sh/v1beta1/interceptorroutes";

/// The exit code and the output.
struct Said {
    result: Result<(), CommandError>,
    out: String,
    err: String,
}

impl Said {
    /// Asserts that no check fails, and returns the marks of warnings.
    fn passed(&self) -> Vec<&str> {
        assert!(self.result.is_ok(), "{:?}\n{}", self.result, self.out);
        self.lines_with('‼')
    }

    fn failed(&self) -> Vec<&str> {
        assert!(matches!(self.result, Err(CommandError::Failed(_))), "{:?}\n{}", self.result, self.out);
        let mut all = self.lines_with('✖');
        // The last line is the sum.
        all.pop();
        all
    }

    fn lines_with(&self, mark: char) -> Vec<&str> {
        self.out.lines().filter_map(|line| line.strip_prefix(mark)).map(str::trim).collect()
    }
}

fn kubeconfig(folder: &TempDir, address: SocketAddr) -> String {
    let path = folder.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
         clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}]\n\
         users: [{{name: u, user: {{}}}}]\n\
         contexts: [{{name: a, context: {{cluster: c, user: u}}}}]\n"
    );
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

async fn run(arguments: Vec<String>) -> Said {
    let run = move || {
        let rouse = Rouse::try_parse_from(arguments).unwrap();
        let (mut out, mut err) = (StripStream::new(Vec::new()), StripStream::new(Vec::new()));
        let result =
            rouse_cli::run(&rouse, &mut Streams { stdin: &mut empty(), out: &mut out, err: &mut err });
        let text = |stream: StripStream<Vec<u8>>| String::from_utf8(stream.into_inner()).unwrap();
        Said { result, out: text(out), err: text(err) }
    };
    spawn_blocking(run).await.unwrap()
}

/// `rouse check` with these arguments against `api`.
async fn check(api: &ApiServer, arguments: &[&str]) -> Said {
    let (address, _server) = api.serve().await;
    let folder = TempDir::new().unwrap();
    let kubeconfig = kubeconfig(&folder, address);
    let mut all = ["rouse", "check", "--kubeconfig", &kubeconfig].map(str::to_owned).to_vec();
    all.extend(arguments.iter().map(ToString::to_string));
    run(all).await
}

/// An address without a listener.
fn nowhere() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_where_everything_is_as_it_should_be_passes() {
    let said = check(&good_cluster(), &[]).await;
    assert_eq!(said.passed(), Vec::<&str>::new(), "{}", said.out);
    for part in ["Permissions of system:serviceaccount:rouse-system:rouse-gateway", "its pods are ready (3)"]
    {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
    assert!(said.out.contains("Service rouse-gateway has ready endpoints (1)"), "{}", said.out);
    assert!(!said.out.contains("other-gateway"), "{}", said.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_permissions_of_the_gateways_own_account_are_asked_for_each_once() {
    let api = good_cluster();
    check(&api, &[]).await.passed();
    let reviews = api.reviews();
    for asked in &reviews {
        assert_eq!(asked.path, "/apis/authorization.k8s.io/v1/subjectaccessreviews");
        assert_eq!(asked.user.as_deref(), Some("system:serviceaccount:rouse-system:rouse-gateway"));
        assert_eq!(asked.attributes.get("namespace"), None, "{asked:?}");
    }
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    let asked: BTreeSet<_> = reviews
        .iter()
        .map(|asked| {
            ["group", "resource", "subresource", "verb"].map(|field| text(&asked.attributes, field)).to_vec()
        })
        .collect();
    let expected: BTreeSet<Vec<String>> = PERMISSIONS
        .iter()
        .filter(|permission| permission.scope == Scope::Watched)
        .flat_map(|permission| permission.verbs.iter().map(move |verb| (permission, verb)))
        .map(|(permission, verb)| {
            let (resource, sub) = permission.parts();
            [permission.group, resource, sub.unwrap_or_default(), verb].map(str::to_owned).to_vec()
        })
        .collect();
    assert_eq!(asked, expected);
    assert_eq!(reviews.len(), expected.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permission_that_was_taken_away_fails_with_the_rule_that_grants_it() {
    let api = good_cluster();
    api.deny("patch deployments/scale");
    api.deny("create events");
    let said = check(&api, &[]).await;
    assert_eq!(said.failed(), ["get, patch deployments/scale.apps in all namespaces"]);
    assert_eq!(said.lines_with('‼'), ["create events in all namespaces"]);
    let rule = r#"{apiGroups: ["apps"], resources: ["deployments/scale"], verbs: [patch]}"#;
    let install = "rouse install --image registry.example.com/rouse:9 --no-crds | kubectl --kubeconfig";
    for part in ["may not patch.", rule, install, "apply --server-side -f -", "does not show wakes"] {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_gateway_we_ask_for_ourselves_and_for_an_account_if_it_is_named() {
    let api = good_cluster();
    api.remove_at("/apis/apps/v1/namespaces/rouse-system");
    let said = check(&api, &[]).await;
    assert_eq!(said.passed(), ["it is installed"]);
    assert!(said.out.contains("→ rouse install --no-crds | kubectl"), "{}", said.out);
    let reviews = api.reviews();
    let own = |path: &str| path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    assert!(!reviews.is_empty() && reviews.iter().all(|asked| own(&asked.path) && asked.user.is_none()));
    let api = good_cluster();
    check(&api, &["--service-account", "other/account"]).await.passed();
    let user = Some("system:serviceaccount:other:account");
    assert!(!api.reviews().is_empty() && api.reviews().iter().all(|asked| asked.user.as_deref() == user));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_of_one_namespace_is_asked_for_there() {
    let api = good_cluster();
    let in_shop = "/apis/http.keda.sh/v1beta1/namespaces/shop/interceptorroutes";
    api.list_at(in_shop, vec![route("shop", "cart", "cart.example.com")]);
    api.remove_at(ROUTES);
    let said = check(&api, &["--namespace", "shop"]).await;
    assert_eq!(said.passed(), Vec::<&str>::new());
    assert!(said.out.contains("in shop") && said.out.contains("the only route"), "{}", said.out);
    for asked in api.reviews() {
        assert_eq!(asked.path, "/apis/authorization.k8s.io/v1/namespaces/shop/localsubjectaccessreviews");
        assert_eq!(asked.attributes["namespace"], "shop", "{asked:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_routes_and_their_services_name_are_asked_for_by_name() {
    let api = good_cluster();
    let mut with_body = route("shop", "cart", "cart.example.com");
    with_body["spec"]["coldStart"] =
        json!({"placeholder": {"response": {"bodyFromConfigMap": {"name": "page"}}}});
    api.list_at(ROUTES, vec![with_body]);
    let tls = |secret: &str| json!({"rouse.dev/upstream-tls": "true", "rouse.dev/upstream-ca": format!("secret/{secret}")});
    // A Service without a route is not checked.
    api.list_at(
        "/api/v1/services",
        vec![service("cart", &tls("cart-ca")), service("other", &tls("other-ca"))],
    );
    api.deny("watch secrets");
    let said = check(&api, &[]).await;
    assert_eq!(said.passed(), ["list, watch secrets cart-ca in shop"]);
    assert!(said.out.contains("create role rouse-secrets-cart-ca --verb=watch"), "{}", said.out);
    let named: BTreeSet<_> = api
        .reviews()
        .iter()
        .filter(|asked| asked.attributes.get("name").is_some())
        .map(|asked| {
            ["resource", "namespace", "name"]
                .map(|field| asked.attributes[field].as_str().unwrap().to_owned())
        })
        .collect();
    let expected = [["configmaps", "shop", "page"], ["secrets", "shop", "cart-ca"]];
    assert_eq!(named, expected.map(|all| all.map(str::to_owned)).into());
}

#[tokio::test(flavor = "multi_thread")]
async fn kinds_are_looked_for_in_every_version() {
    let api = good_cluster();
    api.remove_at("/apis/http.keda.sh");
    let said = check(&api, &[]).await;
    assert_eq!(said.failed(), ["InterceptorRoute http.keda.sh/v1beta1"]);
    assert!(
        said.out.contains("the cluster does not have it") && said.out.contains("no routes yet"),
        "{}",
        said.out
    );
    api.group("http.keda.sh", "v1alpha1", &["interceptorroutes", "httpscaledobjects"]);
    let said = check(&api, &[]).await;
    assert_eq!(said.failed(), ["InterceptorRoute http.keda.sh/v1beta1"]);
    assert!(said.out.contains("the cluster has it as v1alpha1"), "{}", said.out);
    assert_eq!(said.lines_with('‼'), ["HTTPScaledObject http.keda.sh/v1alpha1"], "it has no status");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_does_not_come_up_is_told_with_what_its_pods_say() {
    let api = good_cluster();
    let deployment = "/apis/apps/v1/namespaces/rouse-system/deployments/rouse-gateway";
    api.object_at(
        deployment,
        json!({"metadata": {"name": "rouse-gateway"},
               "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "gateway"}},
                        "template": {"metadata": {"labels": {"app": "gateway"}}, "spec": {"containers": []}}},
               "status": {"conditions": [{"type": "Progressing", "status": "False", "message": "timed out progressing"}]}}),
    );
    let mut crashing = pod("rouse-gateway-0", "False");
    crashing["status"]["containerStatuses"] = json!([{"name": "gateway", "image": "", "imageID": "", "ready": false, "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}}]);
    let mut leaving = pod("rouse-gateway-old", "False");
    leaving["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
    api.list_at("/api/v1/namespaces/rouse-system/pods", vec![crashing, leaving]);
    let slices = "/apis/discovery.k8s.io/v1/namespaces/rouse-system/endpointslices";
    api.list_at(slices, vec![slice("rouse-gateway", false)]);
    let said = check(&api, &[]).await;
    let failed = said.failed();
    assert_eq!(failed.len(), 3, "{failed:?}");
    for part in ["timed out progressing", "CrashLoopBackOff: back-off 40s", "has ready endpoints (0)"] {
        assert!(said.out.contains(part), "{part}: {}", said.out);
    }
    assert!(!said.out.contains("rouse-gateway-old"), "{}", said.out);
    assert!(said.out.contains("system:serviceaccount:rouse-system:default"), "{}", said.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn routes_of_all_pages_are_looked_at_and_their_troubles_are_warnings() {
    let api = good_cluster();
    let mut routes: Vec<Value> =
        (0..5).map(|n| route("shop", &format!("r{n}"), &format!("h{n}.example.com"))).collect();
    routes[4]["status"] = json!({"conditions": [{"type": "Ready", "status": "False", "reason": "NoService", "message": "there is no Service shop/cart"}]});
    routes.push(route("thieves", "r", "h0.example.com"));
    api.list_at(ROUTES, routes);
    let said = check(&api, &[]).await;
    assert_eq!(said.passed(), ["InterceptorRoute shop/r4 serves", "h0.example.com is claimed once"]);
    assert!(said.out.contains("there is no Service shop/cart"), "{}", said.out);
    assert!(said.out.contains("shop/r0 has it") && said.out.contains("thieves/r does not"), "{}", said.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_user_may_not_see_is_a_warning_and_no_failure() {
    let api = good_cluster();
    forbid(&api, "/apis/authorization.k8s.io/v1/subjectaccessreviews");
    forbid(&api, ROUTES);
    let said = check(&api, &[]).await;
    assert_eq!(said.passed(), ["the permissions of the gateway can be checked", "routes can be seen"]);
    assert!(said.out.contains("create subjectaccessreviews"), "{}", said.out);
    // Also for a user without access to the gateway: the user's own permissions do not show those of the gateway.
    forbid(&api, "/apis/apps/v1/namespaces/rouse-system");
    let said = check(&api, &[]).await;
    let unseen =
        ["the permissions of the gateway can be checked", "Deployment rouse-gateway", "routes can be seen"];
    assert_eq!(said.passed(), unseen);
    assert!(api.reviews().is_empty(), "{}", said.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_wait_it_checks_again_until_nothing_fails() {
    let api = good_cluster();
    api.deny("patch deployments/scale");
    let first: usize = PERMISSIONS
        .iter()
        .filter(|permission| permission.scope == Scope::Watched)
        .map(|permission| permission.verbs.len())
        .sum();
    api.allow_after(first);
    let said = check(&api, &["--wait", "10m"]).await;
    assert_eq!(said.passed(), Vec::<&str>::new(), "{}", said.out);
    assert!(said.err.contains("1 of the checks fail; checking again for up to 10m"), "{}", said.err);
    assert_eq!(api.reviews().len(), 2 * first);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_does_not_answer_is_one_failure_and_the_rest_is_not_checked() {
    let folder = TempDir::new().unwrap();
    let kubeconfig = kubeconfig(&folder, nowhere());
    let all = ["rouse", "check", "--kubeconfig", &kubeconfig, "-o", "json"];
    let said = run(all.map(str::to_owned).to_vec()).await;
    assert!(matches!(said.result, Err(CommandError::Failed(_))), "{:?}", said.result);
    let report: Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(report["passed"], false);
    let results: Vec<&str> = report["sections"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|section| section["checks"].as_array().unwrap())
        .map(|check| check["result"].as_str().unwrap())
        .collect();
    assert_eq!(results, ["failure", "not-checked", "not-checked", "not-checked", "not-checked"]);
}

#[test]
fn the_exit_code_says_whether_something_fails_and_a_pipe_gets_no_colours() {
    let folder = TempDir::new().unwrap();
    let kubeconfig = kubeconfig(&folder, nowhere());
    let rouse = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_rouse")).arg("check").args(arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, out, err) = rouse(&["--kubeconfig", &kubeconfig]);
    assert_eq!(code, Some(1), "{out} {err}");
    assert!(out.contains("✖ the API server answers") && !out.contains('\u{1b}'), "{out:?}");
    assert!(err.contains("1 of the checks failed"), "{err}");
    let bad: [&[&str]; 5] = [
        &["--kubeconfig", "/nowhere/at-all"],
        &["--kubeconfig", &kubeconfig, "--context", "staging"],
        &["--service-account", "rouse-gateway"],
        &["--namespace", "a/b"],
        &["-o", "yaml"],
    ];
    for arguments in bad {
        let (code, out, err) = rouse(arguments);
        assert_eq!((code, &*out), (Some(2), ""), "{arguments:?}: {err}");
        assert!(!err.is_empty());
    }
}

#[test]
fn a_kubeconfig_that_is_not_there_or_unreadable_is_said_in_a_sentence_with_the_next_step() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (nowhere, garbage) = (path("nowhere"), path("garbage"));
    std::fs::write(&garbage, "users: {token: secret").unwrap();
    let missing = format!("the kubeconfig {nowhere} does not exist\n");
    let unreadable = format!("the kubeconfig {} cannot be read: ", folder.path().display());
    let invalid = format!("the kubeconfig {garbage} is not valid: ");
    let none =
        "there is no kubeconfig: KUBECONFIG is not set, and ~/.kube/config does not exist\n".to_owned();
    let folder_itself = folder.path().display().to_string();
    for (flag, variable, expected) in [
        (None, None, &none),
        (None, Some(&nowhere), &missing),
        (Some(&nowhere), None, &missing),
        (Some(&folder_itself), None, &unreadable),
        (None, Some(&garbage), &invalid),
    ] {
        let commands: [&[&str]; 2] =
            [&["check"], &["gateway", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]];
        for command in commands {
            let mut rouse = Command::new(env!("CARGO_BIN_EXE_rouse"));
            rouse.args(command).env("HOME", folder.path());
            rouse.env_remove("KUBECONFIG").env_remove("KUBERNETES_SERVICE_HOST");
            rouse.args(flag.iter().flat_map(|path| ["--kubeconfig", path]));
            rouse.envs(variable.map(|path| ("KUBECONFIG", path)));
            let output = rouse.output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!((output.status.code(), &*output.stdout), (Some(2), &b""[..]), "{command:?}: {said}");
            let said = said.strip_prefix("error: ").unwrap_or(&said);
            assert!(said.starts_with(expected), "{command:?}: {said}");
            let (_, next) = said.trim_end().split_once('\n').unwrap_or_else(|| panic!("{command:?}: {said}"));
            assert!(next.ends_with("with --kubeconfig FILE, or in KUBECONFIG"), "{next}");
            assert_eq!(next.lines().count(), 1, "nothing of the file is shown: {next}");
        }
    }
}
