//! Formats the results as text tables: a row per proxy, a column per load.

use super::{Cell, Rule};
use crate::stats::Spread;
use crate::table::columns;

/// CPU time and ratios, with a row for each of `proxies`, measured or not.
pub(crate) fn tables(cells: &[Cell], proxies: &[&str], reference: &str) -> String {
    let times = table(cells, proxies, |cell| Some(one(&cell.cpu_us, cell.marked)));
    let ratios = table(cells, proxies, |cell| Some(one(cell.ratio.as_ref()?, cell.marked)));
    format!(
        "CPU µs for each request: median (min–max)\n{times}\n\
         the same as a multiple of {reference}'s in the same round; above 1 costs more\n{ratios}"
    )
}

/// Explains which runs are dropped and which cells are marked.
pub(crate) fn legend(rule: &Rule) -> String {
    let share = rule.most_foreign_share * 100.0;
    format!(
        "Dropped: runs during which others took over {share:.0} % of a core, or with a failed request.\n\
         ! fewer than {} runs were left: the disturbed ones are shown too, and prove little.\n",
        rule.least_runs
    )
}

fn table(cells: &[Cell], proxies: &[&str], show: impl Fn(&Cell) -> Option<String>) -> String {
    let mut scenarios = Vec::new();
    for cell in cells {
        if !scenarios.contains(&cell.scenario) {
            scenarios.push(cell.scenario);
        }
    }
    let at = |proxy: &str, scenario: &str| {
        let found = cells.iter().find(|cell| cell.proxy == proxy && cell.scenario == scenario);
        found.and_then(&show).unwrap_or_else(|| "–".to_owned())
    };
    let row = |proxy: &&str| {
        let cells = scenarios.iter().map(|scenario| at(proxy, scenario));
        std::iter::once((*proxy).to_owned()).chain(cells).collect()
    };
    let rows: Vec<Vec<String>> = proxies.iter().map(row).collect();
    let head: Vec<&str> = std::iter::once("").chain(scenarios.iter().copied()).collect();
    columns(&head, &rows)
}

/// The median and its range, with `!` if the cell is marked.
pub(crate) fn one(spread: &Spread, marked: bool) -> String {
    let places = if spread.median < 10.0 { 2 } else { usize::from(spread.median < 100.0) };
    let Spread { median, min, max, .. } = spread;
    let mark = if marked { "!" } else { "" };
    format!("{mark}{median:.places$} ({min:.places$}–{max:.places$})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_a_dash_and_what_proves_nothing_is_marked() {
        let cell = |scenario, proxy: &str, marked| Cell {
            scenario,
            proxy: proxy.to_owned(),
            cpu_us: Spread { median: 20.04, min: 19.0, max: 21.0, count: 3 },
            ratio: None,
            kept: 3,
            marked,
        };
        let text = tables(
            &[cell("a", "rouse", false), cell("b", "rouse", true), cell("a", "nginx", false)],
            &["rouse", "nginx", "envoy"],
            "rouse",
        );
        let row = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        assert_eq!(row("rouse"), "rouse  20.0 (19.0–21.0)  !20.0 (19.0–21.0)");
        assert!(row("nginx").ends_with("–"), "{text}");
        assert_eq!(row("envoy").matches(" –").count(), 2, "{text}");
    }
}
