//! Medians and percentiles of few values and of many.

/// The middle value, or the mean of the two in the middle. `None` of nothing.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let upper = sorted.get(sorted.len() / 2).copied()?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    sorted.get(sorted.len() / 2 - 1).map(|lower| f64::midpoint(*lower, upper))
}

/// The smallest value that at least `percent` of all values do not exceed (nearest rank). `None` of
/// nothing.
pub(crate) fn percentile(values: &[f64], percent: f64) -> Option<f64> {
    let sorted = sorted(values);
    let rank = (percent.clamp(0.0, 100.0) / 100.0 * count(sorted.len())).ceil();
    let at = sorted.iter().zip(1_u32..).find(|(_, number)| f64::from(*number) >= rank);
    at.map(|(value, _)| *value)
}

/// Half of the distance between smallest and largest, as a share of the median. `None` of nothing or
/// around 0.
pub(crate) fn spread(values: &[f64]) -> Option<f64> {
    let sorted = sorted(values);
    let (first, last, middle) = (sorted.first()?, sorted.last()?, median(values)?);
    (middle != 0.0).then(|| (last - first) / 2.0 / middle)
}

/// The ratio of every pair of runs.
pub(crate) fn ratios(ours: &[f64], reference: &[f64]) -> Vec<f64> {
    ours.iter().zip(reference).filter(|(_, reference)| **reference != 0.0).map(|(ours, reference)| ours / reference).collect()
}

/// A count as a number to divide by.
pub(crate) fn count(n: usize) -> f64 {
    u32::try_from(n).map_or(f64::from(u32::MAX), f64::from)
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle_whatever_the_order() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[f64::NAN, 5.0]), Some(5.0));
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 99.0), Some(99.0));
        assert_eq!(percentile(&values, 50.0), Some(50.0));
        assert_eq!(percentile(&values, 100.0), Some(100.0));
        assert_eq!(percentile(&values, 0.0), Some(1.0));
        assert_eq!(percentile(&[7.0], 99.9), Some(7.0));
        assert_eq!(percentile(&[], 50.0), None);
    }

    #[test]
    fn ratios_are_of_pairs_and_never_of_nothing() {
        assert_eq!(ratios(&[2.0, 9.0], &[1.0, 3.0]), [2.0, 3.0]);
        assert_eq!(ratios(&[2.0, 9.0], &[0.0, 3.0]), [3.0]);
        assert_eq!(spread(&[9.0, 10.0, 11.0]), Some(0.1));
        assert_eq!(spread(&[0.0]), None);
    }
}
