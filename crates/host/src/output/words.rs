//! Counts under the policy's words, as JSON.

use crate::bpf::counters::add_up;
use microslice_policy::{Cause, Coded};
use serde_json::{Value, json};

/// Returns `{"total", "by_cause"}`, without [`Cause::None`].
pub(crate) fn counted_by_cause(counts: &[u64]) -> Value {
    json!({"total": add_up(counts), "by_cause": named(names::<Cause>().skip(1), &counts[1..])})
}

/// Returns `{name: count}`.
pub(crate) fn named(names: impl Iterator<Item = &'static str>, counts: &[u64]) -> Value {
    Value::Object(names.zip(counts).map(|(name, count)| (name.to_owned(), json!(count))).collect())
}

/// Returns the words of a code, in the order of its values.
pub(crate) fn names<E: Coded>() -> impl Iterator<Item = &'static str> {
    E::ALL.iter().map(|value| value.name())
}

/// Returns `{cause: count}` of rows by cause, without [`Cause::None`].
pub(crate) fn sums_by_cause<const N: usize>(rows: &[[u64; N]]) -> Value {
    let sums = names::<Cause>().zip(rows).skip(1).map(|(cause, row)| (cause.to_owned(), json!(add_up(row))));
    Value::Object(sums.collect())
}

/// Returns `{row: {column: count}}`.
pub(crate) fn matrix<R: Coded, C: Coded, const N: usize>(rows: &[[u64; N]]) -> Value {
    Value::Object(
        names::<R>().zip(rows).map(|(name, row)| (name.to_owned(), named(names::<C>(), row))).collect(),
    )
}

/// Adds the members of one object to another.
pub(crate) fn merge(object: &mut Value, more: Value) {
    if let (Value::Object(object), Value::Object(more)) = (object, more) {
        object.extend(more);
    }
}
