//! Decides which pods of an app to start and which to remove, for scaling and for rolling updates.
//!
//! A pure function of the current pods, called after every change, so the history of the pods does not matter.

use std::cmp::Reverse;

/// A pod that is not being removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RunningPod {
    /// Its index among the app's pods.
    pub(super) place: usize,
    /// Whether it is of the newest version.
    pub(super) current: bool,
    pub(super) ready: bool,
    pub(super) in_flight: u32,
    /// When it was started. A larger value is a newer pod.
    pub(super) begun: u64,
}

/// The pods to start and to remove.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Plan {
    /// How many pods of the newest version to start.
    pub(super) start: usize,
    /// The indexes of the pods to remove.
    pub(super) remove: Vec<usize>,
}

/// Plans for `desired` pods.
///
/// A rolling update with a surge of one pod: each pod of an older version stays until a pod of the newest version is ready
/// to replace it. A newest version that never becomes ready removes no pod.
pub(super) fn plan(desired: usize, present: &[RunningPod]) -> Plan {
    let (mut current, mut old): (Vec<RunningPod>, Vec<RunningPod>) =
        present.iter().partition(|pod| pod.current);
    let mut plan = Plan::default();
    let successors = current.iter().filter(|pod| pod.ready).count();
    let spared = desired.saturating_sub(successors);
    take(&mut old, spared, &mut plan.remove);

    let surge = usize::from(desired > 0 && !old.is_empty());
    let room = (desired + surge).saturating_sub(old.len()).min(desired);
    take(&mut current, room, &mut plan.remove);
    plan.start = room - current.len();
    plan
}

/// Removes all but `left` pods: first those that are not ready, then those with the fewest requests, then the newest.
fn take(pods: &mut Vec<RunningPod>, left: usize, removed: &mut Vec<usize>) {
    pods.sort_by_key(|pod| (Reverse(pod.ready), Reverse(pod.in_flight), pod.begun));
    removed.extend(pods.drain(left.min(pods.len())..).map(|pod| pod.place));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One letter per pod: `N` and `n` are of the newest version, `O` and `o` of an older one; capitals are ready.
    fn present(pods: &str) -> Vec<RunningPod> {
        let pod = |(place, letter): (usize, char)| RunningPod {
            place,
            current: letter.eq_ignore_ascii_case(&'n'),
            ready: letter.is_uppercase(),
            in_flight: 0,
            begun: place as u64,
        };
        pods.chars().enumerate().map(pod).collect()
    }

    #[test]
    fn pods_are_started_and_taken_away_as_desired() {
        // Desired, present → started, removed.
        let cases = [
            (0, "", 0, ""),
            (3, "", 3, ""),
            (3, "n", 2, ""),
            (1, "n", 0, ""),
            (1, "NnN", 0, "Nn"),
            (2, "NnN", 0, "n"),
            (0, "Nn", 0, "Nn"),
            (0, "NOo", 0, "NOo"),
            // A rollout: one surge pod at a time, and no pod is removed before its successor is ready.
            (1, "O", 1, ""),
            (1, "On", 0, ""),
            (1, "ON", 0, "O"),
            (3, "OOO", 1, ""),
            (3, "OOOn", 0, ""),
            (3, "OOON", 1, "O"),
            (3, "OONn", 0, ""),
            (3, "OoON", 1, "o"),
            // The desired number changes during the rollout.
            (5, "OOO", 3, ""),
            (1, "OOOn", 0, "OO"),
            (1, "ONn", 0, "On"),
            (3, "OOOnn", 0, "n"),
            // An older pod that is not ready stays: it may become ready first.
            (1, "o", 1, ""),
            (1, "oN", 0, "o"),
        ];
        for (desired, pods, start, taken) in cases {
            let plan = plan(desired, &present(pods));
            let mut removed: Vec<char> = plan.remove.iter().filter_map(|&at| pods.chars().nth(at)).collect();
            removed.sort_unstable();
            let mut expected: Vec<char> = taken.chars().collect();
            expected.sort_unstable();
            assert_eq!((plan.start, removed), (start, expected), "{desired} desired of {pods:?}");
        }
    }

    #[test]
    fn the_unready_go_first_then_the_idle_then_the_newest() {
        let pod =
            |place, ready, in_flight, begun| RunningPod { place, current: true, ready, in_flight, begun };
        let pods = [pod(0, true, 0, 1), pod(1, true, 5, 2), pod(2, false, 9, 3), pod(3, true, 0, 4)];
        let order: Vec<usize> = (0..4).rev().map(|desired| plan(desired, &pods).remove.len()).collect();
        assert_eq!(order, [1, 2, 3, 4]);
        let removed = |desired| plan(desired, &pods).remove;
        let sorted = |mut places: Vec<usize>| {
            places.sort_unstable();
            places
        };
        assert_eq!(removed(3), [2]);
        assert_eq!(sorted(removed(2)), [2, 3]);
        assert_eq!(sorted(removed(1)), [0, 2, 3]);
    }

    /// From any set of pods, a rollout ends with the desired number of pods, all of the newest version, and never has fewer
    /// ready pods than at its start (or than desired).
    #[test]
    fn every_rollout_ends_and_never_has_fewer_ready_pods() {
        let letters = ['N', 'n', 'O', 'o'];
        for code in 0..4_usize.pow(4) {
            let pods: String = (0..4).map(|at| letters[code / 4_usize.pow(at) % 4]).collect();
            for desired in 0..5 {
                let mut present = present(&pods);
                let ready = |pods: &[RunningPod]| pods.iter().filter(|pod| pod.ready).count();
                let floor = ready(&present).min(desired);
                for step in 0..40 {
                    let plan = plan(desired, &present);
                    present.retain(|pod| !plan.remove.contains(&pod.place));
                    assert!(ready(&present) >= floor, "{pods} to {desired}");
                    for at in 0..plan.start {
                        let place = 100 * (step + 1) + at;
                        let begun = place as u64;
                        present.push(RunningPod { place, current: true, ready: false, in_flight: 0, begun });
                    }
                    assert!(plan.start == 0 || present.len() <= desired + 1, "{pods} to {desired}");
                    // The oldest new pod becomes ready.
                    if let Some(pod) = present.iter_mut().find(|pod| pod.current && !pod.ready) {
                        pod.ready = true;
                    }
                }
                assert_eq!(present.iter().filter(|pod| pod.current).count(), desired, "{pods}");
                assert_eq!(present.len(), desired, "{pods}");
            }
        }
    }
}
