//! The name of the module, which is the files' name too.

use std::path::Path;

use recipe_common::{RecipeError, Result};

/// The words that Rust 2024 keeps for itself.
const KEYWORDS: [&str; 53] = [
    "Self", "_", "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate",
    "do", "dyn", "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let",
    "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return", "self",
    "static", "struct", "super", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use",
    "virtual", "where", "while", "yield",
];

/// The name that was asked for, or else that of the file, where a module can have it.
pub(super) fn choose(asked: Option<&str>, model: &Path) -> Result<String> {
    let of_file = model.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
    let name = asked.unwrap_or(&of_file);
    if is_module_name(name) {
        return Ok(name.to_owned());
    }
    let origin = if asked.is_some() {
        "is no name of a Rust module"
    } else {
        "of the file is no name of a Rust module"
    };
    Err(RecipeError::usage(
        "cannot name the module",
        format!("`{}` {origin}", name.escape_debug()),
        format!("give --name with letters, digits and underscores, such as --name {}", suggestion(name)),
    ))
}

fn is_module_name(name: &str) -> bool {
    let starts_well = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    starts_well && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !KEYWORDS.contains(&name)
}

/// The nearest name that is one.
fn suggestion(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' };
    let name: String = name.trim_matches(|c: char| !c.is_ascii_alphanumeric()).chars().map(plain).collect();
    match name.as_str() {
        "" => "network".into(),
        name if is_module_name(name) => name.into(),
        name => format!("network_{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_file_is_taken_unless_another_is_given() {
        let model = Path::new("a/resnet18.onnx");
        assert_eq!(choose(None, model).unwrap(), "resnet18");
        assert_eq!(choose(Some("_net2"), model).unwrap(), "_net2");
    }

    #[test]
    fn what_no_module_can_be_called_is_refused_with_what_it_could_be_called() {
        let cases = [
            ("resnet18-v1.5", "resnet18_v1_5"),
            ("18layers", "network_18layers"),
            ("mod", "network_mod"),
            ("../up", "up"),
            ("größe", "gr__e"),
            ("_", "network"),
            ("", "network"),
        ];
        for (name, better) in cases {
            let error = choose(Some(name), Path::new("x.onnx")).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.remedy.ends_with(&format!("--name {better}")), "{name}: {}", error.remedy);
            assert!(is_module_name(better));
        }
        let error = choose(None, Path::new("resnet-18.onnx")).unwrap_err();
        assert_eq!(error.cause, "`resnet-18` of the file is no name of a Rust module");
    }

    #[test]
    fn every_keyword_is_refused() {
        assert!(KEYWORDS.iter().all(|keyword| !is_module_name(keyword)));
        assert!(KEYWORDS.is_sorted());
    }
}
