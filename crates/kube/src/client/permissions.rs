//! The table of all permissions that the gateway uses. Manifests grant them, `rouse check` checks them, and a test compares
//! them with the requests of the gateway.

/// A permission that the gateway uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permission {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The plural of the kind, with its subresource as RBAC writes it: `deployments/scale`.
    pub resource: &'static str,
    /// The verbs, as RBAC writes them.
    pub verbs: &'static [&'static str],
    /// Where it must hold.
    pub scope: Scope,
    /// Whether the gateway works without it.
    pub need: Requirement,
    /// Why the gateway needs it, in one or two sentences.
    pub why: &'static str,
}

/// Where a permission must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// In the whole cluster, or in the one namespace that the gateway watches.
    Watched,
    /// For the objects that routes and Services name, in their own namespace. To be granted by a Role there, and for
    /// Secrets never by a `ClusterRoleBinding`.
    Named,
    /// In the whole cluster, because the kind has no namespace, and only if the operator turns on the feature that uses it. To
    /// be granted by a `ClusterRole` of its own.
    OnDemand,
}

/// A path of the API server that is not an object and that the gateway reads. Kubernetes binds the role to all
/// `ServiceAccount`s, so manifests grant nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UrlPermission {
    /// The path.
    pub url: &'static str,
    /// The `ClusterRole` of Kubernetes that allows to get it.
    pub role: &'static str,
    /// Why the gateway reads it.
    pub why: &'static str,
}

const ISSUER_DISCOVERY: &str = "system:service-account-issuer-discovery";

/// The public keys of the issuer of tokens.
pub const ISSUER_KEYS: UrlPermission = UrlPermission {
    url: "/openid/v1/jwks",
    role: ISSUER_DISCOVERY,
    why: "The gateway verifies the tokens of pods that register with the keys of their issuer.",
};

/// The name of the issuer of tokens.
pub const ISSUER_CONFIGURATION: UrlPermission = UrlPermission {
    url: "/.well-known/openid-configuration",
    role: ISSUER_DISCOVERY,
    why: "The gateway accepts tokens of the cluster's own issuer only, unless the operator names another one.",
};

/// Every path without an object that the gateway reads, and no other.
pub const URL_PERMISSIONS: &[UrlPermission] = &[ISSUER_KEYS, ISSUER_CONFIGURATION];

/// Whether the gateway works without a permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Requirement {
    /// Without it, the gateway serves no requests, or wakes no workloads.
    Required,
    /// Without it, the gateway serves and wakes, but lacks a feature.
    Optional {
        /// What does not work without it.
        lost: &'static str,
    },
}

impl Permission {
    /// The resource without its subresource, and the subresource.
    pub fn parts(&self) -> (&'static str, Option<&'static str>) {
        match self.resource.split_once('/') {
            Some((resource, sub)) => (resource, Some(sub)),
            None => (self.resource, None),
        }
    }

    /// As people write it: `deployments/scale.apps`.
    pub fn name(&self) -> String {
        if self.group.is_empty() {
            self.resource.to_owned()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }
}

const FOLLOW: &[&str] = &["list", "watch"];
const SCALE: &[&str] = &["get", "patch"];

const fn watched(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    need: Requirement,
    why: &'static str,
) -> Permission {
    Permission { group, resource, verbs, scope: Scope::Watched, need, why }
}

const fn named(resource: &'static str, lost: &'static str, why: &'static str) -> Permission {
    let need = Requirement::Optional { lost };
    Permission { group: "", resource, verbs: FOLLOW, scope: Scope::Named, need, why }
}

/// Every permission that the gateway uses, and no other. One resource may be here twice, with verbs of different need.
///
/// A route may name a workload of any kind that has a scale. For another kind than these, grant `get` on it, and `get`
/// and `patch` on its scale.
pub const PERMISSIONS: &[Permission] = &[
    watched(
        "discovery.k8s.io",
        "endpointslices",
        FOLLOW,
        Requirement::Required,
        "EndpointSlices list the ready pods of each Service, with their addresses.",
    ),
    watched("", "services", FOLLOW, Requirement::Required, "Routes lead to ports of Services."),
    watched(
        "http.keda.sh",
        "interceptorroutes",
        FOLLOW,
        Requirement::Required,
        "InterceptorRoutes are routes. The gateway does not get ready before it has listed all routes.",
    ),
    watched(
        "http.keda.sh",
        "httpscaledobjects",
        FOLLOW,
        Requirement::Required,
        "HTTPScaledObjects are routes. The gateway does not get ready before it has listed all routes.",
    ),
    watched(
        "apps",
        "deployments/scale",
        SCALE,
        Requirement::Required,
        "A wake scales a Deployment from 0 to the replicas that its route asks for.",
    ),
    watched(
        "apps",
        "deployments",
        &["list"],
        Requirement::Required,
        "If a route names no workload, the gateway finds its Deployment by the labels of its pods.",
    ),
    watched(
        "apps",
        "statefulsets",
        &["list"],
        Requirement::Required,
        "If a route names no workload, the gateway finds its StatefulSet by the labels of its pods.",
    ),
    watched(
        "apps",
        "statefulsets/scale",
        SCALE,
        Requirement::Optional { lost: "StatefulSets are not woken" },
        "A wake scales a StatefulSet from 0 to the replicas that its route asks for.",
    ),
    watched(
        "",
        "pods",
        FOLLOW,
        Requirement::Optional {
            lost: "starting pods are not probed, so requests wait until the kubelet has probed them, pods cannot register \
                   themselves, and anyone who can write an EndpointSlice can point the gateway anywhere",
        },
        "The specs of pods say how to probe them, and their addresses show which endpoints are real pods and which are forged.",
    ),
    watched(
        "keda.sh",
        "scaledobjects",
        &["list"],
        Requirement::Optional {
            lost: "a workload that only a ScaledObject names is not found and not woken, and a workload that a ScaledObject \
                   pauses is woken",
        },
        "A ScaledObject that names a route says which workload the route scales, and whether it is paused.",
    ),
    watched(
        "apps",
        "deployments",
        &["get"],
        Requirement::Optional {
            lost: "the status of a route does not say that a quota or a webhook keeps its Deployment from having pods",
        },
        "The conditions of a Deployment say why it has no pods after a wake.",
    ),
    watched(
        "apps",
        "statefulsets",
        &["get"],
        Requirement::Optional {
            lost: "the status of a route does not say what keeps its StatefulSet from having pods",
        },
        "The conditions of a StatefulSet say why it has no pods after a wake.",
    ),
    watched(
        "http.keda.sh",
        "interceptorroutes/status",
        &["patch"],
        Requirement::Optional {
            lost: "the status of InterceptorRoutes does not say what is wrong with them",
        },
        "The conditions of a route say whether it serves, and why not.",
    ),
    watched(
        "http.keda.sh",
        "httpscaledobjects/status",
        &["patch"],
        Requirement::Optional {
            lost: "the status of HTTPScaledObjects does not say what is wrong with them",
        },
        "The conditions of a route say whether it serves, and why not.",
    ),
    watched(
        "",
        "events",
        &["create"],
        Requirement::Optional { lost: "`kubectl describe` does not show wakes" },
        "The gateway writes a Kubernetes Event on the route for each wake and each failed wake.",
    ),
    named(
        "configmaps",
        "placeholder and static responses that come from a ConfigMap have no body, and pods whose Service names a \
         ConfigMap for TLS are not reached",
        "A route may take the body of a response from a ConfigMap of its namespace, and a Service the CA for its pods.",
    ),
    named(
        "secrets",
        "pods whose Service names a Secret for TLS are not reached",
        "A Service may name a Secret of its namespace with the CA or the client certificate for its pods.",
    ),
    Permission {
        group: "authentication.k8s.io",
        resource: "tokenreviews",
        verbs: &["create"],
        scope: Scope::OnDemand,
        need: Requirement::Optional { lost: "pods cannot register with tokens that the API server reviews" },
        why: "In the mode TokenReview, the API server says which pod a token is bound to. A review is not stored.",
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_verb_of_a_resource_is_there_twice() {
        let mut seen = BTreeSet::new();
        for permission in PERMISSIONS {
            for verb in permission.verbs {
                assert!(seen.insert((permission.group, permission.resource, verb)), "{permission:?}");
            }
        }
    }

    #[test]
    fn secrets_are_read_by_name_only_and_nothing_is_deleted_or_replaced() {
        for permission in PERMISSIONS {
            let named = permission.scope == Scope::Named;
            assert!(permission.resource != "secrets" || named, "{permission:?}");
            let verbs: BTreeSet<_> = permission.verbs.iter().copied().collect();
            let known = BTreeSet::from(["create", "get", "list", "patch", "watch"]);
            assert!(!verbs.is_empty() && verbs.is_subset(&known), "{permission:?}");
            assert!(!permission.group.contains('*') && !permission.resource.contains('*'), "{permission:?}");
            // A write goes to a subresource, or creates an event or a review, which is not stored: never to the spec of an object.
            let writes = verbs.contains("patch") || verbs.contains("create");
            let created = ["events", "tokenreviews"].contains(&permission.resource);
            assert!(!writes || permission.parts().1.is_some() || created);
            let cluster = permission.scope == Scope::OnDemand;
            assert!(!cluster || permission.need != Requirement::Required, "{permission:?}");
        }
    }

    #[test]
    fn the_cost_of_missing_pods_names_forged_slices() {
        let pods = PERMISSIONS.iter().find(|permission| permission.resource == "pods").unwrap();
        let Requirement::Optional { lost } = pods.need else { panic!("{pods:?}") };
        assert!(lost.contains("write an EndpointSlice can point the gateway anywhere"), "{lost}");
        assert!(pods.why.contains("forged"), "{}", pods.why);
    }

    #[test]
    fn names_are_those_of_kubectl() {
        let names: Vec<String> = PERMISSIONS.iter().map(Permission::name).collect();
        assert!(names.contains(&"deployments/scale.apps".to_owned()) && names.contains(&"pods".to_owned()));
    }
}
