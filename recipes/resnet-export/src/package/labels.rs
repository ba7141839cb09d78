//! `labels.txt`: the name of each class, one a line, in the order of the logits.

use std::collections::HashSet;

use recipe_common::{RecipeError, Result};

/// Reads the names; as many as the network has classes, none empty, none twice.
///
/// # Errors
/// With the first line that is wrong.
pub(crate) fn parse_labels(text: &str, classes: usize) -> Result<Vec<String>> {
    // Editors of other systems begin a file with it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let labels: Vec<String> = text.lines().map(str::to_owned).collect();
    if labels.len() != classes {
        return Err(refused(
            format!("{} names for {classes} classes", labels.len()),
            "give one name a line for each class of the network, in the order of its outputs",
        ));
    }
    check(&labels)?;
    Ok(labels)
}

/// The text for `labels`, if they can be told by lines.
///
/// # Errors
/// For a name that is empty, there twice, or more than a line.
pub(crate) fn write_labels(labels: &[String]) -> Result<String> {
    check(labels)?;
    Ok(labels.iter().flat_map(|label| [label, "\n"]).collect())
}

fn check(labels: &[String]) -> Result<()> {
    let mut seen = HashSet::new();
    for (class, label) in labels.iter().enumerate() {
        let line = class + 1;
        let wrong = if label.trim().is_empty() {
            format!("line {line} is empty")
        } else if label.contains(char::is_control) {
            format!("line {line} has control characters: {label:?}")
        } else if !seen.insert(label) {
            format!("line {line} repeats the name {label:?}")
        } else {
            continue;
        };
        return Err(refused(wrong, "give each class a name of its own, one a line"));
    }
    Ok(())
}

fn refused(cause: String, remedy: &str) -> RecipeError {
    RecipeError::usage("the labels cannot be used", cause, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(labels: &[&str]) -> Vec<String> {
        labels.iter().map(|label| (*label).to_owned()).collect()
    }

    #[test]
    fn names_are_read_back_as_they_were_written() {
        let labels = owned(&["tench, Tinca", "  great white ", "é", "#4"]);
        assert_eq!(parse_labels(&write_labels(&labels).unwrap(), 4).unwrap(), labels);
    }

    #[test]
    fn line_ends_and_marks_of_other_systems_are_no_part_of_a_name() {
        assert_eq!(parse_labels("\u{feff}cat\r\ndog", 2).unwrap(), owned(&["cat", "dog"]));
    }

    #[test]
    fn another_number_of_names_is_refused_with_both_numbers() {
        let error = parse_labels("cat\ndog\n", 10).unwrap_err();
        assert_eq!((error.cause.as_str(), error.exit_code()), ("2 names for 10 classes", 2));
        assert_eq!(parse_labels("", 1).unwrap_err().cause, "0 names for 1 classes");
    }

    #[test]
    fn empty_repeated_and_unprintable_names_are_refused_with_their_line() {
        let cause = |text: &str| parse_labels(text, 3).unwrap_err().cause;
        assert_eq!(cause("cat\n\ndog\n"), "line 2 is empty");
        assert_eq!(cause("cat\ndog\ncat\n"), "line 3 repeats the name \"cat\"");
        assert_eq!(cause("cat\ndog\nc\u{1b}[31m\n"), "line 3 has control characters: \"c\\u{1b}[31m\"");
        assert!(write_labels(&owned(&["two\nlines"])).is_err());
    }
}
