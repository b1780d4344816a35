//! Statistics: medians, percentiles and ranges.

use serde::Serialize;

/// A count as a float.
#[expect(clippy::cast_precision_loss, reason = "counts and microseconds here are far below 2^52")]
pub(crate) const fn float(count: u64) -> f64 {
    count as f64
}

/// The smallest value that at least `percent` percent of the values do not exceed; `None` without values.
pub(crate) fn percentile(values: &[f64], percent: usize) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied()
}

/// The middle value, or the mean of the two middle ones.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    let upper = *sorted.get(half)?;
    let lower = if sorted.len().is_multiple_of(2) { *sorted.get(half - 1)? } else { upper };
    Some(f64::midpoint(lower, upper))
}

/// Median and range of values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) count: usize,
}

impl Spread {
    /// `None` without values.
    pub(crate) fn of(values: &[f64]) -> Option<Self> {
        Some(Self {
            median: median(values)?,
            min: values.iter().copied().min_by(f64::total_cmp)?,
            max: values.iter().copied().max_by(f64::total_cmp)?,
            count: values.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let ten: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        for (percent, expected) in
            [(0, 1.0), (1, 1.0), (10, 1.0), (11, 2.0), (50, 5.0), (90, 9.0), (100, 10.0)]
        {
            assert_eq!(percentile(&ten, percent), Some(expected), "{percent}");
        }
        assert_eq!(percentile(&[], 50), None);
        assert_eq!(percentile(&[7.0], 99), Some(7.0));
    }

    #[test]
    fn the_median_lies_in_the_middle() {
        let cases: [(&[f64], Option<f64>); 4] =
            [(&[], None), (&[3.0], Some(3.0)), (&[4.0, 1.0], Some(2.5)), (&[9.0, 1.0, 2.0], Some(2.0))];
        for (values, expected) in cases {
            assert_eq!(median(values), expected, "{values:?}");
        }
    }

    #[test]
    fn a_spread_knows_its_ends() {
        let spread = Spread::of(&[3.0, 1.0, 2.0]).unwrap();
        assert_eq!(spread, Spread { median: 2.0, min: 1.0, max: 3.0, count: 3 });
        assert_eq!(Spread::of(&[]), None);
    }
}
