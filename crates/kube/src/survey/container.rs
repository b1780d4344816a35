//! Reads settings and mounted Secrets of the gateway's containers, as `rouse gateway` reads them: a flag, then a variable.

use std::collections::BTreeSet;
use std::path::Path;

use k8s_openapi::api::core::v1::{Container, PodSpec, Volume};

use crate::objects::workload::is_object_name;

/// The containers of a pod, and its volumes.
#[derive(Debug)]
pub(super) struct Containers<'a> {
    containers: &'a [Container],
    volumes: &'a [Volume],
}

impl<'a> Containers<'a> {
    /// Those of a pod template.
    pub(super) fn new(pod: &'a PodSpec) -> Self {
        Self { containers: &pod.containers, volumes: pod.volumes.as_deref().unwrap_or_default() }
    }

    /// The value of the first of these that is set: the flag, then the variables in this order.
    pub(super) fn setting(&self, flag: &str, variables: &[&str]) -> Option<&'a str> {
        self.containers.iter().find_map(|container| setting(container, flag, variables))
    }

    /// Whether settings may also come from a file, which is not read here.
    pub(super) fn has_file(&self) -> bool {
        self.setting("--config", &["ROUSE_CONFIG"]).is_some()
    }

    /// The namespace that the gateway watches.
    pub(super) fn watches(&self) -> Option<String> {
        let said = self.setting("--watch-namespace", &["ROUSE_WATCH_NAMESPACE", "KEDA_HTTP_WATCH_NAMESPACE"]);
        said.map(str::to_owned).filter(|name| is_object_name(name))
    }

    /// The Secrets that are mounted at `path`, above it or below it.
    pub(super) fn secrets_at(&self, path: &str) -> BTreeSet<String> {
        let path = Path::new(path);
        let mounts = self.containers.iter().flat_map(|container| container.volume_mounts.iter().flatten());
        let here = mounts.filter(|mount| {
            let mounted = Path::new(&mount.mount_path);
            path.starts_with(mounted) || mounted.starts_with(path)
        });
        let volumes = here.filter_map(|mount| self.volumes.iter().find(|volume| volume.name == mount.name));
        volumes.flat_map(secrets).filter(|name| is_object_name(name)).collect()
    }
}

/// The Secrets of a volume.
fn secrets(volume: &Volume) -> Vec<String> {
    let own = volume.secret.iter().filter_map(|secret| secret.secret_name.clone());
    let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    own.chain(sources.filter_map(|source| source.secret.as_ref().map(|secret| secret.name.clone()))).collect()
}

fn setting<'a>(container: &'a Container, flag: &str, variables: &[&str]) -> Option<&'a str> {
    let words: Vec<&str> =
        container.command.iter().chain(&container.args).flatten().map(String::as_str).collect();
    let joined = words.iter().find_map(|word| word.strip_prefix(flag)?.strip_prefix('='));
    let parted = words.iter().position(|word| *word == flag);
    let value = |name: &&str| {
        let mut all = container.env.iter().flatten();
        all.find(|variable| variable.name == *name)?.value.as_deref().filter(|value| !value.is_empty())
    };
    joined.or_else(|| words.get(parted? + 1).copied()).or_else(|| variables.iter().find_map(value))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(args: &Value, env: &Value) -> PodSpec {
        let volumes = json!([
            {"name": "certs", "secret": {"secretName": "web"}},
            {"name": "both", "projected": {"sources": [{"secret": {"name": "one"}}, {"configMap": {"name": "c"}}, {"secret": {"name": "two"}}]}},
            {"name": "tmp", "emptyDir": {}},
        ]);
        let mounts = json!([
            {"name": "certs", "mountPath": "/certs"},
            {"name": "both", "mountPath": "/more/certs"},
            {"name": "tmp", "mountPath": "/tmp"},
        ]);
        let container = json!({"name": "gateway", "args": args, "env": env, "volumeMounts": mounts});
        serde_json::from_value(json!({"containers": [container], "volumes": volumes})).unwrap()
    }

    #[test]
    fn the_namespace_that_is_watched_is_read_as_the_gateway_reads_it() {
        let env = |name: &str, value: &str| json!([{"name": name, "value": value}]);
        let both = json!([{"name": "KEDA_HTTP_WATCH_NAMESPACE", "value": "keda"}, {"name": "ROUSE_WATCH_NAMESPACE", "value": "own"}]);
        let cases = [
            (json!(["gateway"]), json!([]), None),
            (json!(["gateway", "--watch-namespace", "shop"]), both.clone(), Some("shop")),
            (json!(["gateway", "--watch-namespace=shop"]), json!([]), Some("shop")),
            (json!(["gateway"]), env("ROUSE_WATCH_NAMESPACE", "shop"), Some("shop")),
            (json!(["gateway"]), env("ROUSE_WATCH_NAMESPACE", ""), None),
            (json!(["gateway"]), env("KEDA_HTTP_WATCH_NAMESPACE", "shop"), Some("shop")),
            (json!(["gateway"]), both, Some("own")),
            (json!(["gateway", "--watch-namespace"]), json!([]), None),
            (json!(["gateway", "--watch-namespace", "../pods"]), json!([]), None),
            (Value::Null, Value::Null, None),
        ];
        for (args, env, expected) in cases {
            let pod = pod(&args, &env);
            assert_eq!(Containers::new(&pod).watches().as_deref(), expected, "{args} {env}");
        }
    }

    #[test]
    fn the_secrets_of_a_path_are_those_that_are_mounted_there_above_or_below() {
        let pod = pod(&Value::Null, &Value::Null);
        let containers = Containers::new(&pod);
        let cases: [(&str, &[&str]); 5] = [
            ("/certs/tls.crt", &["web"]),
            ("/certs", &["web"]),
            ("/more", &["one", "two"]),
            ("/certs2/tls.crt", &[]),
            ("/tmp/x", &[]),
        ];
        for (path, expected) in cases {
            let found: Vec<String> = containers.secrets_at(path).into_iter().collect();
            assert_eq!(found, expected, "{path}");
        }
    }
}
