//! Delayed preemption in `policies/*.toml`: keys that any scheduler may have.

use super::error::ScenarioError;
use super::reader::TableReader;
use super::tree::{Node, NodeValue};
use super::units;
use microslice_model::config::DelayPreemptionConfig;
use microslice_policy::{DelayConfig, DelayUnsafe};

pub const KEYS: [&str; 5] =
    ["delay_preemption", "delay_history", "delay_unsafe", "delay_look", "delay_safe_points"];

/// Windows of nanoseconds are over before a look.
const WINDOW_MIN_NS: u64 = 1_000;

/// Of a policy whose shortest turns last so long; its other keys were read before.
pub fn read(node: &Node, turn_ns: u64) -> Result<Option<DelayPreemptionConfig>, ScenarioError> {
    let NodeValue::Table(keys) = &node.value else { return Ok(None) };
    let all: Vec<&str> = keys.keys().map(String::as_str).collect();
    let table = TableReader::open(node, "a policy", &all)?;
    let window_ns = table.parsed("delay_preemption", |text| {
        match units::time_ns(text, None, &(0..=units::HOUR_NS))? {
            0 => Ok(0),
            ns if ns < WINDOW_MIN_NS => Err("a window shorter than 1 us".to_owned()),
            _ if turn_ns < DelayPreemptionConfig::TURN_MIN_NS => {
                Err(format!("turns of {turn_ns} ns have no room for windows; they need 10 us"))
            }
            ns if ns > turn_ns || ns > DelayConfig::WINDOW_MAX_NS => {
                Err(format!("a window longer than a turn, which is {} us", turn_ns / 1_000))
            }
            ns => Ok(ns),
        }
    })?;
    let window_ns = match window_ns {
        None | Some(0) => {
            return match KEYS[1..].iter().find_map(|key| Some((key, table.get(key)?))) {
                Some((key, node)) if window_ns.is_none() => {
                    let cause = format!("`{key}` needs `delay_preemption`, the window that it is about");
                    Err(ScenarioError::new(&node.place, cause))
                }
                _ => Ok(None),
            };
        }
        Some(window_ns) => window_ns,
    };
    let places = [
        ("kernel", DelayUnsafe::InKernel),
        ("critical", DelayUnsafe::InCriticalCode),
        ("hinted", DelayUnsafe::WhereHinted),
    ];
    let history = table.integer("delay_history", 1..=DelayConfig::HISTORY_MAX.into())?;
    let look_ns =
        table.parsed("delay_look", |text| match units::time_ns(text, None, &(0..=units::HOUR_NS))? {
            ns if ns > window_ns => Err("longer than the window".to_owned()),
            ns => Ok(ns),
        })?;
    Ok(Some(DelayPreemptionConfig {
        window_ns,
        history: history.map_or(DelayConfig::HISTORY, |history| history as u32),
        unsafe_where: table.choice("delay_unsafe", &places)?.unwrap_or(DelayUnsafe::InKernel),
        look_ns: look_ns.unwrap_or(0),
        safe_point_ns: table.time("delay_safe_points", WINDOW_MIN_NS..=units::HOUR_NS)?,
    }))
}
