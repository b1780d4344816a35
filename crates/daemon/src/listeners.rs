//! Opens the sockets of a command (requests, requests over TLS, admin API, registrations, xDS), all or none, before it starts pods or
//! watches.

use std::net::SocketAddr;
use std::sync::Arc;

use rouse_config::settings::{AnySetting, SettingsDiagnostics, Values};
use rouse_net::listen::{BindError, Listener, bind};
use rouse_net::tls::ServerTls;
use rouse_proxy::listen::{ListenerOptions, ProxyListener};

use crate::failure::CommandError;

/// Where a role listens.
#[derive(Debug, Clone)]
pub struct ListenAddresses {
    /// For requests.
    pub plain: Vec<SocketAddr>,
    /// For requests over TLS.
    pub secure: Vec<SocketAddr>,
    /// For the admin API.
    pub admin: SocketAddr,
    /// For registrations of pods.
    pub register: Option<SocketAddr>,
    /// For Envoys that fetch their configuration.
    pub xds: Option<SocketAddr>,
}

/// The purpose of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Plain,
    Secure,
    Admin,
    Register,
    Xds,
}

/// The open sockets.
#[derive(Debug)]
pub(crate) struct Listeners {
    plain: Vec<Listener>,
    secure: Vec<Listener>,
    admin: Listener,
    /// For registrations. The role takes it.
    pub(crate) register: Option<Listener>,
    /// For Envoys. The role takes it.
    pub(crate) xds: Option<Listener>,
    /// How the connections of all listeners for requests begin, apart from TLS.
    pub(crate) options: ListenerOptions,
}

impl Listeners {
    /// Opens all sockets, or none. `refused` adds the next step to an error.
    pub(crate) fn open(
        addresses: &ListenAddresses,
        refused: impl Fn(&BindError, Purpose) -> CommandError,
    ) -> Result<Self, CommandError> {
        let open = |addresses: &[_], purpose| bind(addresses).map_err(|error| refused(&error, purpose));
        let plain = open(&addresses.plain, Purpose::Plain)?;
        let secure = open(&addresses.secure, Purpose::Secure)?;
        let none = || CommandError::Failed("cannot listen on the admin address".to_owned());
        let admin = open(&[addresses.admin], Purpose::Admin)?.pop().ok_or_else(none)?;
        let register = open(addresses.register.as_slice(), Purpose::Register)?.pop();
        let xds = open(addresses.xds.as_slice(), Purpose::Xds)?.pop();
        Ok(Self { plain, secure, admin, register, xds, options: ListenerOptions::default() })
    }

    /// The addresses with the ports that the system chose.
    pub(crate) fn addresses(&self) -> ListenAddresses {
        ListenAddresses {
            plain: self.plain.iter().map(Listener::address).collect(),
            secure: self.secure.iter().map(Listener::address).collect(),
            admin: self.admin.address(),
            register: self.register.as_ref().map(Listener::address),
            xds: self.xds.as_ref().map(Listener::address),
        }
    }

    /// The sockets themselves: those for requests, and the admin's.
    pub(crate) fn into_parts(self, tls: Option<&Arc<ServerTls>>) -> (Vec<ProxyListener>, Listener) {
        let Self { plain, secure, admin, options, register: _, xds: _ } = self;
        let with_tls = options.clone().with_tls(tls);
        let plain = plain.into_iter().map(|listener| ProxyListener { listener, options: options.clone() });
        let secure = secure.into_iter().map(|listener| ProxyListener { listener, options: with_tls.clone() });
        (plain.chain(secure).collect(), admin)
    }
}

/// Rejects two listeners on one address. Each address has the setting that names it.
pub(crate) fn overlap(
    all: &[(&'static dyn AnySetting, SocketAddr)],
    values: &Values,
    reading: &mut SettingsDiagnostics,
) {
    for (index, (setting, address)) in all.iter().enumerate() {
        let collision = all.iter().take(index).find(|(_, first)| collide(*first, *address));
        if let Some((other, first)) = collision {
            let (name, other_name) = (setting.name(), other.name());
            let what = format!("{name} {address} and {other_name} {first} overlap: choose another port");
            reading.problem(values.first_origin(&[*setting, *other]), what);
        }
    }
}

fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let everywhere = a.is_ipv4() == b.is_ipv4() && (a.ip().is_unspecified() || b.ip().is_unspecified());
    // Port 0 stands for any free port, a different one each time.
    a.port() == b.port() && a.port() != 0 && (a.ip() == b.ip() || everywhere)
}
