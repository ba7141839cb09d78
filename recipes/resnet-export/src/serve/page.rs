//! The page at `/`.

use axum::http::HeaderValue;
use sha2::{Digest, Sha256};

/// The page, and what a browser lets it do.
pub(super) struct Page {
    /// Its own script and style, told by their hashes, and requests to this service; nothing else.
    pub(super) policy: HeaderValue,
}

impl Page {
    /// One file, script and style within, so that a deployment needs no other.
    pub(super) const HTML: &'static str = include_str!("page/page.html");
}

impl Default for Page {
    fn default() -> Self {
        let script = hash(between(Self::HTML, "<script>", "</script>"));
        let style = hash(between(Self::HTML, "<style>", "</style>"));
        let policy = format!(
            "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src blob: data:; \
             connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        );
        // Without one the browser would allow more, not less, so that the page stays closed where it fails.
        let closed = HeaderValue::from_static("default-src 'none'");
        Self { policy: HeaderValue::from_str(&policy).unwrap_or(closed) }
    }
}

fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
    let after = text.split_once(start).map_or("", |(_, after)| after);
    after.split_once(end).map_or("", |(inner, _)| inner)
}

/// SHA-256 in base64, as policies have it.
fn hash(text: &str) -> String {
    base64(&Sha256::digest(text))
}

/// RFC 4648, section 4.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group =
            chunk.iter().fold(0u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let index = group >> (18 - 6 * digit) & 63;
            text.push(if digit <= chunk.len() { DIGITS[index as usize].into() } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        // RFC 4648, section 10.
        let table = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ];
        for (text, expected) in table {
            assert_eq!(base64(text.as_bytes()), expected);
        }
    }

    #[test]
    fn the_page_loads_nothing_and_allows_its_own_script_and_style_only() {
        for outside in ["http://", "https://", "src=\"", "@import", "onclick=", "style=\"", "innerHTML"] {
            assert!(!Page::HTML.contains(outside), "{outside}");
        }
        let policy = Page::default().policy;
        let policy = policy.to_str().unwrap();
        // Of nothing the hash would be 47DEQpj8...
        assert!(policy.contains("script-src 'sha256-") && !policy.contains("47DEQpj8"), "{policy}");
    }
}
