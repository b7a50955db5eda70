//! Names, comments and traits of what bindgen writes.

use crate::enumerations::{Enumerations, camel_case, is_count};
use bindgen::callbacks::{
    DeriveInfo, DeriveTrait, EnumVariantCustomBehavior, EnumVariantValue, ImplementsTrait, ItemInfo,
    ItemKind, ParseCallbacks, TypeKind,
};

/// Which names types get.
#[derive(Debug)]
pub enum Names {
    /// `pass_scope` is `PassScope`.
    Enumerations(Enumerations),
    /// `yield_decision` is `YieldDecision`, and `pass_scope` in it is `PassScopeCode`.
    Structs(Enumerations),
    /// As they are.
    OfC,
}

impl ParseCallbacks for Names {
    fn item_name(&self, item: ItemInfo<'_>) -> Option<String> {
        let is_type = matches!(item.kind, ItemKind::Type);
        match self {
            Self::Enumerations(known) if is_type && known.has(item.name) => Some(camel_case(item.name)),
            Self::Structs(known) if is_type && known.has(item.name) => Some(camel_case(item.name) + "Code"),
            Self::Structs(_) if is_type && !is_integer(item.name) => {
                Some(match item.name.strip_suffix(UNION) {
                    Some(of) => camel_case(of) + "Payload",
                    None => camel_case(item.name),
                })
            }
            _ => None,
        }
    }

    fn enum_variant_name(
        &self,
        enumeration: Option<&str>,
        name: &str,
        _: EnumVariantValue,
    ) -> Option<String> {
        let Self::Enumerations(known) = self else { return None };
        let enumeration = enumeration?.trim_start_matches("enum ");
        Some(camel_case(known.word(enumeration, name)))
    }

    fn enum_variant_behavior(
        &self,
        _: Option<&str>,
        name: &str,
        _: EnumVariantValue,
    ) -> Option<EnumVariantCustomBehavior> {
        is_count(name).then_some(EnumVariantCustomBehavior::Hide)
    }

    /// Integers, codes, and structs that come from elsewhere: all that a struct may consist of.
    fn blocklisted_type_implements_trait(&self, _: &str, _: DeriveTrait) -> Option<ImplementsTrait> {
        Some(ImplementsTrait::Yes)
    }

    fn add_derives(&self, info: &DeriveInfo<'_>) -> Vec<String> {
        let traits: &[&str] = match info.kind {
            TypeKind::Enum => &["Debug", "Clone", "Copy", "PartialOrd", "Ord"],
            // IntoBytes refuses hidden padding.
            _ => &[
                "Debug",
                "Clone",
                "Copy",
                "PartialEq",
                "Eq",
                "zerocopy::FromBytes",
                "zerocopy::IntoBytes",
                "zerocopy::Immutable",
                "zerocopy::KnownLayout",
            ],
        };
        traits.iter().map(|name| name.to_string()).collect()
    }

    fn process_comment(&self, comment: &str) -> Option<String> {
        // No links, and no tags.
        Some(comment.trim().replace('[', "\\[").replace('<', "\\<"))
    }
}

/// How bindgen ends the name of a struct's first union.
const UNION: &str = "__bindgen_ty_1";

fn is_integer(name: &str) -> bool {
    name.len() <= 3 && name.trim_start_matches(['u', 's']).parse::<u32>().is_ok()
}
