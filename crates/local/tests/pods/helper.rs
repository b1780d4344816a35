//! A helper binary for tests: the guardian, a stand-in for `rouse up` that can be killed, and small apps.
//!
//! `guard COMMAND…` is the hidden subcommand. `up UID COMMAND…` runs one pod and prints what it prints, until it is
//! killed. `polite [FILE]` and `deaf` are apps that print `up`, and `asked` when they are asked to end: the first then
//! waits a while (and writes to FILE) and exits with 7, the other keeps running. `serve` is an app that answers every HTTP
//! request at $HOST:$PORT with 200.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::io::{self, Read as _, Write as _};
use std::net::TcpListener;
use std::process::ExitCode;
use std::time::Duration;

use rouse_core::endpoint::PodUid;
use rouse_local::address::AddressPool;
use rouse_local::command::CommandSpec;
use rouse_local::output::AppLog;
use rouse_local::process::{Launcher, Process, Start};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

type Outcome = Result<ExitCode, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    let mut arguments = env::args_os().skip(1);
    let outcome = match arguments.next().as_ref().and_then(|mode| mode.to_str()) {
        Some("guard") => Ok(rouse_local::guardian::main(arguments)),
        Some("up") => up(arguments),
        Some("polite") => polite(arguments.next()),
        Some("deaf") => deaf(),
        Some("serve") => serve(),
        _ => Ok(ExitCode::from(2)),
    };
    outcome.unwrap_or_else(|error| {
        writeln!(io::stderr(), "{error}").ok();
        ExitCode::FAILURE
    })
}

fn polite(file: Option<OsString>) -> Outcome {
    runtime()?.block_on(async {
        let mut asked = signal(SignalKind::terminate())?;
        writeln!(io::stdout(), "up")?;
        asked.recv().await;
        // The reader may be gone.
        writeln!(io::stdout(), "asked").ok();
        timeout(Duration::from_millis(200), std::future::pending::<()>()).await.ok();
        writeln!(io::stdout(), "bye").ok();
        if let Some(file) = file {
            std::fs::write(file, "bye")?;
        }
        Ok(ExitCode::from(7))
    })
}

fn deaf() -> Outcome {
    runtime()?.block_on(async {
        let mut asked = signal(SignalKind::terminate())?;
        writeln!(io::stdout(), "up")?;
        loop {
            asked.recv().await;
            writeln!(io::stdout(), "asked")?;
        }
    })
}

fn serve() -> Outcome {
    let (host, port) = (env::var("HOST")?, env::var("PORT")?.parse()?);
    let listener = TcpListener::bind((host.as_str(), port))?;
    loop {
        let (mut client, _) = listener.accept()?;
        client.set_read_timeout(Some(Duration::from_secs(1)))?;
        // A probe may leave at any moment.
        if client.read(&mut [0; 4096]).is_ok_and(|length| length > 0) {
            client.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").ok();
        }
    }
}

fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}

fn up(mut arguments: impl Iterator<Item = OsString>) -> Outcome {
    let uid = arguments.next().ok_or("no uid")?;
    let start = Start {
        name: "app-1".into(),
        uid: PodUid::new(&uid.to_string_lossy()),
        command: CommandSpec {
            argv: arguments.map(|argument| argument.to_string_lossy().into_owned()).collect(),
            env: BTreeMap::new(),
            workdir: env::current_dir()?,
        },
        address: AddressPool::new(u64::from(std::process::id()) << 32).auto()?,
        log: AppLog::new(1 << 20),
        input: std::sync::Arc::default(),
    };
    runtime()?.block_on(async {
        let mut follower = start.log.follow();
        let process = Process::spawn(&Launcher::this_program(["guard"])?, start).await?;
        loop {
            tokio::select! {
                Some(batch) = follower.next() => {
                    batch.lines.iter().try_for_each(|line| writeln!(io::stdout(), "{}", line.text))?;
                }
                _ = process.exited() => return Ok(ExitCode::SUCCESS),
            }
        }
    })
}
