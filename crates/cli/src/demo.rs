//! The app of the built-in demo: a small HTTP server that greets.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::CommandError;
use crate::args::DemoApp;

/// How long requests may take to finish after a signal to stop.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until SIGTERM or SIGINT.
pub(crate) fn run(app: &DemoApp) -> Result<(), CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let served = runtime.and_then(|runtime| runtime.block_on(serve(app)));
    served
        .map_err(|error| CommandError::Io { what: format!("the demo app {} cannot serve", app.name), error })
}

async fn serve(app: &DemoApp) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let start = app.start_after.get();
    if !start.is_zero() {
        say(&format!("starting takes me {} …", app.start_after));
        tokio::select! {
            () = sleep_until(Instant::now() + start) => {}
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        }
    }
    let address = SocketAddr::new(app.host, app.port.get());
    let listener = TcpListener::bind(address).await?;
    say(&format!("listening on http://{address}"));
    let name: Arc<str> = app.name.as_str().into();
    let (graceful, mut connections) = (GracefulShutdown::new(), JoinSet::new());
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let name = Arc::clone(&name);
                    let answer = service_fn(move |request| {
                        let response = answer(&name, address, &request);
                        async move { Ok::<_, Infallible>(response) }
                    });
                    let mut http = http1::Builder::new();
                    http.timer(TokioTimer::new());
                    connections.spawn(graceful.watch(http.serve_connection(TokioIo::new(stream), answer)));
                }
                Err(_) => sleep_until(Instant::now() + ACCEPT_PAUSE).await,
            }
        }
    }
    drop(listener);
    timeout(LEAVE_TIMEOUT, graceful.shutdown()).await.ok();
    say("finished my requests, bye");
    Ok(())
}

/// The response: a greeting with the process ID.
fn answer(name: &str, address: SocketAddr, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let text = match request.uri().path() {
        "/healthz" => "ok\n".to_owned(),
        path => format!(
            "Hello from {name}! I am process {} on {address}, and you asked for {path}.\n\
             Leave me alone for 15 seconds and I am gone; ask again and I am back.\n",
            std::process::id()
        ),
    };
    let mut response = Response::new(Full::from(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// Prints a line, which `rouse up` shows and `rouse logs` keeps.
fn say(text: &str) {
    use io::Write as _;
    // Ignore an error: the reader may have closed the pipe.
    writeln!(io::stdout(), "{text}").ok();
}

#[cfg(test)]
mod tests {
    use rouse_daemon::rouse_yaml;
    use rouse_daemon::up::source::DEMO;

    #[test]
    fn the_demo_needs_nothing_but_the_binary() {
        let config = rouse_yaml::read(DEMO, "the demo").unwrap();
        let commands: Vec<&str> = config.apps.iter().map(|app| app.command.program.as_str()).collect();
        assert_eq!(commands, ["rouse", "rouse"]);
        for app in &config.apps {
            assert_eq!(app.command.arguments.first().map(String::as_str), Some(crate::args::DEMO_APP));
            assert_eq!(app.scale.settings().idle_after.as_secs(), 15);
        }
    }
}
