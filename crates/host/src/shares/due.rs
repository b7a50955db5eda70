//! Shares of CPU time that VMs received, and those that were due to them.

/// Shares received and due of VMs of which each has its weight, what it had and what it waited for, both in
/// nanoseconds.
pub(crate) fn shares_of(vms: &[(f64, u64, u64)]) -> Vec<(f64, f64)> {
    let total: f64 = vms.iter().map(|(_, had_ns, _)| *had_ns as f64).sum();
    if total == 0.0 {
        return vec![(0.0, 0.0); vms.len()];
    }
    let demand = |(_, had_ns, waited_ns): &(f64, u64, u64)| (had_ns + waited_ns) as f64 / total;
    let demand: Vec<f64> = vms.iter().map(demand).collect();
    let weights: Vec<f64> = vms.iter().map(|(weight, ..)| *weight).collect();
    let due = shares_due(&weights, &demand);
    vms.iter().zip(due).map(|((_, had_ns, _), due)| (*had_ns as f64 / total, due)).collect()
}

/// Returns weighted shares of 1. None is more than was asked for, and nothing that is asked for is left over.
fn shares_due(weights: &[f64], demand: &[f64]) -> Vec<f64> {
    let mut due = vec![0.0; weights.len()];
    let mut open: Vec<usize> = (0..weights.len()).collect();
    let mut left = 1.0f64;
    while !open.is_empty() {
        let weight: f64 = open.iter().map(|&vm| weights[vm]).sum();
        let part = |vm: usize| left * weights[vm] / weight.max(f64::MIN_POSITIVE);
        let (satisfied, hungry): (Vec<_>, Vec<_>) = open.iter().partition(|&&vm| demand[vm] <= part(vm));
        if satisfied.is_empty() {
            for vm in hungry {
                due[vm] = part(vm);
            }
            break;
        }
        for &vm in &satisfied {
            due[vm] = demand[vm];
        }
        left = (left - satisfied.iter().map(|&vm| demand[vm]).sum::<f64>()).max(0.0);
        open = hungry;
    }
    due
}

/// The largest difference between what a VM received and what was due to it, as a share of all.
pub(crate) fn fairness_error(shares: &[(f64, f64)]) -> f64 {
    shares.iter().map(|(received, due)| (received - due).abs()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unclaimed_time_is_due_to_others_by_weight() {
        assert_eq!(shares_due(&[100.0, 100.0], &[1.0, 1.0]), [0.5, 0.5]);
        assert_eq!(shares_due(&[200.0, 100.0, 100.0], &[1.0, 0.1, 1.0]), [0.6, 0.1, 0.3]);
        assert_eq!(shares_due(&[], &[]), Vec::<f64>::new());
    }
}
