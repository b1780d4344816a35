//! A real API server: etcd, kube-apiserver and its controllers, without a node (e2e/cluster).

use std::env;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rouse_kube::client::permissions::{PermissionRole, Scope};
use serde_json::json;
use tempfile::TempDir;

use crate::routes;
use crate::support::{Answer, install, root, run};

/// Whether `e2e/cluster/build` has built the programs.
pub(crate) fn is_built() -> bool {
    let program = |folder: &Path| folder.join("bin/kube-apiserver").is_file();
    if let Some(folder) = env::var_os("ROUSE_KUBERNETES") {
        return program(Path::new(&folder));
    }
    let Some(home) = env::var_os("HOME") else { return false };
    let versions = fs::read_dir(PathBuf::from(home).join(".cache/rouse/kubernetes"));
    versions.into_iter().flatten().flatten().any(|version| program(&version.path()))
}

/// A control plane that is stopped when this is dropped; this process is its owner, so it cannot outlive it.
struct Cluster {
    folder: TempDir,
}

impl Cluster {
    fn up() -> Self {
        let cluster = Self { folder: tempfile::Builder::new().prefix("rouse-cp").tempdir().unwrap() };
        let answer = cluster.script("up", &["cp"]);
        assert_eq!(answer.code, 0, "{}", answer.err);
        cluster
    }

    fn script(&self, name: &str, arguments: &[&str]) -> Answer {
        let mut script = Command::new(root().join("e2e/cluster").join(name));
        script.args(arguments).env("ROUSE_CLUSTER", self.folder.path());
        run(script.env("ROUSE_CLUSTER_OWNER", std::process::id().to_string()))
    }

    /// `kubectl`, with `input` on stdin.
    fn kubectl(&self, arguments: &str, input: &str) -> Answer {
        let mut kubectl = Command::new("bash");
        // The cluster's own kubectl: `env` says where it is.
        let env = self.folder.path().join("env");
        kubectl.arg("-c").arg(format!("source {} && exec $KUBECTL {arguments}", env.display()));
        kubectl.current_dir(root()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = kubectl.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).ok();
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Answer { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }

    fn must(&self, arguments: &str, input: &str) -> String {
        let answer = self.kubectl(arguments, input);
        assert_eq!(answer.code, 0, "kubectl {arguments}: {}{}", answer.out, answer.err);
        // Kubernetes warns about objects that it accepts but will not run under the restricted standard.
        assert!(!answer.err.contains("Warning"), "kubectl {arguments}: {}", answer.err);
        answer.out
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.script("down", &[]);
    }
}

const STRICT: &str = "apply --server-side --validate=strict";

pub(crate) fn takes_all_of_it() {
    let cluster = Cluster::up();
    cluster.must(&format!("{STRICT} -f -"), &install("").out);
    cluster.must(&format!("{STRICT} --dry-run=server -k deploy"), "");
    cluster.must(&format!("{STRICT} -f deploy/examples"), "");
    for optional in ["hpa", "networkpolicy", "named-objects"] {
        cluster.must(&format!("{STRICT} --dry-run=server -f deploy/optional/{optional}.yaml"), "");
    }
    for flags in [
        "--watch-namespace shop --no-namespace --no-crds --tls-secret w --secrets-of shop --ip-family ipv6",
        "--no-crds --register-secret r --push observe --register-token-check tokenreview --tls-secret w --controller-secret c",
    ] {
        cluster.must(&format!("{STRICT} --dry-run=server --force-conflicts -f -"), &install(flags).out);
    }
    may_do(&cluster, PermissionRole::Gateway, "rouse-gateway");
    may_do(&cluster, PermissionRole::Controller, "rouse-controller");
    judges_routes(&cluster);
    is_told(&cluster);
}

/// Checks the permissions of the `ServiceAccount` with the API server itself.
fn may_do(cluster: &Cluster, role: PermissionRole, account: &str) {
    // Not `kubectl auth can-i`, which knows only installed kinds: KEDA is not installed.
    let may_in = |namespace: &str, verb: &str, resource: &str| {
        let (resource, group) = resource.split_once('.').unwrap_or((resource, ""));
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let review = json!({
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": format!("system:serviceaccount:rouse-system:{account}"),
                "resourceAttributes": {
                    "namespace": namespace,
                    "verb": verb,
                    "group": group,
                    "resource": resource,
                    "subresource": subresource,
                },
            },
        });
        cluster.must("create -f - -o jsonpath={.status.allowed}", &review.to_string()) == "true"
    };
    let may = |verb: &str, resource: &str| may_in("shop", verb, resource);
    for permission in role.permissions() {
        for verb in permission.verbs {
            let (name, scope) = (permission.name(), permission.scope);
            assert_eq!(may(verb, &name), scope == Scope::Watched, "{account}: {verb} {name}");
            let own = matches!(scope, Scope::Watched | Scope::Own);
            assert_eq!(may_in("rouse-system", verb, &name), own, "{account}: {verb} {name} in its namespace");
        }
    }
    for (verb, resource) in [
        ("get", "secrets"),
        ("delete", "pods"),
        ("patch", "deployments.apps"),
        ("update", "deployments/scale.apps"),
        ("create", "pods/exec"),
        ("patch", "interceptorroutes.http.keda.sh"),
        ("list", "namespaces"),
    ] {
        assert!(!may(verb, resource), "{verb} {resource} is more than {account} needs");
    }
}

fn judges_routes(cluster: &Cluster) {
    for case in routes::cases() {
        let object = case.object.to_string();
        let answer = cluster.kubectl("apply --validate=strict --dry-run=server -f -", &object);
        let spec = case.object.get("spec").unwrap();
        assert_eq!(answer.code == 0, case.good, "{spec}: {}", answer.err);
    }
}

/// The API server accepts the statuses that the gateway writes on routes.
fn is_told(cluster: &Cluster) {
    let condition = json!({
        "type": "Ready", "status": "True", "reason": "Reconciled", "message": "serving",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
    });
    let status = json!({"status": {"conditions": [condition]}});
    for route in ["interceptorroutes/hello", "httpscaledobjects/orders"] {
        cluster.must(&format!("-n shop patch {route} --subresource=status --type=merge -p '{status}'"), "");
        let shown = cluster.must(&format!("-n shop get {route}"), "");
        assert!(shown.contains("READY") && shown.contains("True"), "{shown}");
    }
}
