//! Typical apps: Python, Node, and an app with a fixed port.

use std::collections::BTreeSet;
use std::net::TcpListener;

use rouse_e2e::rouse::Launch;
use rouse_e2e::wait::eventually;

use crate::fixture::{ask, printed, programs, test_app, uid, up, yaml};

pub(crate) async fn a_python_server_serves_the_files_of_its_folder_beside_the_file() {
    let apps =
        "  site:\n    command: [python3, -m, http.server, $PORT, --bind, $HOST]\n    workdir: public\n";
    let launch = Launch::empty()
        .file("shop/rouse.yaml", &yaml(apps))
        .file("shop/public/greeting.txt", "good morning\n")
        .argument("shop/rouse.yaml");
    let rouse = launch.up(&programs()).await;
    let answer = ask(&rouse, "site", "/greeting.txt").await;
    assert_eq!((answer.status.as_u16(), answer.text().as_str()), (200, "good morning\n"));
    assert_eq!(answer.header("x-rouse-cold-start"), "true");
    rouse.stop().await;
}

const SERVER: &str = "
const http = require('http');
const server = http.createServer((request, response) => response.end(`node for ${request.url}`));
server.listen(process.env.PORT, process.env.HOST);
process.on('SIGTERM', () => server.close(() => process.exit(0)));
";

pub(crate) async fn a_command_may_be_one_string_and_the_environment_knows_port_host_and_name() {
    let command = format!("sh -c 'echo \"$$X\"; exec {}'", test_app());
    let env = "{X: '$NAME at $HOST:$PORT for $$5'}";
    let rouse = up(&format!("  app:\n    command: {command}\n    env: {env}\n")).await;
    assert_eq!(ask(&rouse, "app", "/").await.status, 200);
    let pod = rouse.admin.service("app").await.endpoints.remove(0).address;
    printed(&rouse, &format!("app-1 | app-1 at {pod} for $5"), 1).await;
    rouse.stop().await;
}

pub(crate) async fn a_node_server_runs_as_it_is() {
    let launch = Launch::of(&yaml("  web: {command: [node, server.js]}\n")).file("server.js", SERVER);
    let rouse = launch.up(&programs()).await;
    for cold in ["true", "false"] {
        let answer = ask(&rouse, "web", "/page?n=1").await;
        assert_eq!((answer.status.as_u16(), answer.text().as_str()), (200, "node for /page?n=1"));
        assert_eq!(answer.header("x-rouse-cold-start"), cold);
    }
    rouse.stop().await;
}

pub(crate) async fn pods_with_a_fixed_port_have_an_address_each_and_share_the_requests() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let app = test_app();
    let rouse = up(&format!("  web: {{command: [{app}], port: {port}, scale: {{min: 2, max: 2}}}}\n")).await;
    let service = rouse
        .admin
        .until("web", "two ready pods", |web| {
            web.endpoints.iter().filter(|pod| pod.state == "Ready").count() == 2
        })
        .await;
    let addresses: BTreeSet<_> = service.endpoints.iter().map(|pod| pod.address).collect();
    assert_eq!(addresses.len(), 2, "{addresses:?}");
    assert!(addresses.iter().all(|it| it.ip().is_loopback() && it.port() == port), "{addresses:?}");
    let pods: BTreeSet<String> = service.endpoints.iter().map(|pod| pod.uid.clone()).collect();
    let mut served = BTreeSet::new();
    eventually("an answer of each pod", async || {
        served.insert(uid(&rouse, "web").await);
        (served == pods).then_some(())
    })
    .await;
    rouse.stop().await;
}
