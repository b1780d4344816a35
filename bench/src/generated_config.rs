//! Generates a `rouse.yaml` of a given size: one app that serves, and further apps at zero that hold the other routes.

use std::path::Path;

use crate::rouse::App;
use crate::{Result, tools};

/// The most hosts that `rouse.yaml` allows for one app.
const MOST_HOSTS: usize = 50;

/// The size of the configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Size {
    /// Each route is a host.
    pub(crate) routes: usize,
    /// At least this many; more if the routes need them.
    pub(crate) services: usize,
    /// Endpoints of the app that serves.
    pub(crate) endpoints: u32,
}

impl Size {
    /// The actual number of services.
    pub(crate) fn services(&self) -> usize {
        self.services.max(self.routes.div_ceil(MOST_HOSTS))
    }
}

/// The name of the app that serves.
pub(crate) const SERVING: &str = "upstream";
/// The host of the requests: neither the first nor the last that a search would find.
pub(crate) const HOST: &str = "h5.upstream.bench";

/// The apps. The one that serves is the nginx behind all proxies, with its files in `folder`.
pub(crate) fn apps(size: Size, folder: &Path) -> Result<Vec<App>> {
    let nginx = tools::need("nginx", "nginx-light")?;
    let upstream = ["upstream".as_ref(), "--nginx".as_ref(), nginx.as_path(), "--folder".as_ref(), folder];
    let program = std::env::current_exe()?;
    let words = std::iter::once(program.as_path()).chain(upstream);
    let command: Vec<String> = words.map(|word| word.display().to_string()).collect();
    Ok(spread(size, &command))
}

fn spread(size: Size, serving: &[String]) -> Vec<App> {
    let services = size.services();
    let mut left = size.routes.max(services);
    let mut apps = Vec::new();
    for number in 0..services {
        // The first apps get the most hosts, but each gets at least one.
        let count = (left - (services - number - 1)).min(MOST_HOSTS);
        left -= count;
        let name = if number == 0 { SERVING.to_owned() } else { format!("idle-{number}") };
        let hosts = (0..count).map(|host| format!("h{host}.{name}.bench")).collect();
        let (command, pods) = if number == 0 {
            (serving.to_vec(), size.endpoints)
        } else {
            // It gets no requests, so it never starts.
            (vec!["false".to_owned()], 0)
        };
        apps.push(App { name, command, env: Vec::new(), hosts, h2c: false, sidecar: false, pods });
    }
    apps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_are_spread_over_as_many_apps_as_they_need() {
        for (routes, services, expected) in
            [(10, 1, 1), (50, 1, 1), (51, 1, 2), (10_000, 1, 200), (109, 100, 100)]
        {
            let apps = spread(Size { routes, services, endpoints: 2 }, &["it".to_owned()]);
            let count: usize = apps.iter().map(|app| app.hosts.len()).sum();
            assert_eq!((apps.len(), count), (expected, routes), "{routes} {services}");
            assert!(apps.iter().all(|app| (1..=MOST_HOSTS).contains(&app.hosts.len())));
            assert!(apps[0].name == SERVING && apps[0].hosts.contains(&HOST.to_owned()));
            assert!(apps.iter().skip(1).all(|app| app.pods == 0));
        }
    }
}
