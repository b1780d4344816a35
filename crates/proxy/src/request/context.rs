//! The data of one request while it is routed, held and sent.

use crate::routing::NoPodPolicy;
use crate::upstream::AttemptContext;

/// The context of one request until it is answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestContext<'a> {
    /// The part that attempts to send the request see.
    pub(super) attempt: AttemptContext<'a>,
    pub(super) policy: &'a NoPodPolicy,
    /// The request does not wake a pod, and does not count as load.
    pub(super) passive: bool,
}
