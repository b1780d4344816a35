//! Sends requests to pods: one attempt at a time, over pooled connections, with bodies and tunnels both ways.

mod attempt;
mod backend;
mod body;
mod cluster_ip;
mod connect;
mod context;
mod destination;
mod executor;
mod failure;
mod headers;
mod outgoing;
mod pool;
mod response;
mod send;
mod timeouts;
mod tunnel;

pub(crate) use self::attempt::{Tries, attempt, ready_endpoints};
pub use self::backend::{Backend, UpstreamProtocol};
pub(crate) use self::body::{BodyError, ResponseBody};
pub use self::cluster_ip::ClusterIp;
pub(crate) use self::cluster_ip::RETRY_PAUSE;
pub(crate) use self::connect::LOCAL_PAUSE;
pub(crate) use self::context::{AttemptContext, ServicePools, UpstreamContext};
pub(crate) use self::destination::Destination;
pub(crate) use self::executor::{LocalExecutor, closed};
pub(crate) use self::failure::AttemptFailure;
pub use self::headers::{ColdStartHeaders, wanted_upgrade};
pub(crate) use self::outgoing::{ClientRequest, OutgoingRequest};
pub(crate) use self::pool::{DialError, IdleBudget, is_local};
pub(crate) use self::response::PodResponse;
pub(crate) use self::timeouts::RequestDeadlines;
pub use self::timeouts::Timeouts;
