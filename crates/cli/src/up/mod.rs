//! `rouse up`: everything on this machine, from a file or the built-in demo, until a signal.

mod certificates;
mod doors;
mod follow;
mod leave;
pub mod lines;
pub mod plan;
mod reload;
pub mod source;
mod system;

use std::io;
use std::time::Duration;

use anstream::AutoStream;

use crate::args::Up;
use crate::config::Config;
use crate::failure::Failure;
use crate::process::screen::Screen;
use crate::process::signals::{Signal, Signals};
use crate::process::{self, files};
use certificates::Certificates;
use doors::Doors;
use leave::Reason;
use source::Source;
use system::System;

/// How long a terminal may take to show the last lines.
const LAST_LINES: Duration = Duration::from_secs(2);

/// Runs until a signal, or until something breaks.
pub(crate) fn run(up: &Up) -> Result<(), Failure> {
    let source = Source::find(up.file.as_deref())?;
    let config = source.read().map_err(|error| Failure::Input(error.to_string()))?;
    let certificates = certificates::open(&source, &config)?;
    source.check_log_folder(&config)?;
    let doors = Doors::open(up, &config)?;
    files::raise_open_files();
    let runtime =
        process::control().map_err(|error| Failure::Io { what: "cannot start threads".to_owned(), error })?;
    let ended = runtime.block_on(serve(up, &source, config, doors, certificates));
    // Whatever blocks now has nothing left to do.
    runtime.shutdown_timeout(Duration::from_millis(100));
    ended
}

async fn serve(
    up: &Up,
    source: &Source,
    config: Config,
    doors: Doors,
    certificates: Option<Certificates>,
) -> Result<(), Failure> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error| Failure::Io { what, error }
    };
    let (screen, painter) = Screen::open(AutoStream::auto(io::stdout()))
        .map_err(failed("cannot start the thread that prints"))?;
    let mut signals = Signals::listen().map_err(failed("cannot listen to signals"))?;
    let mut system = System::start(up, source, &config, (doors, certificates), &screen)
        .map_err(failed("cannot start to serve"))?;
    let reason = watch(source, config, up, &mut system, &mut signals, &screen).await;
    let ended = leave::leave(up, reason, system, &mut signals, &screen).await;
    painter.finish(LAST_LINES).await;
    ended
}

/// Serves, and reloads when asked to, until there is a reason to leave.
async fn watch(
    source: &Source,
    mut config: Config,
    up: &Up,
    system: &mut System,
    signals: &mut Signals,
    screen: &Screen,
) -> Reason {
    let mut changes = source.watch();
    loop {
        tokio::select! {
            signal = signals.next() => match signal {
                Signal::Leave => return Reason::Asked,
                Signal::Reload => {}
            },
            () = changes.next() => {}
            broken = system.broken() => return Reason::Broken(broken),
        }
        changes.seen();
        reload::reload(source, &mut config, up, system, screen);
    }
}
