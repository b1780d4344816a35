//! The life of one request: check, route, hold until a pod is ready, set forwarding headers, send, retry where that is safe.

mod check;
mod context;
mod forwarding;
mod handler;
mod hold;
mod retry;
mod start_failure_text;

pub(crate) use self::forwarding::ViaMark;
pub use self::forwarding::{BadNetworks, TrustedProxies};
pub(crate) use self::handler::{Answer, AnswerContent, NoAnswer, RequestHandler};
