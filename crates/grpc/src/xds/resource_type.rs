//! The types of resources, and the order in which Envoy must get them.

/// What a resource is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceType {
    /// A cluster (CDS).
    Cluster,
    /// The endpoints of a cluster (EDS).
    Endpoints,
    /// A listener (LDS).
    Listener,
    /// A route configuration (RDS).
    Routes,
}

impl ResourceType {
    /// All types, in the order in which additions and changes are sent: what refers to others comes after them. Removals are sent in the
    /// reverse order.
    pub const ALL: [Self; 4] = [Self::Cluster, Self::Endpoints, Self::Listener, Self::Routes];

    /// The URL of the type in requests and responses.
    pub const fn url(self) -> &'static str {
        match self {
            Self::Cluster => "type.googleapis.com/envoy.config.cluster.v3.Cluster",
            Self::Endpoints => "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment",
            Self::Listener => "type.googleapis.com/envoy.config.listener.v3.Listener",
            Self::Routes => "type.googleapis.com/envoy.config.route.v3.RouteConfiguration",
        }
    }

    /// The type with this URL.
    pub fn of_url(url: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.url() == url)
    }

    /// The name in metrics and in the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cluster => "cds",
            Self::Endpoints => "eds",
            Self::Listener => "lds",
            Self::Routes => "rds",
        }
    }
}
