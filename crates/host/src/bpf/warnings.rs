//! Why a BPF object can't be loaded: libbpf's warnings, kept until a failure tells the best of them.

use crate::HostError;
use libbpf_rs::PrintLevel;
use std::collections::VecDeque;
use std::io::Write;
use std::sync::Mutex;

/// libbpf's warnings since the last failure: the cause of a refused load is in there, not in the error
/// number.
static LIBBPF_WARNINGS: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

const WARNINGS_KEPT: usize = 200;

/// From now on libbpf's warnings are kept, for [`load_failure`].
pub(crate) fn keep_warnings() {
    libbpf_rs::set_print(Some((PrintLevel::Warn, keep_warning)));
}

fn keep_warning(_level: PrintLevel, message: String) {
    if let Ok(mut kept) = LIBBPF_WARNINGS.lock() {
        if kept.len() == WARNINGS_KEPT {
            kept.pop_front();
        }
        kept.push_back(message.trim_end().to_owned());
    }
}

/// The error number, and the warning that says most: the last one about a program or symbol.
pub(crate) fn load_failure(error: &libbpf_rs::Error, verbose: bool) -> HostError {
    let kept = LIBBPF_WARNINGS.lock().map(|kept| kept.clone()).unwrap_or_default();
    if verbose {
        let mut out = std::io::stderr().lock();
        for line in &kept {
            // A failure to write it isn't worth another failure.
            let _ = writeln!(out, "libbpf: {line}");
        }
    }
    let telling = kept
        .iter()
        .rev()
        .find(|line| line.contains("extern") || line.contains("failed to load") || line.contains("prog '"))
        .or(kept.back());
    HostError::Load(match telling {
        Some(line) => format!("{error}; {}", line.lines().next_back().unwrap_or(line)),
        None => error.to_string(),
    })
}
