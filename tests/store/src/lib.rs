//! The common parts of the tests of all rings.

mod alone;
#[cfg(feature = "programs")]
pub mod programs;
mod waiting;

pub use alone::{in_a_process_of_its_own, resident_kb, resident_kb_of};
pub use waiting::{A_MINUTE, found, until};

/// Asserts that a message for a person has no words of libraries and their authors.
pub fn assert_plain(message: &str) {
    const WORDS: &str = "digit|non-zero|target type|integer|literal|syntax|..=| is not in |entries|\
        deserialize|os error|did not contain|unexpected end|Error";
    let found = WORDS.split('|').find(|word| message.contains(word));
    let own = message.replace("iB", "").replace("kB", "");
    let mut pairs = own.as_bytes().windows(2);
    let is_camel_case = pairs.any(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase());
    assert!(found.is_none() && !is_camel_case, "{message}: {found:?}");
}

/// A value with a change.
pub fn with<T>(mut value: T, change: impl FnOnce(&mut T)) -> T {
    change(&mut value);
    value
}
