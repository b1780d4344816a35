//! The permissions of `rouse xds`, which reads what a gateway reads and writes nothing.

use super::{FOLLOW, Permission, Requirement, named, own, watched};

/// Every permission that `rouse xds` uses, and no other. It writes nothing.
pub const XDS_PERMISSIONS: &[Permission] = &[
    watched(
        "discovery.k8s.io",
        "endpointslices",
        FOLLOW,
        Requirement::Required,
        "EndpointSlices list the pods of each Service, with their addresses and conditions.",
    ),
    watched(
        "",
        "services",
        FOLLOW,
        Requirement::Required,
        "Routes lead to ports of Services, which become clusters.",
    ),
    watched(
        "http.keda.sh",
        "interceptorroutes",
        FOLLOW,
        Requirement::Required,
        "InterceptorRoutes are routes. Envoys get nothing before all routes have been listed.",
    ),
    watched(
        "http.keda.sh",
        "httpscaledobjects",
        FOLLOW,
        Requirement::Required,
        "HTTPScaledObjects are routes. Envoys get nothing before all routes have been listed.",
    ),
    watched(
        "",
        "pods",
        FOLLOW,
        Requirement::Optional { lost: "a user who can write EndpointSlices can point Envoys anywhere" },
        "The addresses of pods show which endpoints are real pods and which are forged.",
    ),
    named(
        "configmaps",
        "static responses that come from a ConfigMap have no body, and pods whose Service names a ConfigMap for TLS are not \
         reached",
        "A route may take the body of a response from a ConfigMap of its namespace, and a Service the CA for its pods.",
    ),
    named(
        "secrets",
        "pods whose Service names a Secret for TLS are not reached",
        "A Service may name a Secret of its namespace with the CA for its pods.",
    ),
    own(
        "discovery.k8s.io",
        "endpointslices",
        FOLLOW,
        Requirement::Required,
        "The EndpointSlices of the gateways' own Service say where requests for services without a pod go.",
    ),
];
