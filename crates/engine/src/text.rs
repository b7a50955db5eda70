//! The text of a guest kernel: functions at addresses, from a `System.map`-like table, with the class that
//! `policy/classify.h` gives each address. A vCPU's instruction pointer is always somewhere in here.

mod classes;

use crate::SimError;
use microslice_model::config::{SpinFunction, SymbolTable};
use microslice_policy::GuestClass;
use std::sync::OnceLock;

/// User mode: an address outside the kernel.
pub const USER: u16 = 0;
/// The idle loop's halt.
pub const IDLE: u16 = 1;

const USER_ADDRESS: u64 = 0x0000_5555_5555_4000;
/// A vCPU stops somewhere in a function, not at its first byte; the shortest functions have 16.
const OFFSET_INTO_FUNCTION: u64 = 8;

pub struct Symbol {
    pub name: String,
    pub address: u64,
}

/// The functions of a kernel. Their numbers count over all kernels' functions, but [`USER`] and [`IDLE`],
/// which every kernel has, are the first one's.
pub struct Text {
    pub symbols: Vec<Symbol>,
    pub classes: Vec<GuestClass>,
    pub fixed: FixedSymbols,
    /// Number of the first of `symbols`.
    pub first: u16,
}

/// Functions that the guest model itself executes.
#[derive(Clone, Copy, Default)]
pub struct FixedSymbols {
    pub spin_simple: u16,
    pub spin_queued: u16,
    pub spin_pv: u16,
    /// For a mutex: the first spinner, and those behind it.
    pub spin_on_owner: u16,
    pub spin_for_turn: u16,
    pub shootdown_prepare: u16,
    pub shootdown_wait: u16,
    pub call_function_handler: u16,
    pub reschedule_handler: u16,
    pub tick_handler: u16,
    pub virq_handler: u16,
    pub softirq: u16,
    pub timer_handler: u16,
    pub wake: u16,
    /// Where locks are held that are held in no function of a list.
    pub unlisted: u16,
}

impl FixedSymbols {
    pub fn spin_in(&self, function: SpinFunction) -> u16 {
        match function {
            SpinFunction::Simple => self.spin_simple,
            SpinFunction::Queued => self.spin_queued,
            SpinFunction::PvQueued => self.spin_pv,
            SpinFunction::OnOwner => self.spin_on_owner,
            SpinFunction::Nowhere => USER,
        }
    }
}

/// The texts of all symbol tables, in the order of [`SymbolTable::ALL`]. They are the same for every run, and
/// finding their classes takes as long as simulating a tenth of a second.
pub fn all() -> Result<&'static [Text], SimError> {
    static TEXTS: OnceLock<Vec<Text>> = OnceLock::new();
    if let Some(texts) = TEXTS.get() {
        return Ok(texts);
    }
    let mut texts: Vec<Text> = Vec::new();
    for table in SymbolTable::ALL {
        let first = texts.iter().map(|text| text.symbols.len() as u16).sum();
        texts.push(Text::load(table, first)?);
    }
    Ok(TEXTS.get_or_init(|| texts))
}

impl Text {
    pub fn load(table: SymbolTable, first: u16) -> Result<Self, SimError> {
        let map = table.map();
        let mut symbols = vec![
            Symbol { name: "user".into(), address: USER_ADDRESS },
            Symbol { name: "default_idle".into(), address: 0 },
        ];
        for line in map.lines() {
            let mut words = line.split_whitespace();
            let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let address = u64::from_str_radix(address, 16).unwrap_or(0) + OFFSET_INTO_FUNCTION;
            if name == "default_idle" {
                symbols[IDLE as usize].address = address;
            } else if kind.eq_ignore_ascii_case("t") {
                symbols.push(Symbol { name: name.into(), address });
            }
        }
        let classes = classes::classes_of(map, &symbols)?;
        let mut text = Self { symbols, classes, fixed: FixedSymbols::default(), first };
        text.fixed = text.fixed_symbols(table)?;
        Ok(text)
    }

    pub fn find(&self, name: &str) -> Option<u16> {
        let index = self.symbols.iter().position(|symbol| symbol.name == name)? as u16;
        Some(if index <= IDLE { index } else { self.first + index })
    }

    /// The place in `symbols` of a function of this kernel.
    pub fn index(&self, symbol: u16) -> usize {
        usize::from(if symbol <= IDLE { symbol } else { symbol - self.first })
    }

    fn fixed_symbols(&self, table: SymbolTable) -> Result<FixedSymbols, SimError> {
        let find = |name: &str| {
            self.find(name).ok_or_else(|| SimError::Config {
                place: format!("{table:?}"),
                cause: format!("the symbol table lacks {name}"),
            })
        };
        let old = table == SymbolTable::Linux44;
        let either = |on_44: &str, modern: &str| find(if old { on_44 } else { modern });
        Ok(FixedSymbols {
            spin_simple: find("_raw_spin_lock")?,
            spin_queued: find("native_queued_spin_lock_slowpath")?,
            spin_pv: find("__pv_queued_spin_lock_slowpath")?,
            spin_on_owner: find("mutex_spin_on_owner")?,
            spin_for_turn: find("osq_lock")?,
            shootdown_prepare: find("flush_tlb_mm_range")?,
            shootdown_wait: either("smp_call_function_many", "smp_call_function_many_cond")?,
            call_function_handler: find("flush_tlb_func")?,
            reschedule_handler: either("scheduler_ipi", "sched_ttwu_pending")?,
            tick_handler: either("smp_apic_timer_interrupt", "__sysvec_apic_timer_interrupt")?,
            virq_handler: either("handle_percpu_irq", "handle_edge_irq")?,
            softirq: find("net_rx_action")?,
            timer_handler: find("hrtimer_interrupt")?,
            wake: find("try_to_wake_up")?,
            unlisted: find("dput")?,
        })
    }
}
