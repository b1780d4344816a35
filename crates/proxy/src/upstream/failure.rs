//! Why one attempt failed where another attempt may succeed.

use rouse_net::tls::FaultSide;

use super::pool::DialError;

/// Why an attempt failed where another one may succeed.
#[derive(Debug)]
pub(crate) enum AttemptFailure {
    /// No connection could be made.
    Refused(DialError),
    /// While the request waited, the pod left or got another address.
    Moved,
    /// The connection ended before anything was sent.
    Unsent,
    /// HTTP/2 says that the pod did not process the request. Not the pod's fault.
    RefusedStream,
    /// The same over HTTP/1.1, from the sidecar of a pod that is about to stop.
    Draining,
    /// The same as [`RefusedStream`](Self::RefusedStream), from a pod that ends the whole connection with an error: the request
    /// itself may be the cause.
    GoAwayError,
    /// The connection ended before anything came back.
    Lost,
}

impl AttemptFailure {
    /// Whether the gateway itself lacked something, for example file descriptors.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self, Self::Refused(DialError::Local))
    }

    /// Whether a pod was tried. A local failure, or a pod that moved, costs no pod anything: a change of all addresses at
    /// once must not use up the retry budget.
    pub(crate) fn is_attempt(&self) -> bool {
        !self.is_local() && !matches!(self, Self::Moved)
    }

    /// Whether the pod is to blame, so that it is ejected.
    pub(crate) fn is_pod_fault(&self) -> bool {
        match self {
            // A pod that is about to stop refuses the next requests as well.
            Self::Refused(DialError::Pod) | Self::Unsent | Self::Lost | Self::Draining => true,
            Self::Refused(DialError::Local) | Self::Moved | Self::RefusedStream | Self::GoAwayError => false,
            Self::Refused(DialError::Tls(error)) => error.fault() != FaultSide::Ours,
        }
    }

    /// The reason that metrics give for the retry.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Refused(DialError::Local) => "local",
            Self::Refused(DialError::Pod) => "connect",
            Self::Refused(DialError::Tls(_)) => "tls",
            Self::Moved => "moved",
            Self::Unsent => "unsent",
            Self::RefusedStream | Self::GoAwayError => "refused_stream",
            Self::Draining => "draining",
            Self::Lost => "reset",
        }
    }

    /// The failure that an HTTP/2 error stands for, if the pod did not process the request at all.
    pub(super) fn of_stream(error: &hyper::Error) -> Option<Self> {
        let mut source = std::error::Error::source(error);
        while let Some(error) = source {
            if let Some(error) = error.downcast_ref::<h2::Error>() {
                // A pod's GOAWAY fails only the streams that it did not process, for any reason.
                let gone_away = error.is_go_away() && error.is_remote();
                return match error.reason() {
                    Some(h2::Reason::REFUSED_STREAM) => Some(Self::RefusedStream),
                    Some(h2::Reason::NO_ERROR) if gone_away => Some(Self::RefusedStream),
                    _ => gone_away.then_some(Self::GoAwayError),
                };
            }
            source = error.source();
        }
        None
    }
}
