//! Those who tell the screen and the metrics what happens.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use rouse_core::registry::Registry;
use rouse_core::timeline::Read;
use rouse_local::engine::Event;
use rouse_local::output::{Line, Log};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;

use super::lines;
use crate::admin::metrics::Tally;
use crate::process::screen::Screen;

/// Tells of every event of the engine.
pub(super) async fn events(
    mut events: Receiver<Event>,
    registry: Arc<Registry>,
    tally: Tally,
    screen: Screen,
) {
    loop {
        match events.recv().await {
            Ok(event) => {
                tally.event(&event, &registry);
                if let Some(line) = lines::event(&event) {
                    screen.say(line);
                }
            }
            Err(RecvError::Lagged(count)) => {
                screen.say(lines::warning(&format!("{count} events are missing here: there were too many")));
            }
            Err(RecvError::Closed) => return,
        }
    }
}

/// Tells of every cold start.
pub(super) async fn cold_starts(registry: Arc<Registry>, tally: Tally, screen: Screen) {
    let mut read = Read::default();
    loop {
        for cold in registry.cold_starts().after(&mut read).await {
            tally.cold_start(&cold);
            screen.say(lines::cold_start(&cold));
        }
    }
}

/// Those who pass on what pods print: one for each app.
#[derive(Debug)]
pub(super) struct Outputs {
    screen: Screen,
    tasks: JoinSet<()>,
    /// Weak: a follower ends when its app is gone, and that is when its log is.
    followed: HashMap<String, Weak<Log>>,
}

impl Outputs {
    pub(super) fn new(screen: Screen) -> Self {
        Self { screen, tasks: JoinSet::new(), followed: HashMap::new() }
    }

    /// Follows those of `logs` that are not followed yet.
    pub(super) fn follow(&mut self, logs: impl IntoIterator<Item = (String, Arc<Log>)>) {
        while self.tasks.try_join_next().is_some() {}
        self.followed.retain(|_, log| log.strong_count() > 0);
        for (app, log) in logs {
            let known = self.followed.get(&app).and_then(Weak::upgrade);
            if known.is_some_and(|known| Arc::ptr_eq(&known, &log)) {
                continue;
            }
            self.followed.insert(app.clone(), Arc::downgrade(&log));
            let (before, live) = log.follow();
            self.tasks.spawn(output(app, before, live, self.screen.clone()));
        }
    }
}

async fn output(app: String, before: Vec<Line>, mut live: Receiver<Line>, screen: Screen) {
    for line in &before {
        screen.pass_on(lines::output(&app, line));
    }
    loop {
        match live.recv().await {
            Ok(printed) => screen.pass_on(lines::output(&app, &printed)),
            Err(RecvError::Lagged(count)) => screen.pass_on(lines::missed(&app, count)),
            Err(RecvError::Closed) => return,
        }
    }
}
