//! What is known of the enumerations of C.

use bindgen::callbacks::{DiscoveredItem, DiscoveredItemId, EnumVariantCustomBehavior, EnumVariantValue};
use bindgen::callbacks::{ParseCallbacks, SourceLocation};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// `guest_class` is `GuestClass`.
pub fn camel_case(name: &str) -> String {
    name.split('_').map(|word| word[..1].to_uppercase() + &word[1..].to_lowercase()).collect()
}

/// The last enumerator of many, which isn't a value.
pub fn is_count(enumerator: &str) -> bool {
    enumerator.ends_with("_COUNT")
}

/// Enumerations by their names in C. A clone is the same list: bindgen keeps one, and its callbacks fill it.
#[derive(Clone, Debug, Default)]
pub struct Enumerations(Rc<RefCell<Found>>);

#[derive(Debug, Default)]
struct Found {
    /// Enumerators in their order, with their codes.
    values: BTreeMap<String, Vec<(String, u64)>>,
    /// Those that the headers themselves declare, not ones that they include.
    own: BTreeSet<String>,
}

impl ParseCallbacks for Enumerations {
    fn enum_variant_behavior(
        &self,
        enumeration: Option<&str>,
        enumerator: &str,
        code: EnumVariantValue,
    ) -> Option<EnumVariantCustomBehavior> {
        let (Some(name), EnumVariantValue::Unsigned(code)) = (enumeration, code) else { return None };
        let mut found = self.0.borrow_mut();
        let values = found.values.entry(name.trim_start_matches("enum ").to_owned()).or_default();
        if !values.iter().any(|(known, _)| known == enumerator) {
            values.push((enumerator.to_owned(), code));
        }
        None
    }

    fn new_item_found(&self, _: DiscoveredItemId, item: DiscoveredItem, _: Option<&SourceLocation>) {
        if let DiscoveredItem::Enum { final_name } = item {
            self.0.borrow_mut().own.insert(final_name);
        }
    }
}

impl Enumerations {
    pub fn all_names(&self) -> Vec<String> {
        self.0.borrow().values.keys().cloned().collect()
    }

    pub fn own_names(&self) -> Vec<String> {
        self.0.borrow().own.iter().cloned().collect()
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.borrow().values.contains_key(name)
    }

    /// Codes are places in the table of values, so they count from 0; a count is how many there are.
    pub fn check(&self) -> Result<(), String> {
        for (name, values) in &self.0.borrow().values {
            for (place, (enumerator, code)) in values.iter().enumerate() {
                if *code != place as u64 {
                    return Err(format!("enum {name}: {enumerator} is {code}, and should be {place}"));
                }
            }
        }
        Ok(())
    }

    /// An enumerator without the words that all of them begin with: `TLB_YIELD` of `CAUSE_TLB_YIELD`.
    pub fn word<'a>(&self, enumeration: &str, enumerator: &'a str) -> &'a str {
        let found = self.0.borrow();
        let enumerators: Vec<&str> = found.values[enumeration]
            .iter()
            .map(|(enumerator, _)| enumerator.as_str())
            .filter(|enumerator| !is_count(enumerator))
            .collect();
        let shared = |end: usize| enumerators.iter().all(|other| other.starts_with(&enumerator[..end]));
        let ends = enumerator.match_indices('_').map(|(at, _)| at + 1);
        &enumerator[ends.filter(|&end| shared(end)).max().unwrap_or(0)..]
    }

    /// For each enumeration of the headers the type of its codes, and a table of its values and their names.
    pub fn declarations(&self) -> String {
        let mut text = String::new();
        for name in self.own_names() {
            let rust = camel_case(&name);
            let values = self.0.borrow().values[&name].clone();
            let table: Vec<String> = values
                .iter()
                .filter(|(enumerator, _)| !is_count(enumerator))
                .map(|(enumerator, _)| self.word(&name, enumerator))
                .map(|word| format!("{} = {:?}", camel_case(word), word.to_lowercase()))
                .collect();
            text += &format!(
                "/// A number that should be one of [`{rust}`].\npub type {rust}Code = Code<{rust}>;\n"
            );
            text += &format!("coded! {{ {rust} {{ {} }} }}\n", table.join(", "));
        }
        text
    }
}
