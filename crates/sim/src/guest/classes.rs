//! Classes of a guest kernel's functions. The ranges go through `policy/classify.h` like a real guest's; each
//! function's address is classified once, which is exact because `classify` is a pure function of the address.

use crate::SimError;
use crate::guest::text::Symbol;
use microslice_policy::{ClassRange, GuestClass, GuestCode, GuestLayout, classify};

/// Class by function name until the families of `critical/` are hooked up.
fn class_of_name(name: &str) -> Option<GuestClass> {
    use GuestClass::*;
    Some(match name {
        "default_idle" | "native_safe_halt" | "pv_native_safe_halt" | "cpu_startup_entry" => Idle,
        "_raw_spin_lock"
        | "_raw_spin_lock_irqsave"
        | "native_queued_spin_lock_slowpath"
        | "__pv_queued_spin_lock_slowpath" => LockWaiter,
        "get_page_from_freelist"
        | "free_one_page"
        | "release_pages"
        | "folios_put_refs"
        | "__rwsem_do_wake"
        | "rwsem_mark_wake"
        | "rwsem_wake" => LockHolder,
        _ if name.starts_with("_raw_spin_unlock") || name.starts_with("__raw_spin_unlock") => LockHolder,
        "smp_call_function_single"
        | "smp_call_function_many"
        | "smp_call_function_many_cond"
        | "generic_smp_call_function_single_interrupt"
        | "leave_mm"
        | "do_flush_tlb_all"
        | "smp_call_function_interrupt"
        | "__sysvec_call_function" => TlbShootdown,
        _ if name.starts_with("flush_tlb") || name.starts_with("native_flush_tlb") => TlbShootdown,
        _ if name.contains("flush_smp_call_function_queue") => TlbShootdown,
        "scheduler_ipi"
        | "__sysvec_reschedule_ipi"
        | "resched_curr"
        | "kick_process"
        | "sched_ttwu_pending"
        | "ttwu_do_activate"
        | "ttwu_do_wakeup" => ReschedIpi,
        "irq_enter" | "irq_exit" | "irq_enter_rcu" | "irq_exit_rcu" | "handle_percpu_irq"
        | "handle_edge_irq" | "net_rx_action" | "__do_softirq" | "handle_softirqs" => IrqHandler,
        _ => return None,
    })
}

pub fn classes_of(map: &str, symbols: &[Symbol]) -> Result<Vec<GuestClass>, SimError> {
    let functions = functions_of(map)?;
    let (Some(first), Some(last)) = (functions.first(), functions.last()) else {
        return Err(broken("it has no functions"));
    };
    let ranges: Vec<_> = functions
        .windows(2)
        .filter_map(|pair| {
            let class = class_of_name(pair[0].1)?;
            Some(ClassRange { start: pair[0].0, end: pair[1].0, guest_class: class.into(), reserved: 0 })
        })
        .collect();
    let code = GuestCode::new(first.0, last.0, &ranges).map_err(|error| broken(&error.to_string()))?;
    let layout = GuestLayout::slid_by(0);
    Ok(symbols.iter().map(|symbol| classify(&code, &layout, symbol.address)).collect())
}

fn functions_of(map: &str) -> Result<Vec<(u64, &str)>, SimError> {
    let mut functions = Vec::new();
    for line in map.lines().filter(|line| !line.starts_with(';') && !line.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let (Some(address), Some(_), Some(name)) = (words.next(), words.next(), words.next()) else {
            return Err(broken(&format!("no symbol: {line:?}")));
        };
        let address =
            u64::from_str_radix(address, 16).map_err(|_| broken(&format!("no address: {address:?}")))?;
        functions.push((address, name));
    }
    Ok(functions)
}

fn broken(cause: &str) -> SimError {
    SimError::Config { place: "guest symbol table".into(), cause: cause.into() }
}
