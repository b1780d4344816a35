//! Finds the route of a request by host, path and headers, and says what the route does while it has no pod.

mod no_pod;
mod route;
mod router;
mod static_response;
mod table;

pub use self::no_pod::{FixedResponse, NoPodPolicy, PassiveRequests, PendingLimit};
pub use self::route::{Route, Target};
pub(crate) use self::router::Router;
pub use self::static_response::StaticResponse;
pub use self::table::{
    BadHost, BadPath, HeaderMatch, HostPattern, PathPrefix, RouteTable, Rule, VirtualHost,
};
