//! The tables of all permissions that each role uses. Manifests grant them, `rouse check` checks them, and tests compare them
//! with the requests of the roles.

mod xds;

pub use xds::XDS_PERMISSIONS;

/// A role: a command with a `ServiceAccount` of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PermissionRole {
    /// `rouse gateway`.
    Gateway,
    /// `rouse controller`.
    Controller,
    /// `rouse xds`.
    Xds,
}

impl PermissionRole {
    /// Every permission that the role uses, and no other.
    pub fn permissions(self) -> &'static [Permission] {
        match self {
            Self::Gateway => PERMISSIONS,
            Self::Controller => CONTROLLER_PERMISSIONS,
            Self::Xds => XDS_PERMISSIONS,
        }
    }
}

/// A permission that a role uses.
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
    /// Whether the role works without it.
    pub need: Requirement,
    /// Why the role needs it, in one or two sentences.
    pub why: &'static str,
}

/// Where a permission must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// In the whole cluster, or in the one namespace that the role watches.
    Watched,
    /// In the namespace where Rouse is installed. To be granted by a Role there.
    Own,
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
    /// Without it, the role does not do what it is for: a gateway serves no requests or wakes no workloads, a controller scales
    /// nothing.
    Required,
    /// Without it, the role works, but lacks a feature.
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

const fn own(
    group: &'static str,
    resource: &'static str,
    verbs: &'static [&'static str],
    need: Requirement,
    why: &'static str,
) -> Permission {
    Permission { group, resource, verbs, scope: Scope::Own, need, why }
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

/// Every permission that the controller of `EndpointSlice`s uses, and no other.
pub const SLICE_PERMISSIONS: &[Permission] = &[
    watched("", "services", FOLLOW, Requirement::Required, "Services name their pods by annotation."),
    watched("", "pods", FOLLOW, Requirement::Required, "The endpoints of a Service are its pods."),
    Permission {
        group: "",
        resource: "nodes",
        verbs: FOLLOW,
        scope: Scope::OnDemand,
        need: Requirement::Required,
        why: "An endpoint has the zone of its node.",
    },
    watched(
        "discovery.k8s.io",
        "endpointslices",
        &["list", "watch", "create", "patch", "delete"],
        Requirement::Required,
        "The controller writes the slices of these Services. It lists and changes only slices with its own label.",
    ),
    watched(
        "",
        "services/finalizers",
        &["update"],
        Requirement::Optional {
            lost: "slices are not created in clusters with the admission plugin OwnerReferencesPermissionEnforcement",
        },
        "Each slice is owned by its Service. The plugin asks for this permission when an owner is named.",
    ),
];

/// Every permission that the controller uses, and no other.
///
/// A route may name a workload of any kind that has a scale. For another kind than these, grant `get` on it, and `get`
/// and `patch` on its scale.
pub const CONTROLLER_PERMISSIONS: &[Permission] = &[
    watched(
        "http.keda.sh",
        "interceptorroutes",
        FOLLOW,
        Requirement::Required,
        "InterceptorRoutes say how their workloads are scaled.",
    ),
    watched(
        "http.keda.sh",
        "httpscaledobjects",
        FOLLOW,
        Requirement::Required,
        "HTTPScaledObjects say how their workloads are scaled.",
    ),
    watched(
        "",
        "services",
        FOLLOW,
        Requirement::Required,
        "The selector of its Service leads from a route to its workload.",
    ),
    watched(
        "apps",
        "deployments",
        FOLLOW,
        Requirement::Required,
        "How many pods a Deployment has and is to have, and by which labels it is found.",
    ),
    watched(
        "apps",
        "statefulsets",
        FOLLOW,
        Requirement::Required,
        "How many pods a StatefulSet has and is to have, and by which labels it is found.",
    ),
    watched("apps", "deployments/scale", &["patch"], Requirement::Required, "Scaling a Deployment."),
    watched(
        "apps",
        "statefulsets/scale",
        &["patch"],
        Requirement::Optional { lost: "StatefulSets are not scaled" },
        "Scaling a StatefulSet.",
    ),
    watched(
        "autoscaling",
        "horizontalpodautoscalers",
        FOLLOW,
        Requirement::Optional { lost: "nothing is scaled down" },
        "What an HPA scales, Rouse does not. If HPAs cannot be listed, nothing is scaled down.",
    ),
    watched(
        "keda.sh",
        "scaledobjects",
        FOLLOW,
        Requirement::Optional { lost: "nothing is scaled down" },
        "What a ScaledObject scales, Rouse does not. If ScaledObjects cannot be listed, nothing is scaled down.",
    ),
    watched(
        "http.keda.sh",
        "interceptorroutes/status",
        &["patch"],
        Requirement::Optional {
            lost: "the status of InterceptorRoutes does not say whether they are scaled",
        },
        "The condition Autoscaled of a route says whether its workload is scaled, and why not.",
    ),
    watched(
        "http.keda.sh",
        "httpscaledobjects/status",
        &["patch"],
        Requirement::Optional {
            lost: "the status of HTTPScaledObjects does not say whether they are scaled",
        },
        "The condition Autoscaled of a route says whether its workload is scaled, and why not.",
    ),
    watched(
        "",
        "events",
        &["create"],
        Requirement::Optional { lost: "`kubectl describe` does not show why a workload was scaled" },
        "The controller writes a Kubernetes Event on the route for each change of the number of pods.",
    ),
    own(
        "discovery.k8s.io",
        "endpointslices",
        FOLLOW,
        Requirement::Required,
        "The EndpointSlices of the gateways' own Service list the gateways that must report their load.",
    ),
    own(
        "",
        "configmaps",
        &["create", "get", "patch"],
        Requirement::Optional { lost: "what idle policies have learned is lost at each restart" },
        "What idle policies have learned about each workload is kept in the ConfigMaps rouse-scaling-state-0 to -15.",
    ),
    own(
        "coordination.k8s.io",
        "leases",
        &["create", "get", "list", "patch", "watch"],
        Requirement::Required,
        "Of all replicas of the controller, the one that holds the Lease rouse-controller writes.",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_verb_of_a_resource_is_there_twice() {
        for table in [PERMISSIONS, CONTROLLER_PERMISSIONS, SLICE_PERMISSIONS, XDS_PERMISSIONS] {
            let mut seen = BTreeSet::new();
            for permission in table {
                for verb in permission.verbs {
                    let own = permission.scope == Scope::Own;
                    assert!(
                        seen.insert((permission.group, permission.resource, verb, own)),
                        "{permission:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn secrets_are_read_by_name_only_and_nothing_is_deleted_or_replaced() {
        for permission in PERMISSIONS.iter().chain(CONTROLLER_PERMISSIONS).chain(XDS_PERMISSIONS) {
            let named = permission.scope == Scope::Named;
            assert!(permission.resource != "secrets" || named, "{permission:?}");
            let verbs: BTreeSet<_> = permission.verbs.iter().copied().collect();
            let known = BTreeSet::from(["create", "get", "list", "patch", "watch"]);
            assert!(!verbs.is_empty() && verbs.is_subset(&known), "{permission:?}");
            assert!(!permission.group.contains('*') && !permission.resource.contains('*'), "{permission:?}");
            // A write goes to a subresource, or creates an event or a review, which is not stored: never to the spec of an object
            // outside the namespace of Rouse.
            let writes = verbs.contains("patch") || verbs.contains("create");
            let created = ["events", "tokenreviews"].contains(&permission.resource);
            let own = permission.scope == Scope::Own;
            assert!(!writes || permission.parts().1.is_some() || created || own, "{permission:?}");
            let cluster = permission.scope == Scope::OnDemand;
            assert!(!cluster || permission.need != Requirement::Required, "{permission:?}");
        }
    }

    #[test]
    fn the_control_plane_of_envoys_only_reads() {
        for permission in XDS_PERMISSIONS {
            assert_eq!(permission.verbs, FOLLOW, "{permission:?}");
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
