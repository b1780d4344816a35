//! How trials are run: each with a namespace of its own, some of them alone, those that cannot run here said so.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::pin::Pin;
use std::sync::{PoisonError, RwLock};

use futures_util::FutureExt;
use libtest_mimic::{Arguments, Conclusion, Failed, Trial};

use crate::cluster;
use crate::node::Node;
use crate::own_cluster::{self, OwnCluster};
use crate::space::Space;

/// On two cores more of them would only wait for each other's pods.
const AT_ONCE: usize = 4;

/// Whoever disturbs the cluster has it alone.
static CLUSTER: RwLock<()> = RwLock::new(());

/// One trial.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    module: &'static str,
    name: &'static str,
    run: fn(Space) -> Pin<Box<dyn Future<Output = ()>>>,
    alone: bool,
    on_our_node: bool,
    own_cluster: bool,
}

impl Case {
    /// For [`trial!`].
    pub(crate) const fn new(
        module: &'static str,
        name: &'static str,
        run: fn(Space) -> Pin<Box<dyn Future<Output = ()>>>,
    ) -> Self {
        Self { module, name, run, alone: false, on_our_node: false, own_cluster: false }
    }

    /// It disturbs others: no other trial runs meanwhile.
    pub(crate) const fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// It needs the programs and files of the node that `e2e/cluster` makes.
    pub(crate) const fn on_our_node(mut self) -> Self {
        self.on_our_node = true;
        self
    }

    /// It has a control plane to itself, and its namespace is there: [`crate::own_cluster`].
    pub(crate) const fn on_its_own_cluster(mut self) -> Self {
        self.own_cluster = true;
        self
    }

    fn full_name(&self) -> String {
        let module = self.module.rsplit("::").next().unwrap_or_default();
        format!("{module}::{}", self.name)
    }

    fn trial(self) -> Trial {
        let missing = match self {
            Self { on_our_node: true, .. } if Node::here().is_none() => Some("the node of e2e/cluster"),
            Self { own_cluster: true, .. } if !own_cluster::is_built() => {
                Some("what e2e/cluster/build makes")
            }
            _ => None,
        };
        if let Some(missing) = missing {
            eprintln!("SKIPPED: {}: needs {missing}", self.full_name());
        }
        Trial::test(self.full_name(), move || {
            let (mut shared, mut alone) = (None, None);
            if self.alone {
                alone = Some(CLUSTER.write().unwrap_or_else(PoisonError::into_inner));
            } else {
                shared = Some(CLUSTER.read().unwrap_or_else(PoisonError::into_inner));
            }
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            runtime.block_on(self.tried());
            drop((shared, alone));
            Ok::<(), Failed>(())
        })
        .with_ignored_flag(missing.is_some())
    }

    /// As often as `ROUSE_E2E_TRIES` allows: once, unless it says otherwise. A real cluster on a busy machine has moods, and
    /// whoever tries again says so.
    async fn tried(self) {
        let tries: u32 = std::env::var("ROUSE_E2E_TRIES").map_or(1, |text| text.parse().expect("a number"));
        for _ in 1..tries {
            if AssertUnwindSafe(self.within_a_space()).catch_unwind().await.is_ok() {
                return;
            }
            eprintln!("TRIED AGAIN: {}", self.full_name());
        }
        self.within_a_space().await;
    }

    async fn within_a_space(self) {
        if self.own_cluster {
            let cluster = OwnCluster::up().await;
            (self.run)(cluster.space().await).await;
            return;
        }
        let space = Space::create().await;
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
        $crate::trials::Case::new(module_path!(), stringify!($name), |space| Box::pin($name(space)))
    };
}
pub(crate) use trial;

/// Runs what the arguments ask for, those that want to be alone last.
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
