//! Parses `/metrics`: samples with labels and values, as far as tests need them.

use std::collections::BTreeMap;

/// All samples at one moment.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Vec<Sample>);

#[derive(Debug, Clone)]
struct Sample {
    name: String,
    labels: BTreeMap<String, String>,
    value: f64,
}

impl Metrics {
    /// Parses the text. Panics at a malformed line.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        Self(lines.map(|line| sample(line).unwrap_or_else(|| panic!("not a sample: {line:?}"))).collect())
    }

    /// The sum of all samples of that name that have all these labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let matches = |sample: &&Sample| {
            sample.name == name
                && labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|had| had == value))
        };
        self.0.iter().filter(matches).map(|sample| sample.value).sum()
    }

    /// The same, of counters.
    pub fn count(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        // Without samples the sum is a negative zero.
        let sum = self.sum(name, labels) + 0.0;
        format!("{sum:.0}").parse().unwrap_or_else(|_| panic!("{name} is {sum}, which is not a count"))
    }

    /// Whether there is a sample of that name.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|sample| sample.name == name)
    }
}

fn sample(line: &str) -> Option<Sample> {
    let name_end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(name_end);
    let (labels, value) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (BTreeMap::new(), rest),
    };
    // An exemplar may follow.
    let value = value.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// The labels, and the text after them. Values may contain any character, escaped.
fn labels(mut rest: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut chars = quoted.char_indices();
        rest = loop {
            match chars.next()? {
                (end, '"') => break quoted.get(end + 1..)?,
                (_, '\\') => value.push(match chars.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        };
        labels.insert(name.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_over_the_labels_that_are_not_named() {
        let metrics = Metrics::parse(
            "# TYPE a counter\na_total{x=\"1\",y=\"p,q\"} 2 # {} 1\na_total{x=\"1\",y=\"\\\"}\"} 3.5\na_total{x=\"2\"} 9\nb 1\n",
        );
        assert!((metrics.sum("a_total", &[("x", "1")]) - 5.5).abs() < f64::EPSILON);
        assert!((metrics.sum("a_total", &[("y", "\"}")]) - 3.5).abs() < f64::EPSILON);
        assert!((metrics.sum("b", &[]) - 1.0).abs() < f64::EPSILON);
        assert_eq!((metrics.count("a_total", &[("x", "2")]), metrics.count("c", &[])), (9, 0));
        assert!(!metrics.has("c"));
    }
}
