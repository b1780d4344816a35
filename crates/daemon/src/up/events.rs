//! Prints and counts the events of the local engine, and prints the output of pods.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rouse_core::registry::Registry;
use rouse_local::engine::AppEvent;
use rouse_local::output::{AppLog, Batch, Follower, Stream};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::messages;
use crate::admin::metrics::EventMetrics;
use crate::process::console::Console;

/// Prints and counts every event of the engine.
pub(super) async fn follow(
    mut events: Receiver<AppEvent>,
    registry: Arc<Registry>,
    event_metrics: EventMetrics,
    console: Console,
) {
    loop {
        match events.recv().await {
            Ok(event) => {
                event_metrics.event(&event, &registry);
                if let Some(line) = messages::event(&event) {
                    console.say(line);
                }
            }
            Err(RecvError::Lagged(count)) => {
                console.warn(&format!("{count} events were skipped: they came too fast"));
            }
            Err(RecvError::Closed) => return,
        }
    }
}

/// Prints the output of pods, with one task for each app.
#[derive(Debug)]
pub(super) struct Outputs {
    console: Console,
    tasks: JoinSet<()>,
    /// Tells the tasks to print the remaining lines, and to end.
    last: CancellationToken,
    /// Weak: a task ends when its app's log is dropped.
    followed: HashMap<String, Weak<AppLog>>,
}

impl Outputs {
    pub(super) fn new(console: Console) -> Self {
        let (tasks, last) = (JoinSet::new(), CancellationToken::new());
        Self { console, tasks, last, followed: HashMap::new() }
    }

    /// Follows those of `logs` that are not followed yet.
    pub(super) fn follow(&mut self, logs: impl IntoIterator<Item = (String, Arc<AppLog>)>) {
        while self.tasks.try_join_next().is_some() {}
        self.followed.retain(|_, log| log.strong_count() > 0);
        for (app, log) in logs {
            let known = self.followed.get(&app).and_then(Weak::upgrade);
            if known.is_some_and(|known| Arc::ptr_eq(&known, &log)) {
                continue;
            }
            self.followed.insert(app.clone(), Arc::downgrade(&log));
            self.tasks.spawn(output(app, log.follow(), self.console.clone(), self.last.clone()));
        }
    }

    /// Prints the remaining output after the pods have ended, for at most `within`.
    pub(super) async fn finish(&mut self, within: Duration) {
        self.last.cancel();
        timeout(within, async { while self.tasks.join_next().await.is_some() {} }).await.ok();
    }
}

async fn output(app: String, mut follower: Follower, console: Console, last: CancellationToken) {
    loop {
        let batch = tokio::select! {
            biased;
            batch = follower.next() => batch,
            () = last.cancelled() => None,
        };
        let Some(Batch { missed, lines }) = batch else { return };
        if missed > 0 {
            console.pass_on(messages::missed(&app, missed)).await;
        }
        // Events have been printed already.
        for line in lines.iter().filter(|line| line.stream != Stream::Event) {
            console.pass_on(messages::output(&app, line)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use rouse_local::output::Line;
    use rouse_testkit::halted_writer::HaltedWriter;

    use super::*;

    #[tokio::test]
    async fn a_halted_terminal_misses_what_is_not_kept_any_more_and_says_how_much() {
        let (terminal, open, text) = HaltedWriter::new();
        let (console, writer) = Console::open(terminal).unwrap();
        let log = AppLog::new(10_000);
        let mut outputs = Outputs::new(console);
        outputs.follow([("hello".to_owned(), Arc::clone(&log))]);
        let all = 20_000;
        for n in 0..all {
            log.push(Line { pod: "hello-1".into(), stream: Stream::Stdout, text: n.to_string().into() });
            tokio::task::yield_now().await;
        }
        drop(open);
        let soon = Duration::from_secs(20);
        outputs.finish(soon).await;
        writer.finish(soon).await;
        let text = String::from_utf8(text.lock().unwrap().clone()).unwrap();
        let text = anstream::adapter::strip_str(&text).to_string();
        let shown = text.lines().filter(|line| line.starts_with("hello-1 | ")).count();
        let missed = |line: &str| -> Option<usize> {
            line.strip_prefix("hello: … ")?.split_once(" lines not shown")?.0.parse().ok()
        };
        let missed: usize = text.lines().filter_map(missed).sum();
        assert!(missed > 0 && shown > 1000 && shown + missed == all, "{shown} shown, {missed} missed");
        assert_eq!(text.lines().last(), Some("hello-1 | 19999"));
    }
}
