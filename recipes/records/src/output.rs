//! What the user sees on stdout.

pub(crate) use recipe_common::output::print;

/// Text of a file, whose control characters could move the cursor or change colours.
pub(crate) fn harmless(text: &str) -> String {
    let show = |character: char| match character.is_control() {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    };
    text.chars().map(show).collect()
}

/// A number of bytes for people: `97.8 MB`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let (mut number, mut unit) = (bytes as f64, 0);
    // Half of the last digit below 1000, so that nothing is shown as `1000.0 kB`.
    while number >= 999.95 && unit + 1 < UNITS.len() {
        number /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{number:.1} {}", UNITS[unit]) }
}

/// Columns of equal width, the last one as it is; empty cells leave no spaces at the end of a line.
pub(crate) fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_one_decimal_and_a_unit_of_thousands() {
        let shown = [0, 999, 1000, 999_949, 999_950, 102_540_000, u64::MAX].map(size);
        assert_eq!(shown, ["0 B", "999 B", "1.0 kB", "999.9 kB", "1.0 MB", "102.5 MB", "18446744.1 TB"]);
    }

    #[test]
    fn control_characters_of_a_file_do_not_reach_the_terminal() {
        assert_eq!(harmless("a\u{1b}[31m\n\"é\u{9b}"), "a\\u{1b}[31m\\n\"é\\u{9b}");
    }

    #[test]
    fn columns_line_up_and_lines_end_without_spaces() {
        let rows = [["a", "long", ""], ["name", "b", "c"]].map(|row| row.map(String::from));
        assert_eq!(table(&rows), "a     long\nname  b     c\n");
    }
}
