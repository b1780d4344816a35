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

/// One value for each type.
#[derive(Debug, Clone, Default)]
pub(crate) struct PerType<T> {
    clusters: T,
    endpoints: T,
    listeners: T,
    routes: T,
}

impl<T> PerType<T> {
    pub(crate) fn by(value: impl Fn(ResourceType) -> T) -> Self {
        Self {
            clusters: value(ResourceType::Cluster),
            endpoints: value(ResourceType::Endpoints),
            listeners: value(ResourceType::Listener),
            routes: value(ResourceType::Routes),
        }
    }

    pub(crate) fn of(&self, kind: ResourceType) -> &T {
        match kind {
            ResourceType::Cluster => &self.clusters,
            ResourceType::Endpoints => &self.endpoints,
            ResourceType::Listener => &self.listeners,
            ResourceType::Routes => &self.routes,
        }
    }

    pub(crate) fn of_mut(&mut self, kind: ResourceType) -> &mut T {
        match kind {
            ResourceType::Cluster => &mut self.clusters,
            ResourceType::Endpoints => &mut self.endpoints,
            ResourceType::Listener => &mut self.listeners,
            ResourceType::Routes => &mut self.routes,
        }
    }
}
