//! A gibibyte each way: the gateway's memory does not grow with the body.

use http::Method;
use rouse_e2e::body;
use rouse_e2e::client::raw::Raw;
use rouse_e2e::client::session::{self, Http};
use rouse_e2e::config::App;
use rouse_e2e::pattern::Checker;
use rouse_e2e::proc::Memory;
use rouse_e2e::target::Target;
use rouse_e2e::ways;

const GIB: u64 = 1024 * 1024 * 1024;
const GROWS_AT_MOST: u64 = 32 * 1024;

async fn watch(target: &Target) -> Option<Memory> {
    // Memory that the first request allocates does not count as growth.
    assert_eq!(session::get(target, "/").await.status, 200);
    target.gateway.as_ref().map(|gateway| Memory::watch(gateway.pid))
}

fn assert_small(memory: Option<&Memory>) {
    if let Some(grown) = memory.map(Memory::grown) {
        assert!(grown < GROWS_AT_MOST, "the gateway grew by {grown} KiB");
    }
}

ways!(a_gibibyte_comes_down, App::http());
async fn a_gibibyte_comes_down(target: Target) {
    let memory = watch(&target).await;
    let mut client = Raw::connect(&target).await;
    client.get(&target, &format!("/bytes/{GIB}")).await;
    assert_eq!(client.head().await.status, 200);
    let mut checker = Checker::default();
    while checker.count < GIB {
        checker.take(&client.some().await.expect("all of it"));
    }
    assert!(checker.intact());
    assert_eq!(checker.count, GIB);
    assert_small(memory.as_ref());
}

ways!(a_gibibyte_goes_up, App::http());
async fn a_gibibyte_goes_up(target: Target) {
    let memory = watch(&target).await;
    let mut client = Http::one(&target).await;
    let request = client.request(Method::POST, "/sink").body(body::patterned(GIB, |_| ())).unwrap();
    let sunk = client.whole(request).await.json();
    assert_eq!((&sunk["count"], &sunk["intact"]), (&GIB.into(), &true.into()));
    assert_small(memory.as_ref());
}

ways!(a_gibibyte_comes_down_over_http_2, App::h2c());
async fn a_gibibyte_comes_down_over_http_2(target: Target) {
    let memory = watch(&target).await;
    let mut client = Http::two(&target).await;
    let checker = client.check_pattern(&format!("/bytes/{GIB}")).await;
    assert!(checker.intact());
    assert_eq!(checker.count, GIB);
    assert_small(memory.as_ref());
}
