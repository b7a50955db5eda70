//! What guests may be asked to run: the words of `testbed/guest/main.c`.

/// A load each; `mix` stands for several.
const LOADS: [&str; 21] = [
    "hog",
    "dozer",
    "sleeper",
    "shootdown",
    "storm",
    "lock",
    "wake",
    "worker",
    "build",
    "collector",
    "pingpong",
    "heartbeat",
    "kallsyms",
    "counts",
    "torture",
    "locks",
    "spinlocks",
    "crowd",
    "balloons",
    "costs",
    "mix",
];
const THREADS_MAX: u32 = 1_000;
/// Of the text: it has to fit into a kernel's command line with all the rest.
const BYTES_MAX: usize = 200;

/// Whether it needs our modules in the guest.
pub fn needs_modules(workload: &str) -> bool {
    let of_modules = ["torture", "locks", "spinlocks", "balloons"];
    workload.split(',').any(|word| of_modules.contains(&word.split(':').next().unwrap_or(word)))
}

/// Checks a workload (`mix`, `shootdown,hog:2`), and says what is allowed if it isn't one.
pub fn check(workload: &str) -> Result<(), String> {
    if workload.len() > BYTES_MAX {
        return Err(format!("a workload has at most {BYTES_MAX} characters"));
    }
    workload.split(',').try_for_each(|word| {
        let (load, threads) = word.split_once(':').map_or((word, None), |(load, count)| (load, Some(count)));
        if !LOADS.contains(&load) {
            return Err(format!("no load is called {load:?}; allowed: {}", LOADS.join(", ")));
        }
        match threads.map(str::parse) {
            None | Some(Ok(1..=THREADS_MAX)) => Ok(()),
            _ => Err(format!("{word:?}: behind the colon there must be 1 to {THREADS_MAX} threads")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_of_the_guests_program_can_be_asked_for_and_no_other() {
        let program = include_str!("../../../testbed/guest/main.c");
        let table =
            program.split("loads[] = {").nth(1).and_then(|rest| rest.split("};").next()).expect("a table");
        let of_program = table.lines().filter_map(|line| line.trim().strip_prefix("{\"")?.split('"').next());
        assert_eq!(of_program.chain(["mix"]).collect::<Vec<_>>(), LOADS);
    }

    #[test]
    fn a_workload_is_loads_with_commas_between_and_threads_behind_colons() {
        for good in ["mix", "hog:4", "shootdown,hog:2"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["", "bogus", "hog:", "hog:0", "hog:x", "hog,,lock", "mix' -bios x"] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
