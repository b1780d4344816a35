//! Limits and budgets: what clients may use, bytes in hyper's buffers, connections to pods, file descriptors.

mod bytes;
mod descriptors;
mod limits;
mod pod_connections;

pub(crate) use self::bytes::{BodyAccount, BodyBuffers, ByteBudget, Charged, Reserved};
pub(crate) use self::descriptors::{DescriptorShortage, SharedShortage};
pub use self::limits::{ConnectionLimits, HeadLimits};
pub(crate) use self::pod_connections::{PodConnection, PodConnections, PodRequestPermit};

/// How much a client may send on one HTTP/2 stream before the stream's body is read.
pub(crate) const CLIENT_STREAM_WINDOW: u32 = 64 * 1024;
/// How much hyper may buffer of one body, each way.
pub(crate) const HYPER_BUFFER: usize = CLIENT_STREAM_WINDOW as usize;
/// A head of more bytes than these is long: its bytes are counted, and while memory is short it must arrive quickly.
pub(crate) const LONG_HEAD: usize = 8 * 1024;
