//! What a tool prints as its result, and the files that it writes it to.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;

use crate::error::{RecipeError, Result};

/// Writes `text` to stdout. A reader that has closed its end, such as `head`, has seen enough.
///
/// # Errors
/// Where the output cannot be written for another reason, such as a full disk.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(RecipeError::failure(
            "cannot write to the standard output",
            error.to_string(),
            "check where the output goes and that the disk has space",
        )),
        _ => Ok(()),
    }
}

/// Writes a file where one is asked for.
///
/// # Errors
/// Where it cannot be written.
pub fn save(path: Option<&Path>, text: impl FnOnce() -> String) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    fs::write(path, text()).map_err(|error| RecipeError::file("write", path, error))
}

/// Refuses a file that could not be written, before minutes of measuring for it.
///
/// # Errors
/// Where it cannot be opened for writing.
pub fn check_writable(path: Option<&Path>) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let file = fs::OpenOptions::new().create(true).append(true).open(path);
    file.map(drop).map_err(|error| RecipeError::file("write", path, error))
}

/// A table in Markdown, whose first column is text and whose others are numbers.
pub fn table(header: &[String], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule: Vec<String> =
        (0..header.len()).map(|column| if column == 0 { "---" } else { "--:" }.to_owned()).collect();
    let rows: String = rows.iter().map(|row| line(row)).collect();
    line(header) + &line(&rule) + &rows
}

/// Seconds for people, with three digits: `12.3 µs`, `8.21 ms`.
pub fn time(seconds: f64) -> String {
    let (number, unit) = match seconds {
        seconds if seconds < 1e-3 => (seconds * 1e6, "µs"),
        seconds if seconds < 1.0 => (seconds * 1e3, "ms"),
        seconds => (seconds, "s"),
    };
    format!("{} {unit}", digits(number))
}

/// Three digits.
pub fn digits(number: f64) -> String {
    let decimals = match number.abs() {
        number if number < 9.995 => 2,
        number if number < 99.95 => 1,
        _ => 0,
    };
    format!("{number:.decimals$}")
}

/// Text of a file, whose control characters could move the cursor or change colours.
pub fn harmless(text: &str) -> String {
    let show = |character: char| match character.is_control() {
        true => character.escape_default().to_string(),
        false => character.to_string(),
    };
    text.chars().map(show).collect()
}

/// A number of bytes for people: `97.8 MB`.
pub fn size(bytes: u64) -> String {
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
pub fn columns<const N: usize>(rows: &[[String; N]]) -> String {
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
    fn numbers_have_three_digits_and_times_a_unit() {
        assert_eq!([1.0, 9.999, 12.34, 99.96, 123.4].map(digits), ["1.00", "10.0", "12.3", "100", "123"]);
        assert_eq!([1.5e-6, 8.214e-3, 2.0].map(time), ["1.50 µs", "8.21 ms", "2.00 s"]);
    }

    #[test]
    fn a_table_has_a_rule_below_its_header() {
        let text = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let table = table(&text(["a", "b"]), &[text(["c", "1"])]);
        assert_eq!(table, "| a | b |\n| --- | --: |\n| c | 1 |\n");
    }

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
        assert_eq!(columns(&rows), "a     long\nname  b     c\n");
    }
}
