//! A `rouse up` process that is suspended for a while, for example with the whole machine, and then continues.

use std::time::Duration;

use rouse_e2e::client::raw::Raw;
use rouse_e2e::config::{App, Config};
use rouse_e2e::proc;
use rouse_e2e::rouse::Rouse;
use rouse_e2e::wait::eventually;
use rustix::process::Signal;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::fixture::{programs, uid, way};

/// Long enough for a slow machine to connect and to stop the process.
const IDLE: Duration = Duration::from_secs(5);

pub(crate) async fn a_request_that_came_meanwhile_is_answered_although_its_connection_has_been_idle_for_too_long()
 {
    let config = Config::of(App::http().warm()).flag("--idle-timeout", &format!("{}s", IDLE.as_secs()));
    let rouse = Rouse::start(&programs(), config).await;
    let target = way(&rouse, "app");
    uid(&rouse, "app").await;
    let mut clients = Vec::new();
    for used in [true, false] {
        let stream = TcpStream::connect(target.address).await.unwrap();
        let ends = (target.address, stream.local_addr().unwrap());
        eventually("the connection to be accepted", async || {
            proc::sockets(rouse.pid).contains(&ends).then_some(())
        })
        .await;
        let mut client = Raw::over(stream);
        if used {
            client.get(&target, "/").await;
            assert_eq!(client.response().await.0.status, 200);
        }
        clients.push(client);
    }
    rouse.signal(Signal::STOP);
    let stopped = Instant::now();
    eventually("the idle timeout to pass", async || (stopped.elapsed() > IDLE).then_some(())).await;
    for client in &mut clients {
        client.get(&target, "/").await;
    }
    rouse.signal(Signal::CONT);
    for client in &mut clients {
        assert_eq!(client.response().await.0.status, 200);
    }
    rouse.stop().await;
}

pub(crate) async fn a_request_that_came_before_the_signal_to_stop_is_answered() {
    let rouse = Rouse::start(&programs(), Config::of(App::http().warm())).await;
    let target = way(&rouse, "app");
    let mut clients = Vec::new();
    for _ in 0..50 {
        let mut client = Raw::over(TcpStream::connect(target.address).await.unwrap());
        client.get(&target, "/").await;
        assert_eq!(client.response().await.0.status, 200);
        clients.push(client);
    }
    // Suspended, so that it gets all at once: the signal, and a request on each idle connection.
    rouse.signal(Signal::STOP);
    for client in &mut clients {
        client.get(&target, "/").await;
    }
    let children = rouse.children();
    rouse.signal(Signal::TERM);
    rouse.signal(Signal::CONT);
    for client in &mut clients {
        assert_eq!(client.response().await.0.status, 200);
    }
    rouse.stopped(&children).await;
}
