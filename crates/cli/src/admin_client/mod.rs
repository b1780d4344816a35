//! The commands `rouse status`, `restart`, `scale` and `logs`, which use the admin API of a running `rouse up`.

mod client;
mod status_text;

use std::collections::BTreeSet;
use std::time::Duration;

use http::{Method, StatusCode};
use rouse_core::endpoint::State;
use serde::Deserialize;
use serde_json::json;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

use crate::CommandError;
use crate::Streams;
use crate::args::{LogsArgs, Pods, Restart, ScaleArgs, Status, StatusFormat};
use client::AdminAnswer;
pub(crate) use client::Client;
use rouse_config::duration::HumanDuration;
use rouse_daemon::admin::report::{ColdStartView, PodView, ServiceView};

/// The namespace of all apps of a file.
const NAMESPACE: &str = "local";
const SERVICES: &str = "/api/v1/services";
/// How many cold starts `status` shows.
const COLD_STARTS: usize = 5;
/// How often the progress of a restart is checked.
const LOOK: Duration = Duration::from_millis(200);

/// `rouse status`.
pub(crate) fn status(status: &Status, streams: &mut Streams<'_>) -> Result<(), CommandError> {
    let client = Client::new(status.admin.admin);
    let runtime = runtime()?;
    let services = runtime.block_on(client.request(Method::GET, SERVICES, None))?.expect_ok()?;
    if status.output == StatusFormat::Json {
        streams.out.write_all(&services)?;
        return Ok(streams.out.write_all(b"\n")?);
    }
    let path = format!("/api/v1/cold-starts?limit={COLD_STARTS}");
    let cold = runtime.block_on(client.request(Method::GET, &path, None))?.expect_ok()?;
    let (services, cold): (Vec<ServiceView>, Vec<ColdStartView>) = (read(&services)?, read(&cold)?);
    Ok(status_text::write(streams.out, &services, &cold)?)
}

/// `rouse restart`.
pub(crate) fn restart(restart: &Restart, streams: &mut Streams<'_>) -> Result<(), CommandError> {
    let client = Client::new(restart.admin.admin);
    let app = &restart.app;
    runtime()?.block_on(async {
        let old = service(&client, app).await?;
        accepted(client.request(Method::POST, &path(app, "restart"), None).await?)?;
        if restart.no_wait {
            return Ok(writeln!(streams.out, "{app}: its pods are being replaced")?);
        }
        let old: BTreeSet<String> = old.endpoints.into_iter().map(|pod| pod.uid).collect();
        if old.is_empty() {
            return Ok(writeln!(streams.out, "{app}: has no pods, so there is nothing to replace")?);
        }
        replaced(&client, app, &old, restart.timeout, streams).await
    })
}

/// Waits until all `old` pods are replaced, and prints the progress.
async fn replaced(
    client: &Client,
    app: &str,
    old: &BTreeSet<String>,
    limit: HumanDuration,
    streams: &mut Streams<'_>,
) -> Result<(), CommandError> {
    let deadline = Instant::now() + limit.get();
    let (mut looks, mut reported) = (interval(LOOK), None);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut trouble = None;
    while timeout_at(deadline, looks.tick()).await.is_ok() {
        let now = service(client, app).await?;
        let (done, over) = progress(old, &now);
        if reported != Some(done) {
            reported = Some(done);
            writeln!(streams.out, "{app}: {done} of {} pods replaced", old.len())?;
            streams.out.flush()?;
        }
        trouble = now.trouble;
        if over {
            let why = trouble.filter(|_| done < old.len());
            return match why {
                Some(why) => Err(CommandError::Failed(format!(
                    "{app}: {done} of {} pods replaced: {why}\n  `rouse logs {app}` shows its output",
                    old.len()
                ))),
                None => Ok(()),
            };
        }
    }
    let why = trouble.map(|trouble| format!(": {trouble}")).unwrap_or_default();
    Err(CommandError::Failed(format!(
        "{app}: not all pods were replaced within {limit}{why}\n  the restart goes on; `rouse status` shows its progress"
    )))
}

/// How many of the `old` pods are replaced by a ready one, and whether the restart is over. A pod that ended without a
/// successor, because the app fails or fewer pods are needed, is not replaced.
fn progress(old: &BTreeSet<String>, now: &ServiceView) -> (usize, bool) {
    let left = now.endpoints.iter().filter(|pod| old.contains(&pod.uid)).count();
    let is_new = |pod: &&PodView| pod.state == State::Ready.as_str() && !old.contains(&pod.uid);
    let new = now.endpoints.iter().filter(is_new).count();
    let done = old.len().saturating_sub(left).min(new);
    let desired = now.desired.map_or(usize::MAX, |desired| usize::try_from(desired).unwrap_or(usize::MAX));
    let wanted = old.len().min(desired);
    (done, left == 0 && !now.rolling && done >= wanted)
}

/// `rouse scale`.
pub(crate) fn scale(scale: &ScaleArgs, streams: &mut Streams<'_>) -> Result<(), CommandError> {
    let client = Client::new(scale.admin.admin);
    let app = &scale.app;
    let (pods, said) = match scale.pods {
        Pods::Auto => (None, "the autoscaler decides again".to_owned()),
        Pods::Pinned(0) => (Some(0), "goes to zero; the next request wakes it".to_owned()),
        Pods::Pinned(pods) => (Some(pods), format!("stays at {pods} until `rouse scale {app} auto`")),
    };
    let body = json!({"pods": pods}).to_string();
    let answer = runtime()?.block_on(client.request(Method::POST, &path(app, "scale"), Some(body)))?;
    accepted(answer)?;
    Ok(writeln!(streams.out, "{app}: {said}")?)
}

/// `rouse logs`.
pub(crate) fn logs(logs: &LogsArgs, streams: &mut Streams<'_>) -> Result<(), CommandError> {
    let client = Client::new(logs.admin.admin);
    let path = format!("{}?follow={}", path(&logs.app, "logs"), logs.follow);
    runtime()?.block_on(client.copy(&path, logs.follow, streams.out))
}

pub(crate) fn runtime() -> Result<Runtime, CommandError> {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| CommandError::Io { what: "cannot start the runtime".to_owned(), error })
}

fn path(app: &str, what: &str) -> String {
    // Other characters are in no app's name, and could change the path.
    let plain: String =
        app.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' }).collect();
    format!("{SERVICES}/{NAMESPACE}/{plain}/{what}")
}

/// The service of `app` as it is now.
async fn service(client: &Client, app: &str) -> Result<ServiceView, CommandError> {
    let body = client.request(Method::GET, SERVICES, None).await?.expect_ok()?;
    let services: Vec<ServiceView> = read(&body)?;
    let id = format!("{NAMESPACE}/{app}");
    let known: Vec<String> = services.iter().map(|service| service.service.clone()).collect();
    services.into_iter().find(|service| service.service == id).ok_or_else(|| {
        let known: Vec<&str> = known.iter().map(|id| id.strip_prefix("local/").unwrap_or(id)).collect();
        CommandError::Input(format!("there is no app {app:?}; the apps are: {}", known.join(", ")))
    })
}

/// The response to a command for an app. An app that does not exist is a usage error.
fn accepted(answer: AdminAnswer) -> Result<(), CommandError> {
    match answer.status {
        StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST => Err(CommandError::Input(answer.error())),
        _ => answer.expect_ok().map(|_| ()),
    }
}

fn read<T: for<'d> Deserialize<'d>>(body: &[u8]) -> Result<T, CommandError> {
    serde_json::from_slice(body).map_err(|error| {
        CommandError::Failed(format!("the response is not from a `rouse up` of this version: {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rouse_daemon::admin::report::ServicePhase;

    /// An app with these pods, each a UID and a state.
    fn app(desired: u32, pods: &[(&str, State)]) -> ServiceView {
        let pod = |(uid, state): &(&str, State)| PodView {
            pod: "app-1".into(),
            uid: (*uid).into(),
            address: "127.0.0.1:1".into(),
            state: state.to_string(),
            source: None,
            in_flight: 0,
            pid: None,
        };
        ServiceView {
            service: "local/app".into(),
            state: ServicePhase::Waking,
            holds: 0,
            in_flight: 0,
            requests: 0,
            desired: Some(desired),
            ready: 0,
            pinned: None,
            rolling: false,
            reason: String::new(),
            trouble: None,
            stale: false,
            endpoints: pods.iter().map(pod).collect(),
        }
    }

    #[test]
    fn a_pod_is_replaced_when_it_is_gone_and_its_successor_is_ready() {
        let old: BTreeSet<String> = ["a".to_owned(), "b".to_owned()].into();
        let cases = [
            (app(2, &[("a", State::Ready), ("b", State::Ready)]), (0, false)),
            (app(2, &[("a", State::Ready), ("b", State::Ready), ("c", State::Ready)]), (0, false)),
            (app(2, &[("a", State::Ready), ("c", State::Ready)]), (1, false)),
            (app(2, &[("c", State::Ready), ("d", State::Ready)]), (2, true)),
            // A broken app: its pods are gone, and none came after them.
            (app(2, &[]), (0, false)),
            (app(2, &[("c", State::Starting)]), (0, false)),
            (app(0, &[]), (0, true)),
        ];
        for (now, expected) in cases {
            assert_eq!(progress(&old, &now), expected, "{:?}", now.endpoints);
        }
    }
}
