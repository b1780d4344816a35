//! Opens listening TCP sockets, and explains a failed bind: names the process that already listens on the address.

mod port_owner;

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

use port_owner::Holder;

/// The listen backlog. The kernel lowers it to its own limit.
const BACKLOG: i32 = 4096;

/// A listening TCP socket. It belongs to no runtime yet, so that several workers can share it.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// The listening address, with the actual port if port 0 was requested.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Duplicates the socket. Both accept from one queue, so closing one of them resets no connection.
    pub fn share(&self) -> io::Result<Self> {
        Ok(Self { listener: self.listener.try_clone()?, address: self.address })
    }

    /// The socket, non-blocking. Hand it to `tokio::net::TcpListener::from_std` inside the runtime that accepts.
    pub fn into_std(self) -> TcpListener {
        self.listener
    }
}

/// Listens on all of `addresses`, or on none. Port 0 requests any free port.
pub fn bind(addresses: &[SocketAddr]) -> Result<Vec<Listener>, BindError> {
    let listen = |&address: &SocketAddr| {
        listen(address, addresses).map_err(|reason| {
            let in_use = reason.kind() == ErrorKind::AddrInUse;
            BindError { address, reason, holder: in_use.then(|| port_owner::find(address)).flatten() }
        })
    };
    addresses.iter().map(listen).collect()
}

fn listen(address: SocketAddr, others: &[SocketAddr]) -> io::Result<Listener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // `[::]` accepts IPv4 too, unless the list has an IPv4 socket for the same port, whose bind would fail otherwise.
        let port = |other: &SocketAddr| other.is_ipv4() && other.port() == address.port();
        socket.set_only_v6(others.iter().any(port))?;
    }
    // Without this, a restart would have to wait a minute for the connections of the last run in TIME_WAIT.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    // Small responses must not wait for an acknowledgement. Accepted sockets inherit the option without a system call each.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let listener = TcpListener::from(socket);
    let address = listener.local_addr()?;
    Ok(Listener { listener, address })
}

/// Why an address cannot be listened on, and what to do.
#[derive(Debug)]
pub struct BindError {
    /// The address.
    pub address: SocketAddr,
    /// The error of the operating system.
    pub reason: io::Error,
    holder: Option<Holder>,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, port) = (self.address, self.address.port());
        write!(f, "cannot listen on {address}: {}", self.reason)?;
        match (self.reason.kind(), &self.holder) {
            (ErrorKind::AddrInUse, Some(holder)) => write!(f, "; {holder} listens there"),
            (ErrorKind::AddrInUse, None) => {
                write!(f, "; to see which process listens there: sudo ss -ltnp 'sport = :{port}'")
            }
            (ErrorKind::PermissionDenied, _) if (1..1024).contains(&port) => f.write_str(
                "; ports below 1024 are reserved: choose a higher one, or allow it with \
                 `setcap cap_net_bind_service=+ep` on the binary (in Kubernetes: add the capability \
                 NET_BIND_SERVICE)",
            ),
            (ErrorKind::AddrNotAvailable, _) => {
                f.write_str("; no interface of this machine has this address")
            }
            _ => Ok(()),
        }
    }
}

// The reason is part of the text. As a source it would be printed twice.
impl std::error::Error for BindError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_says_what_to_do() {
        let address = "127.0.0.1:80".parse().unwrap();
        let in_use = Some(Holder::Process { pid: 1234, command: "python3".into() });
        for (code, holder, hint) in [
            (libc::EADDRINUSE, in_use, "; pid 1234 (python3) listens there"),
            (libc::EADDRINUSE, Some(Holder::User(7)), "; a process of user 7 listens there"),
            (libc::EADDRINUSE, None, "sudo ss -ltnp 'sport = :80'"),
            (libc::EACCES, None, "setcap cap_net_bind_service=+ep"),
            (libc::EADDRNOTAVAIL, None, "no interface of this machine has this address"),
            (libc::EMFILE, None, "(os error 24)"),
        ] {
            let reason = io::Error::from_raw_os_error(code);
            let text = BindError { address, reason, holder }.to_string();
            assert!(text.starts_with("cannot listen on 127.0.0.1:80: ") && text.contains(hint), "{text}");
        }
    }
}
