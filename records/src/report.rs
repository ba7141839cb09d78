use std::fmt;

use burn::tensor::DType;

use crate::Names;

/// How a file's tensors and a model's parameters came together.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LoadReport {
    /// Whose names the file was taken to have.
    pub names: Names,
    /// What wrappers had put before every name of the file, and was removed: `module.`, say.
    pub prefix: Option<String>,
    /// Paths of the parameters that were loaded, in the model's order, as all lists of parameters here.
    pub loaded: Vec<String>,
    /// Parameters that the file has no tensor for.
    pub missing: Vec<Missing>,
    /// Tensors of the file that the model has no parameter for, without the prefix.
    pub unexpected: Vec<String>,
    /// Parameters whose tensor has another shape.
    pub misshapen: Vec<Misshapen>,
    /// Parameters whose tensor is of another kind.
    pub mistyped: Vec<Mistyped>,
    /// Paths of the parameters that the filter leaves out.
    pub skipped: Vec<String>,
}

/// A parameter that a file has no tensor for.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    /// Its path in the model.
    pub name: String,
    /// The name it was looked for by.
    pub key: String,
    /// The shape it would have in the file.
    pub shape: Vec<usize>,
}

/// A parameter whose tensor has another shape.
#[derive(Clone, Debug, PartialEq)]
pub struct Misshapen {
    /// Its path in the model.
    pub name: String,
    /// The tensor's name.
    pub key: String,
    /// The shape that the model needs, laid out as in the file.
    pub expected: Vec<usize>,
    /// The shape in the file.
    pub found: Vec<usize>,
}

/// A parameter whose tensor is of another kind, such as integers for weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Mistyped {
    /// Its path in the model.
    pub name: String,
    /// The tensor's name.
    pub key: String,
    /// What the model needs: `floating-point`, `integer`, `boolean`, or `quantized`, which no file can give.
    pub expected: &'static str,
    /// The type in the file.
    pub found: DType,
}

impl LoadReport {
    /// Whether every parameter that was asked for was loaded, and every tensor used.
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
            && self.unexpected.is_empty()
            && self.misshapen.is_empty()
            && self.mistyped.is_empty()
    }

    /// The names most like `name` among those without a partner on the other side: unexpected tensors for a missing
    /// parameter, missing parameters for an unexpected tensor. At most three.
    pub fn nearest(&self, name: &str) -> Vec<&str> {
        let unexpected = self.unexpected.iter().map(String::as_str);
        let missing = self.missing.iter().map(|missing| missing.key.as_str());
        match self.unexpected.iter().any(|tensor| tensor == name) {
            true => most_alike(name, missing),
            false => most_alike(name, unexpected),
        }
    }

    fn parameters(&self) -> usize {
        self.loaded.len()
            + self.missing.len()
            + self.misshapen.len()
            + self.mistyped.len()
            + self.skipped.len()
    }

    fn near(&self, name: &str) -> String {
        match self.nearest(name)[..] {
            [] => String::new(),
            ref names => format!("; nearest: {}", names.join(", ")),
        }
    }
}

/// How many candidates are compared, and how many lines of a list are printed: a file of another model altogether has
/// thousands of each.
const COMPARED: usize = 2_000;
const PRINTED: usize = 12;

fn most_alike<'a>(name: &str, among: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut scored: Vec<_> = among
        .take(COMPARED)
        .map(|other| (strsim::normalized_levenshtein(name, other), other))
        .filter(|&(score, _)| score > 0.5)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    scored.into_iter().take(3).map(|(_, other)| other).collect()
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = match self.names {
            Names::Torch => "PyTorch",
            _ => "Burn",
        };
        write!(f, "{} of {} parameters match ({names} names", self.loaded.len(), self.parameters())?;
        if let Some(prefix) = &self.prefix {
            write!(f, ", prefix `{prefix}` removed")?;
        }
        write!(f, ")")?;
        if !self.skipped.is_empty() {
            write!(f, ", {} left out by the filter", self.skipped.len())?;
        }
        section(f, "missing from the file", &self.missing, |Missing { name, key, shape }| {
            let by = if name == key { String::new() } else { format!(", as `{key}`") };
            format!("{name} {shape:?}{by}{}", self.near(key))
        })?;
        section(f, "not in the model", &self.unexpected, |name| format!("{name}{}", self.near(name)))?;
        section(f, "of another shape", &self.misshapen, |Misshapen { name, expected, found, .. }| {
            format!("{name}: the model needs {expected:?}, the file has {found:?}")
        })?;
        section(f, "of another kind", &self.mistyped, |Mistyped { name, expected, found, .. }| {
            format!("{name}: the model needs {expected} values, the file has {found:?}")
        })?;
        match self.is_complete() {
            true => Ok(()),
            false => {
                write!(f, "\nselect parameters with `LoadOptions::only`, or load what fits with `lenient`")
            }
        }
    }
}

fn section<T>(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    items: &[T],
    line: impl Fn(&T) -> String,
) -> fmt::Result {
    if items.is_empty() {
        return Ok(());
    }
    write!(f, "\n{title} ({}):", items.len())?;
    for item in items.iter().take(PRINTED) {
        write!(f, "\n  {}", line(item))?;
    }
    match items.len().saturating_sub(PRINTED) {
        0 => Ok(()),
        more => write!(f, "\n  and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_both_sides_and_the_nearest_candidates() {
        let missing = |name: &str, key: &str| Missing { name: name.into(), key: key.into(), shape: vec![10] };
        let report = LoadReport {
            names: Names::Torch,
            prefix: Some("module.".into()),
            loaded: vec!["conv1.weight".into()],
            missing: vec![missing("fc.bias", "fc.bias"), missing("bn1.gamma", "bn1.weight")],
            unexpected: vec!["bn_1.weight".into(), "classifier.bias".into()],
            misshapen: vec![Misshapen {
                name: "fc.weight".into(),
                key: "fc.weight".into(),
                expected: vec![10, 512],
                found: vec![1000, 512],
            }],
            ..LoadReport::default()
        };
        assert_eq!(
            report.to_string(),
            "1 of 4 parameters match (PyTorch names, prefix `module.` removed)\n\
             missing from the file (2):\n  \
             fc.bias [10]\n  \
             bn1.gamma [10], as `bn1.weight`; nearest: bn_1.weight\n\
             not in the model (2):\n  \
             bn_1.weight; nearest: bn1.weight\n  \
             classifier.bias\n\
             of another shape (1):\n  \
             fc.weight: the model needs [10, 512], the file has [1000, 512]\n\
             select parameters with `LoadOptions::only`, or load what fits with `lenient`"
        );
    }

    #[test]
    fn a_long_list_is_cut() {
        let unexpected = (0..100_000).map(|i| format!("layer{i}.weight")).collect();
        let text = LoadReport { unexpected, ..LoadReport::default() }.to_string();
        assert!(text.contains("not in the model (100000):") && text.contains("and 99988 more"), "{text}");
    }
}
