//! Accept loops and worker threads, relief when memory or file descriptors run short, and the state that all threads share.

mod accept;
mod gateway;
mod worker;
mod worker_pool;

pub use self::accept::ProxyListener;
pub use self::gateway::{Gateway, ProxySettings};
pub use self::worker_pool::Workers;
pub use crate::downstream::ListenerOptions;
