//! Ports that are already in use.

use std::net::TcpListener;

use rouse_e2e::config::{App, Config};
use rouse_e2e::rouse::{Launch, Rouse};

use crate::fixture::{programs, uid, way};

fn good() -> String {
    Config::of(App::http()).yaml(&programs())
}

pub(crate) async fn a_busy_port_is_an_error_that_names_its_process_and_the_next_step() {
    let ours = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = ours.local_addr().unwrap();
    let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
    for flag in ["--listen", "--admin"] {
        let ran = Launch::of(&good()).argument(flag).argument(taken.to_string()).refused(&programs()).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
        let holder = format!("pid {} ({})", std::process::id(), comm.trim_end());
        for part in [format!("cannot listen on {taken}"), holder, format!("rouse up {flag} 127.0.0.1:0")] {
            assert!(ran.stderr.contains(&part), "no {part:?} in {}", ran.stderr);
        }
    }
}

pub(crate) async fn a_second_rouse_up_on_the_same_address_is_refused_and_the_first_serves_on() {
    let first = Rouse::start(&programs(), Config::of(App::http())).await;
    let before = uid(&first, "app").await;
    for (flag, taken) in [("--listen", first.address), ("--admin", first.admin.address())] {
        let ran = Launch::of(&good()).argument(flag).argument(taken.to_string()).refused(&programs()).await;
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.stderr.contains(&format!("pid {} (", first.pid)), "{}", ran.stderr);
        assert!(ran.stderr.contains("another `rouse up` may run there"), "{}", ran.stderr);
        // If the two processes shared the port, some of these connections would reach the other one.
        let mut http = Vec::new();
        for _ in 0..20 {
            http.push(rouse_e2e::client::session::get(&way(&first, "app"), "/").await.text());
        }
        assert!(http.iter().all(|text| text.starts_with(&before)), "{http:?}");
    }
    first.stop().await;
}
