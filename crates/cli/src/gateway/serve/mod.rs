//! A running gateway: follows the cluster, serves requests, and leaves in good order.

mod certificates;
mod follow;
pub(super) mod opened;
mod own;
mod probers;
pub mod routes;
mod system;
pub mod upstream;

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use anstream::AutoStream;
use rouse_net::listen::{Listener, bind};
use rouse_proxy::serve::Door;
use tokio::time::timeout;

use super::settings::Settings;
use crate::config::Span;
use crate::failure::Failure;
use crate::process::drain::{self, Patience};
use crate::process::screen::Screen;
use crate::process::signals::{Signal, Signals};
use crate::process::{self, files};
use crate::up::lines;
use certificates::Certificates;
use opened::Opened;
use system::System;

/// How long whoever reads our output may take to read the last lines.
const LAST_LINES: Duration = Duration::from_secs(2);
/// How long threads and tasks may take that have been told to end at once.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Runs until a signal, or until something breaks.
pub(super) fn run(settings: &Settings) -> Result<(), Failure> {
    let opened = opened::open(settings).map_err(|problems| Failure::Input(problems.to_string()))?;
    let doors = Doors::open(settings)?;
    files::raise_open_files();
    let runtime =
        process::control().map_err(|error| Failure::Io { what: "cannot start threads".to_owned(), error })?;
    let ended = runtime.block_on(serve(settings, doors, opened));
    // Whatever blocks now has nothing left to do.
    runtime.shutdown_timeout(Duration::from_millis(100));
    ended
}

/// The sockets: opened before anything else, so that nothing has to be undone.
#[derive(Debug)]
struct Doors {
    plain: Vec<Listener>,
    secure: Vec<Listener>,
    admin: Listener,
}

impl Doors {
    fn open(settings: &Settings) -> Result<Self, Failure> {
        let open = |addresses: &[_], flag: &str| {
            bind(addresses).map_err(|error| Failure::Failed(format!("{error}\n  {flag} says so")))
        };
        let plain = open(&settings.listen, "--listen")?;
        let secure = open(&settings.tls.listen, "--tls-listen")?;
        let none = || Failure::Failed("cannot listen on the admin address".to_owned());
        let admin = open(&[settings.admin], "--admin")?.pop().ok_or_else(none)?;
        Ok(Self { plain, secure, admin })
    }

    /// What scripts and people read first.
    fn lines(&self) -> Vec<String> {
        let plain = self.plain.iter().map(|door| format!("listening on http://{}", door.address()));
        let secure = self.secure.iter().map(|door| format!("listening on https://{}", door.address()));
        let admin = format!("admin on http://{}", self.admin.address());
        plain.chain(secure).chain([admin]).collect()
    }

    /// Where the gateway itself can be reached.
    fn own_addresses(&self) -> Vec<SocketAddr> {
        let all = self.plain.iter().chain(&self.secure).chain([&self.admin]);
        own::sockets(&all.map(Listener::address).collect::<Vec<_>>())
    }

    fn into_parts(self, certificates: Option<&Certificates>) -> (Vec<Door>, Listener) {
        let tls = certificates.map(|certificates| &certificates.server);
        let secure = self.secure.into_iter().map(|listener| Door { listener, tls: tls.cloned() });
        (self.plain.into_iter().map(Door::from).chain(secure).collect(), self.admin)
    }
}

async fn serve(settings: &Settings, doors: Doors, opened: Opened) -> Result<(), Failure> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error| Failure::Io { what, error }
    };
    // The access log has the standard output for itself.
    let (screen, painter) = Screen::open(AutoStream::auto(io::stderr()))
        .map_err(failed("cannot start the thread that prints"))?;
    let mut signals = Signals::listen().map_err(failed("cannot listen to signals"))?;
    let ended = live(settings, doors, opened, &mut signals, &screen).await;
    painter.finish(LAST_LINES).await;
    ended
}

async fn live(
    settings: &Settings,
    doors: Doors,
    opened: Opened,
    signals: &mut Signals,
    screen: &Screen,
) -> Result<(), Failure> {
    let greeting = doors.lines();
    let Opened { certificates, warnings } = opened;
    for warning in &warnings {
        screen.say(lines::warning(&warning.to_string()));
    }
    let mut system = System::start(settings, doors, certificates, screen).await?;
    for line in greeting {
        screen.say(line);
    }
    let broken = loop {
        tokio::select! {
            signal = signals.next() => match signal {
                Signal::Leave => break None,
                Signal::Reload => screen.say("settings are read at the start only; certificates are read whenever they change"),
            },
            broken = system.run() => break Some(broken),
        }
    };
    if let Some(what) = &broken {
        screen.say(lines::error(&format!("{what}: stopping")));
    }
    let patience =
        Patience { delay: Span::from(settings.shutdown_delay), timeout: Span::from(settings.drain_timeout) };
    let left = system.leave(patience, signals, screen).await;
    timeout(AT_ONCE, system.end()).await.ok();
    match broken {
        Some(what) => Err(Failure::Failed(what)),
        None if left.hurried => Err(Failure::Failed("stopped at once by a second signal".to_owned())),
        None => {
            drain::farewell(left, patience, screen);
            Ok(())
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this is where the time of day comes from")]
fn time_of_day() -> SystemTime {
    SystemTime::now()
}
