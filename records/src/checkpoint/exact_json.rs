//! JSON whose numbers come back as they were written.
//!
//! serde_json reads a number with a fraction or an exponent to within one unit in the last place: its feature
//! `float_roundtrip` is off, and turning it on would be for the whole program. That is too far for a training that goes on
//! bit for bit. So such numbers pass through it as strings here, and the standard library reads them, which is exact.

use serde_json::{Number, Value};

/// Parses `text`; what is wrong with it otherwise.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    let mut value = serde_json::from_str(&quote_floats(text)).map_err(|error| error.to_string())?;
    unquote_floats(&mut value)?;
    Ok(value)
}

/// Begins a string that stands for a number. One that begins so by itself gets it a second time.
const FLOAT: char = '\u{0}';
/// How JSON spells it: there is no other way.
const ESCAPED_FLOAT: &str = "\\u0000";

/// `text` with every number that has a fraction or an exponent as a string.
fn quote_floats(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit()) {
        quoted.push_str(&rest[..start]);
        rest = &rest[start..];
        let token = if rest.starts_with('"') {
            &rest[..string_length(rest)]
        } else {
            let is_part = |c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'e' | 'E');
            &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())]
        };
        match token.strip_prefix('"') {
            Some(inner) if inner.starts_with(ESCAPED_FLOAT) => quoted.extend(["\"", ESCAPED_FLOAT, inner]),
            None if token.contains(['.', 'e', 'E']) => quoted.extend(["\"", ESCAPED_FLOAT, token, "\""]),
            _ => quoted.push_str(token),
        }
        rest = &rest[token.len()..];
    }
    quoted.push_str(rest);
    quoted
}

/// Bytes of the JSON string that `text` begins with.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (index, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            b'"' if !escaped => return index + 1,
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

/// Undoes [`quote_floats`].
fn unquote_floats(value: &mut Value) -> Result<(), String> {
    match value {
        Value::Array(items) => items.iter_mut().try_for_each(unquote_floats),
        Value::Object(items) => {
            items.values_mut().try_for_each(unquote_floats)?;
            if items.keys().any(|key| key.starts_with(FLOAT)) {
                *items = std::mem::take(items).into_iter().map(unquote_key).collect::<Result<_, _>>()?;
            }
            Ok(())
        }
        Value::String(text) => {
            let Some(rest) = text.strip_prefix(FLOAT) else { return Ok(()) };
            *value = if rest.starts_with(FLOAT) {
                Value::String(rest.into())
            } else {
                let number = rest.parse().ok().and_then(Number::from_f64);
                Value::Number(number.ok_or_else(|| format!("`{rest}` is not a number"))?)
            };
            Ok(())
        }
        _ => Ok(()),
    }
}

fn unquote_key((key, value): (String, Value)) -> Result<(String, Value), String> {
    match key.strip_prefix(FLOAT) {
        Some(rest) if rest.starts_with(FLOAT) => Ok((rest.into(), value)),
        Some(rest) => Err(format!("the number `{rest}` stands where a key should")),
        None => Ok((key, value)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::state::step_seed;
    use super::*;

    #[test]
    fn every_float_comes_back_to_the_last_bit() {
        // Each is a random pattern of bits, which serde_json alone would often read one unit off.
        let floats: Vec<f64> = (0..20_000)
            .map(|index| f64::from_bits(step_seed(7, index, 0)))
            .filter(|float| float.is_finite())
            .collect();
        let found = parse(&json!(floats).to_string()).unwrap();
        let bits = |value: &Value| value.as_f64().unwrap().to_bits();
        let found: Vec<u64> = found.as_array().unwrap().iter().map(bits).collect();
        assert_eq!(found, floats.iter().map(|float| float.to_bits()).collect::<Vec<_>>());
    }

    #[test]
    fn all_else_is_as_serde_json_has_it() {
        for text in [
            r#"{"a \" 1.5 \\": ["\\", "1.5", "-2e3", 7, -7], "1e5": {}, "true": true, "n": null, "s": "\\\""}"#,
            "18446744073709551615",
            "-9223372036854775808",
            " [ ] ",
            r#"["\u0000", "\u00001.5", "\u0000\u0000", {"\u00001.5": "\u0000x", "b": 1}]"#,
            r#""\u00e9 é 1.5""#,
        ] {
            assert_eq!(parse(text), Ok(serde_json::from_str(text).unwrap()), "{text}");
        }
    }

    #[test]
    fn what_is_no_json_is_none_here() {
        for text in
            ["", "1.5.5", "1e", "--1", "+1.5", "1.5 2.5", "[1.5", "\"", "\"\\", "{1.5: 2}", "1e999", "-"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
