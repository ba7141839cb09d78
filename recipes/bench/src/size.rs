//! Sizes as people write them.

use std::fmt;
use std::str::FromStr;

/// A number of bytes that f32 divides: `64KB`, `26MB`, `1KiB`, `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) usize);

const UNITS: [(&str, usize); 7] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];
/// Two ranks with a buffer each, and the arrays of the triad, still fit a small machine.
const MOST_BYTES: usize = 2_000_000_000;

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unit = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
        let (number, factor) = unit.unwrap_or((text, 1));
        let number: usize = number.trim().parse().map_err(|_| {
            "it is no whole number with a unit: use B, KB, MB, GB, KiB, MiB or GiB, such as 64KB".to_owned()
        })?;
        match number.checked_mul(factor) {
            Some(bytes) if bytes == 0 || bytes % 4 != 0 => {
                Err("the values are f32 and have 4 bytes each: give a multiple of 4".to_owned())
            }
            Some(bytes) if bytes <= MOST_BYTES => Ok(Self(bytes)),
            _ => Err("it is too large: give 2 GB or less".to_owned()),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |(_, factor): &&(&str, usize)| self.0.is_multiple_of(*factor) && *factor <= self.0;
        match UNITS.iter().filter(fits).max_by_key(|(_, factor)| *factor) {
            Some((unit, factor)) => write!(f, "{} {unit}", self.0 / factor),
            None => write!(f, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_thousands_and_in_powers_of_two_and_shown_in_the_largest_unit_that_fits() {
        let cases = [
            ("1KB", 1_000, "1 KB"),
            ("102MB", 102_000_000, "102 MB"),
            ("4 MiB", 4 << 20, "4 MiB"),
            ("1004", 1_004, "1004 B"),
            ("16B", 16, "16 B"),
        ];
        for (text, bytes, shown) in cases {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.0, size.to_string()), (bytes, shown.to_owned()), "{text}");
        }
    }

    #[test]
    fn sizes_that_cannot_be_measured_are_refused_with_what_would_do() {
        for (text, words) in [
            ("", "such as 64KB"),
            ("1.5MB", "such as 64KB"),
            ("-4", "such as 64KB"),
            ("0", "multiple of 4"),
            ("1002", "multiple of 4"),
            ("3GB", "2 GB or less"),
            ("99999999999999999GB", "2 GB or less"),
        ] {
            assert!(text.parse::<Size>().unwrap_err().contains(words), "{text}");
        }
    }
}
