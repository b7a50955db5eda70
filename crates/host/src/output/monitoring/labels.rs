//! What VMs are called in labels: monitoring needs a name for each, and short ones.

use std::collections::BTreeMap;

/// Names come from command lines, so tenants may choose them. In characters.
const LENGTH_MAX: usize = 100;

/// A label for each of these VMs, of which no two are the same: the name, with the pid of the VMM where
/// others have it, too.
pub fn of_vms<'v>(vms: impl Iterator<Item = (&'v str, u32)> + Clone) -> Vec<String> {
    let short = |name: &str| name.chars().take(LENGTH_MAX).collect::<String>();
    let mut count = BTreeMap::<String, u32>::new();
    vms.clone().for_each(|(name, _)| *count.entry(short(name)).or_default() += 1);
    let mut taken = BTreeMap::<String, u32>::new();
    vms.map(|(name, pid)| {
        let name = short(name);
        let label = if count[&name] > 1 { format!("{name} (pid {pid})") } else { name };
        // One VMM may have several VMs, and one may be called as another would be here.
        let before = taken.entry(label.clone()).or_default();
        *before += 1;
        if *before > 1 { format!("{label} #{before}") } else { label }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn labels_have_pids_where_names_are_equal() {
        let vms = [("web", 1), ("db", 2), ("web", 3), ("web", 3)];
        assert_eq!(of_vms(vms.into_iter()), ["web (pid 1)", "db", "web (pid 3)", "web (pid 3) #2"]);
        assert_eq!(of_vms([("x".repeat(4096).as_str(), 1)].into_iter())[0].len(), LENGTH_MAX);
    }

    proptest! {
        #[test]
        fn no_two_vms_have_one_label(vms in prop::collection::vec(("[ab#()1 ]{0,12}", 0u32..3), 0..20)) {
            let labels = of_vms(vms.iter().map(|(name, pid)| (name.as_str(), *pid)));
            prop_assert_eq!(labels.iter().collect::<BTreeSet<_>>().len(), vms.len());
        }
    }
}
