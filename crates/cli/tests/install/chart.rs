//! The Helm chart and a real API server, beside `deploy/`: the chart's default rendering is the plain manifests, its
//! values are `rouse install`'s flags, and an API server takes all of it and refuses bad routes.
//!
//! A harness of its own, because Helm and Kubernetes may be missing, and a trial that cannot run must say so.

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
use serde_json::Value;
use support::{deployed, printed, root, run, sorted, text};

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

fn asked(arguments: &[&str]) -> String {
    let home = tempfile::tempdir().unwrap();
    let mut helm = Command::new(helm().unwrap());
    helm.args(arguments).current_dir(root()).env("HELM_CACHE_HOME", home.path()).env_remove("KUBECONFIG");
    let answer = run(&mut helm);
    assert_eq!(answer.code, 0, "{arguments:?}: {}", answer.err);
    answer.out
}

/// What the chart makes in `namespace`.
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
    let cases: [(&[&str], &str); 4] = [
        (&["--set", "watchNamespace=shop,replicas=3"], "--watch-namespace shop --replicas 3"),
        (
            &["--set", "kedaCompat=true,ipFamily=IPv6,tls.secretName=w"],
            "--keda-compat --ip-family ipv6 --tls-secret w",
        ),
        (
            &["--set", "configMapNamespaces={a},secretNamespaces={a,b}"],
            "--configmaps-of a --secrets-of a --secrets-of b",
        ),
        (
            &[
                "--set",
                "image.repository=r.example.com/rouse,image.tag=9,terminationGracePeriodSeconds=75",
                "--set-json",
                r#"env=[{"name":"ROUSE_DRAIN_TIMEOUT","value":"1m"}]"#,
            ],
            "--image r.example.com/rouse:9 --env ROUSE_DRAIN_TIMEOUT=1m",
        ),
    ];
    for (values, flags) in cases {
        let expected = without_namespace(printed(&format!("--namespace edge --no-crds {flags}")));
        assert_eq!(rendered("edge", values), expected, "{flags}");
    }
}

fn optional() {
    let on = "autoscaling.enabled=true,networkPolicy.enabled=true,serviceMonitor.enabled=true";
    let all = rendered("rouse-system", &["--set", on]);
    for file in deployed("optional") {
        let kind = text(&file, "/kind");
        if !kind.starts_with("Role") {
            assert_eq!(support::one(&all, kind).get("spec"), file.get("spec"), "{kind}");
        }
    }
    let replicas = support::one(&all, "Deployment").pointer("/spec/replicas");
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
}
