//! Runs the TCP, HTTP and gRPC checks of a probe plan against one pod, as kubelet would.
//!
//! Only the pod's own verified address is probed. Redirects are not followed: a pod could send us anywhere. Like kubelet,
//! `https` checks verify no certificate: they only test whether the pod answers.

mod grpc;
pub mod grpc_health_proto;
mod http;

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::sync::LazyLock;

use hyper::StatusCode;
use rouse_core::probe::{ProbeCheck, ProbePlan};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};

use crate::tls::{ClientStream, ClientTls, LoadError, TlsError};
use grpc_health_proto::{BadHealth, ServingStatus};

/// Begins with `kube-probe/`: some apps detect probes by this prefix, and skip authentication and logs for them.
const USER_AGENT: &str = concat!("kube-probe/rouse-", env!("CARGO_PKG_VERSION"));

/// The most bytes of a response body that are read.
const MAX_BODY: usize = 10 * 1024;

/// Why a probe failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeFailure {
    /// The pod accepted the connection, but sent no complete response before the deadline.
    #[error("no complete response before the deadline")]
    Deadline,
    /// The connection was not accepted.
    #[error("cannot connect to {address}")]
    Connect {
        /// The address that was probed.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Nothing listens on this ephemeral port, and the kernel chose it as our source port (TCP self-connect).
    #[error("nothing listens on {0}: the connection was a TCP self-connect")]
    SelfConnect(SocketAddr),
    /// No socket is available on our side. This says nothing about the pod.
    #[error("cannot open a socket to probe {address}")]
    NoSocket {
        /// The address that would have been probed.
        address: SocketAddr,
        /// Why there is no socket.
        source: io::Error,
    },
    /// The check cannot be sent.
    #[error("the probe cannot be sent: {0}")]
    InvalidRequest(String),
    /// The pod accepted the connection, but the TLS handshake failed.
    #[error("the TLS handshake with the pod failed: {0}")]
    Tls(TlsError),
    /// The response is not HTTP, or incomplete.
    #[error("no complete HTTP response")]
    Http(#[source] hyper::Error),
    /// An HTTP status outside 200..=399; for gRPC, any but 200.
    #[error("the response has HTTP status {0}")]
    Status(StatusCode),
    /// The response is HTTP, but not gRPC.
    #[error("the response is not gRPC: {0}")]
    NotGrpc(&'static str),
    /// The call failed. Status 12 (unimplemented): the server has no health service.
    #[error("the gRPC call failed with status {0}")]
    GrpcStatus(u32),
    /// The call succeeded, but the message is invalid.
    #[error("the response is not a valid HealthCheckResponse")]
    BadHealth(#[from] BadHealth),
    /// The health status is not SERVING.
    #[error("the health status is {0}, expected SERVING")]
    NotServing(ServingStatus),
}

impl ProbeFailure {
    /// Whether nothing listens at the address, so that another address of the pod is worth a try.
    pub fn unreached(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::SelfConnect(_))
    }

    /// Whether the pod caused the failure, and not our own side.
    pub fn blames_pod(&self) -> bool {
        !matches!(self, Self::NoSocket { .. })
    }
}

/// Runs all checks of `plan` against the pod at `ip`, one after another, until one fails.
pub async fn probe(ip: IpAddr, plan: &ProbePlan, deadline: Instant) -> Result<(), ProbeFailure> {
    for check in plan.checks() {
        run_check(ip, check, deadline).await?;
    }
    Ok(())
}

async fn run_check(ip: IpAddr, check: &ProbeCheck, deadline: Instant) -> Result<(), ProbeFailure> {
    let connect = |port| connect(SocketAddr::new(ip, port), deadline);
    match check {
        ProbeCheck::Tcp { port } => connect(*port).await.map(drop),
        ProbeCheck::Http { port, path, headers, tls } => {
            let request = http::request(SocketAddr::new(ip, *port), path, headers)?;
            let stream = connect(*port).await?;
            if *tls {
                let stream = encrypt(stream, ip, deadline).await?;
                answer(deadline, http::get(stream, request)).await
            } else {
                answer(deadline, http::get(stream, request)).await
            }
        }
        ProbeCheck::Grpc { port, service } => {
            let request = grpc::request(SocketAddr::new(ip, *port), service)?;
            answer(deadline, grpc::check(connect(*port).await?, request)).await
        }
        // No plan contains one.
        ProbeCheck::Unsupported => Err(ProbeFailure::InvalidRequest("it runs inside the container".into())),
    }
}

/// Limits an exchange to the deadline. A timeout here is not a connect failure, so no other address is tried.
async fn answer(
    deadline: Instant,
    round_trip: impl Future<Output = Result<(), ProbeFailure>>,
) -> Result<(), ProbeFailure> {
    timeout_at(deadline, round_trip).await.unwrap_or(Err(ProbeFailure::Deadline))
}

async fn connect(address: SocketAddr, deadline: Instant) -> Result<TcpStream, ProbeFailure> {
    let late = |_| Err(ErrorKind::TimedOut.into());
    match timeout_at(deadline, TcpStream::connect(address)).await.unwrap_or_else(late) {
        Ok(stream) => not_to_itself(stream, address),
        Err(source) if is_ours(&source) => Err(ProbeFailure::NoSocket { address, source }),
        Err(source) => Err(ProbeFailure::Connect { address, source }),
    }
}

/// Starts TLS. The server name is the IP address, so no SNI is sent, even if the probe sets `Host`: kubelet does the same.
async fn encrypt(
    stream: TcpStream,
    ip: IpAddr,
    deadline: Instant,
) -> Result<ClientStream<TcpStream>, ProbeFailure> {
    static TLS: LazyLock<Result<ClientTls, LoadError>> = LazyLock::new(ClientTls::for_probes);
    let tls = TLS.as_ref().map_err(|error| ProbeFailure::InvalidRequest(error.to_string()))?;
    match tls.connect_to(ip.into(), stream, deadline).await {
        Ok((stream, _)) => Ok(stream),
        Err(TlsError::Timeout) => Err(ProbeFailure::Deadline),
        Err(error) => Err(ProbeFailure::Tls(error)),
    }
}

/// Rejects a TCP self-connect: it would call a pod ready that does not even run.
fn not_to_itself(stream: TcpStream, address: SocketAddr) -> Result<TcpStream, ProbeFailure> {
    match (stream.local_addr(), stream.peer_addr()) {
        (Ok(local), Ok(peer)) if local == peer => Err(ProbeFailure::SelfConnect(address)),
        (Ok(_), Ok(_)) => Ok(stream),
        // The connection is closed already.
        (Err(source), _) | (_, Err(source)) => Err(ProbeFailure::Connect { address, source }),
    }
}

/// Whether file descriptors, ports or memory ran out on our side.
fn is_ours(error: &io::Error) -> bool {
    let ours = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EADDRNOTAVAIL];
    error.raw_os_error().is_some_and(|code| ours.contains(&code))
}

/// Awaits `round_trip` while it drives `connection`. The connection may end first, with the rest of the response buffered.
async fn alongside<T>(connection: impl Future, round_trip: impl Future<Output = T>) -> T {
    let (connection, mut round_trip) = (std::pin::pin!(connection), std::pin::pin!(round_trip));
    tokio::select! {
        biased;
        done = &mut round_trip => done,
        _ = connection => round_trip.await,
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpSocket;

    use super::*;

    #[tokio::test]
    async fn a_connection_to_itself_proves_nothing() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        // A bound socket that connects to its own port: what the kernel does by chance on a closed ephemeral port.
        let stream = socket.connect(address).await.unwrap();
        let failure = not_to_itself(stream, address).unwrap_err();
        assert!(matches!(failure, ProbeFailure::SelfConnect(at) if at == address), "{failure}");
        assert!(failure.unreached());
    }

    #[test]
    fn what_runs_out_on_our_side_is_not_blamed_on_the_pod() {
        for (code, ours) in [
            (libc::EMFILE, true),
            (libc::EADDRNOTAVAIL, true),
            (libc::ENOBUFS, true),
            (libc::ECONNREFUSED, false),
            (libc::EHOSTUNREACH, false),
        ] {
            assert_eq!(is_ours(&io::Error::from_raw_os_error(code)), ours, "{code}");
        }
    }
}
