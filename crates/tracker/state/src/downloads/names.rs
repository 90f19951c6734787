//! The names of the database's files.

use std::fmt;

/// The name of a file of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Name {
    /// `downloads-N.log`
    Log(u64),
    /// `downloads-A-B.run`: the changes of logs `A` to `B`.
    Run(u64, u64),
    /// One of these names followed by [`PARTIAL`]: an incomplete file.
    Partial,
}

/// The end of the name of an incomplete file.
pub(crate) const PARTIAL: &str = ".partial";

impl Name {
    /// `None` if the file is not the database's.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        if let Some(whole) = name.strip_suffix(PARTIAL) {
            return Self::parse(whole).filter(|name| *name != Self::Partial).map(|_| Self::Partial);
        }
        let rest = name.strip_prefix("downloads-")?;
        if let Some(number) = rest.strip_suffix(".log") {
            return Some(Self::Log(parse_number(number)?));
        }
        let (first, last) = rest.strip_suffix(".run")?.split_once('-')?;
        let (first, last) = (parse_number(first)?, parse_number(last)?);
        (first <= last).then_some(Self::Run(first, last))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(number) => write!(f, "downloads-{number}.log"),
            Self::Run(first, last) => write!(f, "downloads-{first}-{last}.run"),
            Self::Partial => f.write_str(PARTIAL),
        }
    }
}

/// A number from 1 on, in digits, without a sign or leading zeroes.
fn parse_number(digits: &str) -> Option<u64> {
    let number = digits.parse::<u64>().ok()?;
    (number > 0 && number < u64::MAX && !digits.starts_with(['0', '+'])).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_is_in_the_files() {
        for (name, meaning) in [
            ("downloads-1.log", Some(Name::Log(1))),
            ("downloads-3-17.run", Some(Name::Run(3, 17))),
            ("downloads-3-17.run.partial", Some(Name::Partial)),
            ("downloads-3.log.partial", Some(Name::Partial)),
            ("downloads-3.log.partial.partial", None),
            ("downloads-0.log", None),
            ("downloads-01.log", None),
            ("downloads-+1.log", None),
            ("downloads-3-2.run", None),
            ("downloads-18446744073709551615.log", None),
            ("downloads-99999999999999999999.log", None),
            ("downloads-1.run", None),
            ("swarms-1.log", None),
            ("lock", None),
        ] {
            assert_eq!(Name::parse(name), meaning, "{name}");
            if let Some(parsed @ (Name::Log(_) | Name::Run(..))) = meaning {
                assert_eq!(parsed.to_string(), name);
            }
        }
    }
}
