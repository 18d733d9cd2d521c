//! Which step comes before which. All walks are linear in the edges: plans come from outside.

use std::collections::BTreeSet;

/// All that comes before `step`, ascending.
pub(super) fn ancestors<'a>(
    needs_of: impl Fn(usize) -> Option<&'a [usize]>,
    step: usize,
) -> Vec<usize> {
    let mut found = BTreeSet::new();
    let mut open = vec![step];
    while let Some(index) = open.pop() {
        for need in needs_of(index).unwrap_or_default() {
            if found.insert(*need) {
                open.push(*need);
            }
        }
    }
    found.into_iter().collect()
}

/// The relation "comes before", settled once for all steps.
pub(super) struct Order {
    /// Per step a bit for each ancestor; None for a step on a cycle or behind one.
    before: Vec<Option<Vec<u64>>>,
}

impl Order {
    pub(super) fn of(needs: &[Vec<usize>]) -> Self {
        let mut waiting_for: Vec<usize> = needs.iter().map(Vec::len).collect();
        let mut needed_by: Vec<Vec<usize>> = vec![Vec::new(); needs.len()];
        for (step, needs) in needs.iter().enumerate() {
            for need in needs {
                if let Some(users) = needed_by.get_mut(*need) {
                    users.push(step);
                }
            }
        }
        let mut before: Vec<Option<Vec<u64>>> = vec![None; needs.len()];
        let mut open: Vec<usize> = (0..needs.len())
            .filter(|step| waiting_for.get(*step) == Some(&0))
            .collect();
        while let Some(step) = open.pop() {
            let mut bits = vec![0_u64; needs.len().div_ceil(64)];
            for need in needs.get(step).into_iter().flatten() {
                set(&mut bits, *need);
                if let Some(Some(earlier)) = before.get(*need) {
                    bits.iter_mut()
                        .zip(earlier)
                        .for_each(|(bit, more)| *bit |= more);
                }
            }
            if let Some(place) = before.get_mut(step) {
                *place = Some(bits);
            }
            for user in needed_by.get(step).into_iter().flatten() {
                if let Some(count) = waiting_for.get_mut(*user) {
                    *count = count.saturating_sub(1);
                    if *count == 0 {
                        open.push(*user);
                    }
                }
            }
        }
        Self { before }
    }

    /// Whether `earlier` is over whenever `step` starts. None where a cycle leaves that open.
    pub(super) fn is_before(&self, earlier: usize, step: usize) -> Option<bool> {
        let bits = self.before.get(step)?.as_ref()?;
        let word = bits.get(earlier / 64).copied().unwrap_or_default();
        Some(word >> (earlier % 64) & 1 == 1)
    }

    /// Cycles that share no step: each a list in which every step needs the next, and the last
    /// needs the first. At least one for each knot of steps that can never start.
    pub(super) fn cycles(&self, needs: &[Vec<usize>]) -> Vec<Vec<usize>> {
        let stuck = |step: &usize| matches!(self.before.get(*step), Some(None));
        let mut seen = vec![false; needs.len()];
        let mut cycles = Vec::new();
        for start in (0..needs.len()).filter(stuck) {
            // A stuck step needs a stuck step, so this walk ends where something was seen before.
            let mut walk: Vec<usize> = Vec::new();
            let mut next = Some(start);
            while let Some(step) = next {
                match seen.get_mut(step) {
                    Some(seen) if !*seen => *seen = true,
                    _ => break,
                }
                walk.push(step);
                next = needs
                    .get(step)
                    .and_then(|needs| needs.iter().copied().find(stuck));
            }
            if let Some(first) = next.and_then(|step| walk.iter().position(|at| *at == step)) {
                cycles.push(walk.split_off(first));
            }
        }
        cycles
    }
}

fn set(bits: &mut [u64], index: usize) {
    if let Some(word) = bits.get_mut(index / 64) {
        *word |= 1 << (index % 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_is_transitive() {
        let needs = vec![vec![], vec![0], vec![], vec![1, 2]];
        let order = Order::of(&needs);
        assert_eq!(order.is_before(0, 3), Some(true));
        assert_eq!(order.is_before(2, 3), Some(true));
        assert_eq!(order.is_before(0, 2), Some(false));
        assert_eq!(order.is_before(3, 0), Some(false));
        assert!(order.cycles(&needs).is_empty());
        assert_eq!(
            ancestors(|step| needs.get(step).map(Vec::as_slice), 3),
            [0, 1, 2]
        );
    }

    #[test]
    fn each_knot_is_named_once() {
        // 0 -> 1 -> 0; 2 waits behind it; 3 -> 4 -> 5 -> 3; 6 is free.
        let needs = vec![
            vec![1],
            vec![0],
            vec![1],
            vec![4],
            vec![5],
            vec![3, 6],
            vec![],
        ];
        let order = Order::of(&needs);
        assert_eq!(order.cycles(&needs), [vec![0, 1], vec![3, 4, 5]]);
        assert_eq!(order.is_before(0, 2), None);
        assert_eq!(order.is_before(0, 6), Some(false));
    }

    #[test]
    fn a_walk_that_meets_itself_late_keeps_only_the_cycle() {
        let needs = vec![vec![1], vec![2], vec![1]];
        assert_eq!(Order::of(&needs).cycles(&needs), [vec![1, 2]]);
    }
}
