//! `labels.txt`: the name of each class, one a line, in the order of the logits.

use recipe_common::Result;

/// Reads the names; as many as the network has classes, none empty, none twice.
pub(crate) fn parse_labels(text: &str, classes: usize) -> Result<Vec<String>> {
    let _ = (text, classes);
    todo!("helper C")
}

/// The text for `labels`, if they can be told by lines.
pub(crate) fn write_labels(labels: &[String]) -> Result<String> {
    let _ = labels;
    todo!("helper C")
}
