//! Runs the trials: each in its own namespace, some of them exclusively; a trial that cannot run here is reported as ignored.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::sync::{PoisonError, RwLock};

use futures_util::FutureExt;
use libtest_mimic::{Arguments, Conclusion, Trial};
use rouse_e2e::runtime::block_on;

use crate::cluster;
use crate::node::Node;
use crate::own_cluster::{self, OwnCluster};
use crate::test_namespace::TestNamespace;

/// On two cores, more concurrent trials would only wait for each other's pods.
const AT_ONCE: usize = 4;

/// Held exclusively by a trial that disturbs the cluster, and shared by all others.
static CLUSTER: RwLock<()> = RwLock::new(());

/// Where a trial runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// On the cluster under test, beside other trials.
    Cluster,
    /// The same, if it is the one that `e2e/cluster` makes.
    OurNode,
    /// On a control plane of its own.
    OwnCluster,
}

/// One trial.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    module: &'static str,
    name: &'static str,
    run: fn(TestNamespace) -> Pin<Box<dyn Future<Output = ()>>>,
    place: Place,
    alone: bool,
    once: bool,
    lacks: fn() -> Option<String>,
}

impl Case {
    /// For [`trial!`].
    pub(crate) const fn new(
        module: &'static str,
        name: &'static str,
        run: fn(TestNamespace) -> Pin<Box<dyn Future<Output = ()>>>,
    ) -> Self {
        Self { module, name, run, place: Place::Cluster, alone: false, once: false, lacks: || None }
    }

    /// It disturbs other trials: none runs meanwhile.
    pub(crate) const fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// It needs the programs and files of the node that `e2e/cluster` makes.
    pub(crate) const fn on_our_node(mut self) -> Self {
        self.place = Place::OurNode;
        self
    }

    /// It has a control plane to itself, with its namespace: [`crate::own_cluster`].
    pub(crate) const fn on_its_own_cluster(mut self) -> Self {
        self.place = Place::OwnCluster;
        self
    }

    /// It asserts that no request fails, so it is not repeated: a second try would hide a failed request.
    pub(crate) const fn once(mut self) -> Self {
        self.once = true;
        self
    }

    /// It runs only where `lacks` finds nothing missing. This is checked before the run, so that a trial which cannot run
    /// counts as ignored, not as passed.
    pub(crate) const fn unless(mut self, lacks: fn() -> Option<String>) -> Self {
        self.lacks = lacks;
        self
    }

    fn full_name(&self) -> String {
        let module = self.module.rsplit("::").next().unwrap_or_default();
        format!("{module}::{}", self.name)
    }

    /// What it needs and this machine or cluster lacks.
    fn missing(&self) -> Option<String> {
        match self.place {
            Place::OurNode if Node::here().is_none() => Some("the node of e2e/cluster".to_owned()),
            Place::OwnCluster if !own_cluster::is_built() => Some("what e2e/cluster/build makes".to_owned()),
            _ => (self.lacks)(),
        }
    }

    fn trial(self) -> Trial {
        let missing = self.missing();
        if let Some(missing) = &missing {
            eprintln!("SKIPPED: {}: needs {missing}", self.full_name());
        }
        Trial::test(self.full_name(), move || {
            let (mut shared, mut alone) = (None, None);
            if self.alone {
                alone = Some(CLUSTER.write().unwrap_or_else(PoisonError::into_inner));
            } else {
                shared = Some(CLUSTER.read().unwrap_or_else(PoisonError::into_inner));
            }
            block_on(self.tried())?;
            drop((shared, alone));
            Ok(())
        })
        .with_ignored_flag(missing.is_some())
    }

    /// Runs the trial up to `ROUSE_E2E_TRIES` times (default 1), because a real cluster on a busy machine can be flaky.
    /// Each repetition prints `TRIED AGAIN`.
    async fn tried(self) {
        let tries: u32 = match std::env::var("ROUSE_E2E_TRIES") {
            Ok(text) if !self.once => text.parse().expect("a number"),
            _ => 1,
        };
        for _ in 1..tries {
            if AssertUnwindSafe(self.within_a_space()).catch_unwind().await.is_ok() {
                return;
            }
            eprintln!("TRIED AGAIN: {}", self.full_name());
        }
        self.within_a_space().await;
    }

    async fn within_a_space(self) {
        if self.place == Place::OwnCluster {
            let cluster = OwnCluster::up().await;
            (self.run)(cluster.space().await).await;
            return;
        }
        let space = TestNamespace::create().await;
        let outcome = AssertUnwindSafe((self.run)(space.clone())).catch_unwind().await;
        if outcome.is_err() {
            eprintln!("---- {}:\n{}\n----", self.full_name(), space.tell().await);
        }
        space.remove().await;
        if let Err(panic) = outcome {
            resume_unwind(panic);
        }
    }
}

/// A [`Case`] of an `async fn(Space)`.
macro_rules! trial {
    ($name:ident) => {
        $crate::harness::Case::new(module_path!(), stringify!($name), |space| Box::pin($name(space)))
    };
}
pub(crate) use trial;

/// Runs the selected trials, the exclusive ones last.
pub(crate) fn run(arguments: &Arguments, modules: &[&[Case]]) -> Conclusion {
    if !arguments.list {
        cluster::prepare();
    }
    let mut cases = modules.concat();
    cases.sort_by_key(|case| case.alone);
    let mut arguments = arguments.clone();
    arguments.test_threads.get_or_insert(AT_ONCE);
    libtest_mimic::run(&arguments, cases.into_iter().map(Case::trial).collect())
}
