//! Lists of CPUs, as the kernel and its files write them.

/// Writes rising CPU numbers as the kernel does: `0-3,8`.
pub fn cpu_list(cpus: &[u32]) -> String {
    let ranges = cpus.chunk_by(|a, b| a + 1 == *b).filter_map(|run| Some((run.first()?, run.last()?)));
    let text =
        ranges.map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") });
    text.collect::<Vec<_>>().join(",")
}

/// A list of CPUs that the operator gives, rising.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuList(pub Vec<u32>);

impl std::str::FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut cpus =
            parse_cpu_list(text).ok_or_else(|| format!("{text:?}: must be a list of CPUs such as 0-3,8"))?;
        cpus.sort_unstable();
        cpus.dedup();
        Ok(Self(cpus))
    }
}

/// Reads a list of CPUs as the kernel writes it: `0-3,8,10-11`.
pub fn parse_cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last < first || last >= 1 << 16 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_cpu_list("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_cpu_list(""), Some(vec![]));
        assert_eq!(parse_cpu_list("3-1"), None);
        assert_eq!(parse_cpu_list("a"), None);
    }

    #[test]
    fn lists_of_the_operator_are_sorted_or_refused() {
        assert_eq!("8,0-2,1".parse(), Ok(CpuList(vec![0, 1, 2, 8])));
        let refused = "0-x".parse::<CpuList>().unwrap_err();
        assert_eq!(refused, "\"0-x\": must be a list of CPUs such as 0-3,8");
    }
}
