//! The Helm chart and a real API server, beside `deploy/`: the chart's default rendering is the plain manifests, its
//! values are `rouse install`'s flags, and an API server takes all of it and refuses bad routes.
//!
//! It has its own harness, because Helm and Kubernetes may be missing, and a trial that cannot run must report that.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    missing_docs,
    reason = "a test may panic, also in its helpers"
)]

mod cluster;
mod routes;
#[allow(dead_code, reason = "another test needs the rest")]
mod support;

use std::env;
use std::path::PathBuf;
use std::process::Command;

use libtest_mimic::{Arguments, Trial};
use rouse_net::peers::PeerHost;
use rouse_register::client::GatewayUrl;
use serde_json::{Value, json};
use support::{Answer, deployed, printed, root, run, sorted, text};

fn main() {
    let arguments = Arguments::from_args();
    let (helm, kubernetes) = (helm().is_some(), cluster::is_built());
    if !helm {
        eprintln!("SKIPPED: the chart is not rendered: there is no helm here (make helm builds it)");
    }
    if !kubernetes {
        eprintln!("SKIPPED: no API server is asked: there is none here (make cluster-build builds it)");
    }
    let trial = |name: &str, there: bool, check: fn()| {
        Trial::test(name, move || {
            check();
            Ok(())
        })
        .with_ignored_flag(!there)
    };
    let trials = vec![
        trial("helm_finds_no_fault_with_the_chart", helm, lint),
        trial("by_default_the_chart_is_the_plain_manifests", helm, default_rendering),
        trial("the_values_of_the_chart_do_what_the_flags_of_install_do", helm, values_and_flags),
        trial("the_chart_refuses_values_that_it_does_not_know_or_that_it_sets_itself", helm, refusals),
        trial("cert_manager_makes_the_certificate_that_sidecars_expect", helm, certificate),
        trial("files_of_the_operators_are_mounted_beside_the_certificate", helm, files),
        trial("what_is_optional_in_the_chart_is_what_is_in_the_folder", helm, optional),
        trial("the_chart_is_of_this_version", true, version),
        trial("rouse_reads_routes_as_their_definitions_do", true, routes::are_judged_alike),
        trial("an_api_server_takes_all_of_it_and_refuses_bad_routes", kubernetes, cluster::takes_all_of_it),
    ];
    libtest_mimic::run(&arguments, trials).exit();
}

/// The one in the path, or the one that `make helm` builds.
fn helm() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let tools = env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/rouse/tools/bin"));
    env::split_paths(&path).chain(tools).map(|folder| folder.join("helm")).find(|helm| helm.is_file())
}

fn helm_with(arguments: &[&str]) -> Answer {
    let home = tempfile::tempdir().unwrap();
    let mut helm = Command::new(helm().unwrap());
    helm.args(arguments).current_dir(root()).env("HELM_CACHE_HOME", home.path()).env_remove("KUBECONFIG");
    run(&mut helm)
}

fn asked(arguments: &[&str]) -> String {
    let answer = helm_with(arguments);
    assert_eq!(answer.code, 0, "{arguments:?}: {}", answer.err);
    answer.out
}

/// The objects that the chart renders for `namespace`.
fn rendered(namespace: &str, more: &[&str]) -> Vec<Value> {
    let mut arguments = vec!["template", "rouse", "deploy/helm/rouse", "--namespace", namespace];
    arguments.extend(["--kube-version", "1.36.0"]);
    arguments.extend(more);
    sorted(support::objects(&asked(&arguments)))
}

fn without_namespace(objects: Vec<Value>) -> Vec<Value> {
    sorted(objects.into_iter().filter(|object| text(object, "/kind") != "Namespace").collect())
}

fn lint() {
    asked(&["lint", "--strict", "--kube-version", "1.36.0", "deploy/helm/rouse"]);
}

fn default_rendering() {
    let plain = [deployed("manifests"), deployed("crds")].concat();
    assert_eq!(rendered("rouse-system", &["--include-crds"]), without_namespace(plain));
}

fn values_and_flags() {
    let cases: [(&[&str], &str); 17] = [
        (&["--set", "watchNamespace=shop,replicas=3"], "--watch-namespace shop --replicas 3"),
        (
            &["--set", "kedaCompat=true,ipFamily=IPv6,tls.secretName=w"],
            "--keda-compat --ip-family ipv6 --tls-secret w",
        ),
        (
            &[
                "--set",
                "kedaCompat=true,ipFamily=ipv4,tls.secretName=w",
                "--set-json",
                r#"env=[{"name":"ROUSE_UPSTREAM_TLS","value":"off"}]"#,
            ],
            "--keda-compat --tls-secret w --env ROUSE_UPSTREAM_TLS=off",
        ),
        (
            &["--set-json", r#"env=[{"name":"ROUSE_MAX_CONNECTIONS","value":"7"}]"#],
            "--env ROUSE_MAX_CONNECTIONS=7",
        ),
        (
            &["--set", "configMapNamespaces={a},secretNamespaces={a,b}"],
            "--configmaps-of a --secrets-of a --secrets-of b",
        ),
        (
            &[
                "--set",
                "image.repository=r.example.com/rouse,image.tag=v9,terminationGracePeriodSeconds=75",
                "--set-json",
                r#"env=[{"name":"ROUSE_DRAIN_TIMEOUT","value":"1m"}]"#,
            ],
            "--image r.example.com/rouse:v9 --env ROUSE_DRAIN_TIMEOUT=1m",
        ),
        (&["--set", "push.enabled=true,push.secretName=r,push.mode=on"], "--register-secret r --push on"),
        (
            &[
                "--set",
                "push.enabled=true,push.secretName=r,push.mode=observe,push.tokenCheck=tokenreview,tls.secretName=w,ipFamily=IPv6",
            ],
            "--register-secret r --push observe --register-token-check tokenreview --tls-secret w --ip-family ipv6",
        ),
        (
            &["--set", "controller.enabled=false,watchNamespace=shop"],
            "--no-controller --watch-namespace shop",
        ),
        (
            &["--set", "controller.secretName=c,push.enabled=true,push.secretName=r"],
            "--controller-secret c --register-secret r",
        ),
        (
            &[
                "--set",
                "controller.secretName=c,controller.autoscaleDefault=on,watchNamespace=edge,ipFamily=IPv6,image.tag=v9",
            ],
            "--controller-secret c --autoscale-default on --watch-namespace edge --ip-family ipv6 --image localhost/rouse:v9",
        ),
        (&["--set", "controller.endpointSlices=true"], "--endpointslices"),
        (&["--set", "xds.enabled=true,xds.secretName=x"], "--xds --xds-secret x"),
        (
            &["--set", "xds.enabled=true,xds.secretName=x,kedaCompat=true,tls.secretName=w"],
            "--xds --xds-secret x --keda-compat --tls-secret w",
        ),
        (
            &[
                "--set",
                "xds.enabled=true,xds.secretName=x,controller.secretName=c,watchNamespace=shop,ipFamily=IPv6,configMapNamespaces={a}",
            ],
            "--xds --xds-secret x --controller-secret c --watch-namespace shop --ip-family ipv6 --configmaps-of a",
        ),
        (
            &[
                "--set",
                "xds.enabled=true,xds.secretName=x,controller.enabled=false",
                "--set-json",
                r#"env=[{"name":"ROUSE_HOST_OVERLAP","value":"allow"},{"name":"ROUSE_WORKERS","value":"3"}]"#,
            ],
            "--xds --xds-secret x --no-controller --env ROUSE_HOST_OVERLAP=allow --env ROUSE_WORKERS=3",
        ),
        (
            &["--set", "controller.endpointSlices=true,watchNamespace=shop"],
            "--endpointslices --watch-namespace shop",
        ),
    ];
    for (values, flags) in cases {
        let expected = without_namespace(printed(&format!("--namespace edge --no-crds {flags}")));
        assert_eq!(rendered("edge", values), expected, "{flags}");
    }
}

/// The values that the chart refuses, and the reasons.
fn refusals() {
    let cases = [
        (r#"env=[{"name":"ROUSE_LISTEN","value":"0.0.0.0:80"}]"#, "env has ROUSE_LISTEN"),
        (r#"env=[{"name":"ROUSE_ADMIN","value":"127.0.0.1:9090"}]"#, "env has ROUSE_ADMIN"),
        (r#"env=[{"name":"ROUSE_WATCH_NAMESPACE","value":"shop"}]"#, "use watchNamespace"),
        (r#"env=[{"name":"ROUSE_TLS_LISTEN","value":"0.0.0.0:8443"}]"#, "use tls.secretName"),
        (r#"env=[{"name":"POD_IP","value":"10.0.0.1"}]"#, "env has POD_IP"),
        (r#"env=[{"name":"KEDA_HTTP_PROXY_PORT","value":"8000"}]"#, "env has KEDA_HTTP_PROXY_PORT"),
        (r#"env=[{"name":"KEDA_HTTP_ADMIN_PORT","value":"9091"}]"#, "env has KEDA_HTTP_ADMIN_PORT"),
        (r#"env=[{"name":"KEDA_HTTP_ADMIN_PORT","valueFrom":{}}]"#, "env has KEDA_HTTP_ADMIN_PORT"),
        (r#"env=[{"name":"KEDA_HTTP_WATCH_NAMESPACE","value":"shop"}]"#, "use watchNamespace"),
        (r#"env=[{"name":"KEDA_HTTP_PROXY_TLS_ENABLED","value":"true"}]"#, "use tls.secretName"),
        (
            r#"tls={"secretName":"w"},env=[{"name":"KEDA_HTTP_PROXY_TLS_PORT","value":"444"}]"#,
            "env has KEDA_HTTP_PROXY_TLS_PORT",
        ),
        ("enabled=1", "/enabled"),
        (r#"env=[{"name":"ROUSE_WORKERS","value":3}]"#, "/env/0/value"),
        (r#"env=[{"nam":"ROUSE_WORKERS"}]"#, "/env/0"),
        ("replica=3", "replica"),
        ("replicas=0", "/replicas"),
        (r#"image={"name":"rouse"}"#, "/image"),
        (r#"image={"tag":9}"#, "/image/tag"),
        (r#"tls={"secret":"w"}"#, "/tls"),
        (r#"service={"type":"External"}"#, "/service/type"),
        (r#"podDisruptionBudget={"enable":true}"#, "/podDisruptionBudget"),
        (r#"autoscaling={"min":2}"#, "/autoscaling"),
        (r#"networkPolicy={"from":[]}"#, "/networkPolicy"),
        (r#"serviceMonitor={"every":"1s"}"#, "/serviceMonitor"),
        (r#"alerts={"on":true}"#, "/alerts"),
        (r#"ipFamily="dual""#, "/ipFamily"),
        (r#"push={"enabled":true}"#, "push.enabled needs push.secretName"),
        (r#"push={"mode":true}"#, "/push/mode"),
        (r#"push={"tokenCheck":"none"}"#, "/push/tokenCheck"),
        (r#"push={"certManager":{"issuer":"x"}}"#, "/push/certManager"),
        (r#"env=[{"name":"ROUSE_REGISTER_LISTEN","value":"0.0.0.0:9443"}]"#, "use push.enabled"),
        (r#"env=[{"name":"ROUSE_REGISTER_TOKEN_CHECK","value":"tokenreview"}]"#, "use push.tokenCheck"),
        (r#"watchNamespace="Shop""#, "/watchNamespace"),
        (r#"env=[{"name":"ROUSE_REPORT_TO","value":"https://c:9444"}]"#, "use controller.secretName"),
        (r#"controller={"autoscaleDefault":true}"#, "/controller/autoscaleDefault"),
        (r#"controller={"replicas":0}"#, "/controller/replicas"),
        (r#"controller={"secret":"c"}"#, "/controller"),
        (r#"xds={"enabled":true}"#, "xds.enabled needs xds.secretName"),
        (r#"xds={"replicas":0}"#, "/xds/replicas"),
        (r#"xds={"listen":1}"#, "/xds"),
    ];
    for (values, expected) in cases {
        let answer = helm_with(&[
            "template",
            "rouse",
            "deploy/helm/rouse",
            "--kube-version",
            "1.36.0",
            "--set-json",
            values,
        ]);
        assert!(answer.code != 0 && answer.err.contains(expected), "{values}: {}{}", answer.out, answer.err);
    }
    // Values that agree with the chart are accepted.
    for values in [
        r#"env=[{"name":"KEDA_HTTP_PROXY_PORT","value":"8080"},{"name":"KEDA_HTTP_ADMIN_PORT","value":"9090"}]"#,
        r#"env=[{"name":"KEDA_HTTP_PROXY_TLS_ENABLED","value":"false"},{"name":"KEDA_HTTP_PROXY_TLS_PORT","value":"1"}]"#,
        r#"env=[{"name":"KEDA_HTTP_WATCH_NAMESPACE","value":""},{"name":"KEDA_HTTP_ADMIN_PORT","value":""}]"#,
    ] {
        rendered("edge", &["--set-json", values]);
    }
    let secure = r#"env=[{"name":"KEDA_HTTP_PROXY_TLS_ENABLED","value":"true"},{"name":"KEDA_HTTP_PROXY_TLS_PORT","value":"8443"}]"#;
    rendered("edge", &["--set", "tls.secretName=w", "--set-json", secure]);
    let watched = r#"env=[{"name":"KEDA_HTTP_WATCH_NAMESPACE","value":"shop"}]"#;
    rendered("edge", &["--set", "watchNamespace=shop", "--set-json", watched]);
    // As a subchart it gets the global values, and the value that enables it.
    rendered("edge", &["--set-json", r#"global={"region":"x"}"#, "--set", "enabled=true"]);
}

fn certificate() {
    let values = ["--set", "push.enabled=true,push.certManager.issuerRef.name=ca"];
    let mut all = rendered("edge", &values);
    let at = all.iter().position(|object| text(object, "/kind") == "Certificate").unwrap();
    let certificate = all.remove(at);
    let expected =
        without_namespace(printed("--namespace edge --no-crds --register-secret rouse-register-tls"));
    assert_eq!(all, expected, "the certificate is in the Secret that the gateway mounts");
    assert_eq!(text(&certificate, "/spec/secretName"), "rouse-register-tls");
    assert_eq!(text(&certificate, "/metadata/namespace"), "edge");
    let authority = json!({"name": "ca", "kind": "Issuer", "group": "cert-manager.io"});
    assert_eq!(certificate.pointer("/spec/issuerRef"), Some(&authority));
    let url = GatewayUrl::of_namespace("edge").unwrap();
    let name = PeerHost::Name(text(&certificate, "/spec/dnsNames/0").to_owned());
    assert_eq!(url.host(), &name, "what sidecars verify");
    let values = ["--set", "controller.certManager.issuerRef.name=ca"];
    let mut all = rendered("edge", &values);
    let at = all.iter().position(|object| text(object, "/kind") == "Certificate").unwrap();
    let certificate = all.remove(at);
    let expected =
        without_namespace(printed("--namespace edge --no-crds --controller-secret rouse-controller-tls"));
    assert_eq!(all, expected, "the certificate is in the Secret that the controller mounts");
    assert_eq!(text(&certificate, "/spec/secretName"), "rouse-controller-tls");
    assert_eq!(text(&certificate, "/spec/dnsNames/0"), "rouse-controller.edge.svc.cluster.local");
    let values = ["--set", "xds.enabled=true,xds.certManager.issuerRef.name=ca"];
    let mut all = rendered("edge", &values);
    let at = all.iter().position(|object| text(object, "/kind") == "Certificate").unwrap();
    let certificate = all.remove(at);
    let expected = without_namespace(printed("--namespace edge --no-crds --xds --xds-secret rouse-xds-tls"));
    assert_eq!(all, expected, "the certificate is in the Secret that rouse xds mounts");
    assert_eq!(text(&certificate, "/spec/secretName"), "rouse-xds-tls");
    assert_eq!(text(&certificate, "/spec/dnsNames/0"), "rouse-xds.edge.svc.cluster.local");
    let values = ["--set", "push.enabled=true,push.certManager.issuerRef.name=ca"];
    let named = rendered("edge", &[&values[..], &["--set", "push.secretName=mine"]].concat());
    assert_eq!(text(support::one(&named, "Certificate"), "/spec/secretName"), "mine");
}

fn files() {
    let values = r#"volumes=[{"name":"ca","configMap":{"name":"pods-ca"}}]"#;
    let mounts = r#"volumeMounts=[{"name":"ca","mountPath":"/ca","readOnly":true}]"#;
    let volume = json!({"name": "ca", "configMap": {"name": "pods-ca"}});
    let mount = json!({"name": "ca", "mountPath": "/ca", "readOnly": true});
    let certs = (
        json!({"name": "certs", "secret": {"secretName": "w"}}),
        json!({"name": "certs", "mountPath": "/certs", "readOnly": true}),
    );
    for (more, volumes, mounted) in [
        ("replicas=2", json!([volume]), json!([mount])),
        ("tls.secretName=w", json!([certs.0, volume]), json!([certs.1, mount])),
    ] {
        let all = rendered("edge", &["--set-json", values, "--set-json", mounts, "--set", more]);
        let pod = support::gateway(&all, "Deployment").pointer("/spec/template/spec").unwrap();
        assert_eq!(pod.get("volumes"), Some(&volumes));
        assert_eq!(pod.pointer("/containers/0/volumeMounts"), Some(&mounted));
    }
    // Several certificates: in folders beside that of the Secret.
    let dirs = r#"env=[{"name":"ROUSE_TLS_CERT_DIR","value":"/certs,/more"}]"#;
    let all = rendered("edge", &["--set", "tls.secretName=w", "--set-json", dirs]);
    let env = support::gateway(&all, "Deployment").pointer("/spec/template/spec/containers/0/env").unwrap();
    let dirs: Vec<&Value> =
        env.as_array().unwrap().iter().filter(|it| text(it, "/name") == "ROUSE_TLS_CERT_DIR").collect();
    assert_eq!(dirs, [&json!({"name": "ROUSE_TLS_CERT_DIR", "value": "/certs,/more"})]);
}

fn optional() {
    let on = "autoscaling.enabled=true,networkPolicy.enabled=true,serviceMonitor.enabled=true,alerts.enabled=true,\
              xds.enabled=true,xds.secretName=rouse-xds-tls";
    let all = rendered("rouse-system", &["--set", on]);
    for file in deployed("optional").into_iter().chain(deployed("xds")) {
        let kind = text(&file, "/kind");
        if !kind.starts_with("Role") {
            let same = all.iter().filter(|object| support::key(object) == support::key(&file));
            let specs: Vec<_> = same.map(|object| object.get("spec")).collect();
            assert_eq!(specs, [file.get("spec")], "{}", support::key(&file));
        }
    }
    let policy = std::fs::read_to_string(root().join("deploy/optional/networkpolicy.yaml")).unwrap();
    for (port, flag, values) in [
        ("https", "--tls-secret", "tls.secretName=w"),
        ("register", "--register-secret", "push.enabled=true,push.secretName=r"),
    ] {
        let marked = format!("# - port: {port}\n");
        assert!(policy.contains(&marked) && policy.contains(flag), "{policy}");
        let opened = &support::objects(&policy.replace(&marked, &format!("- port: {port}\n")))[0];
        let open = rendered("rouse-system", &["--set", &format!("networkPolicy.enabled=true,{values}")]);
        assert_eq!(
            support::gateway(&open, "NetworkPolicy").get("spec"),
            opened.get("spec"),
            "with the mark off"
        );
    }
    let replicas = support::gateway(&all, "Deployment").pointer("/spec/replicas");
    assert_eq!(replicas, None, "the autoscaler would be set back with every upgrade");
    let off = rendered("rouse-system", &["--set", "podDisruptionBudget.enabled=false"]);
    assert!(off.iter().all(|object| text(object, "/kind") != "PodDisruptionBudget"));
}

fn version() {
    let chart = std::fs::read_to_string(root().join("deploy/helm/rouse/Chart.yaml")).unwrap();
    let chart = &support::objects(&chart)[0];
    for field in ["/version", "/appVersion"] {
        assert_eq!(text(chart, field), env!("CARGO_PKG_VERSION"), "{field}");
    }
    // `rouse check` has the same number.
    assert_eq!(text(chart, "/kubeVersion"), ">=1.29.0-0");
    let readme = std::fs::read_to_string(root().join("deploy/README.md")).unwrap();
    assert!(readme.contains("Kubernetes 1.29 or later"), "{readme}");
}
