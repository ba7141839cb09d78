//! The file within a form's body.

use axum::body::Bytes;

/// The boundary that a `Content-Type` of `multipart/form-data` names.
pub(super) fn boundary(content_type: &str) -> Option<String> {
    let parameters = content_type.split(';').skip(1);
    let value = parameters.filter_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"'))
    });
    // RFC 2046, 5.1.1: 1 to 70 characters.
    value.filter(|value| (1..=70).contains(&value.len())).map(str::to_owned).next()
}

/// The content of the form's first file, or of its first field where none is a file; none where there is no whole part.
///
/// Source: RFC 7578 and RFC 2046, 5.1.
pub(super) fn file(body: &Bytes, boundary: &str) -> Option<Bytes> {
    let delimiter = format!("--{boundary}");
    let next = format!("\r\n{delimiter}");
    let mut first = None;
    let mut at = find(body, delimiter.as_bytes())? + delimiter.len();
    while body.get(at..at + 2) == Some(b"\r\n") {
        // From the line end on, so that a part without headers has its empty line too.
        let headers = at + find(&body[at..], b"\r\n\r\n")?;
        let content = headers + 4;
        let end =
            content.checked_sub(2).and_then(|from| Some(from + find(&body[from..], next.as_bytes())?))?;
        let part = body.slice(content..end.max(content));
        let head = String::from_utf8_lossy(&body[at..headers]).to_ascii_lowercase();
        if head.contains("filename") {
            return Some(part);
        }
        first.get_or_insert(part);
        at = end + next.len();
    }
    first
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        // Nearly every byte is no candidate, and looking for one is fast.
        let at = from + bytes[from..].iter().position(|byte| *byte == wanted[0])?;
        if bytes[at..].starts_with(wanted) {
            return Some(at);
        }
        from = at + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boundary_is_read_with_and_without_quotes() {
        assert_eq!(boundary("multipart/form-data; boundary=abc").as_deref(), Some("abc"));
        assert_eq!(boundary("multipart/form-data; charset=x; Boundary=\"a b\"").as_deref(), Some("a b"));
        assert_eq!(boundary("multipart/form-data"), None);
        assert_eq!(boundary("multipart/form-data; boundary="), None);
    }

    #[test]
    fn the_file_of_a_form_is_found_among_its_fields() {
        let form = b"--xx\r\nContent-Disposition: form-data; name=\"note\"\r\n\r\nhello\r\n--xx\r\n\
            Content-Disposition: form-data; name=\"image\"; filename=\"a.png\"\r\nContent-Type: image/png\r\n\r\n\
            \x89PNG\r\n--x\r\n\xff\r\n--xx--\r\n";
        assert_eq!(file(&Bytes::from_static(form), "xx").unwrap(), &b"\x89PNG\r\n--x\r\n\xff"[..]);
        let field = b"--b\r\nContent-Disposition: form-data; name=\"i\"\r\n\r\nJPEG\r\n--b--";
        assert_eq!(file(&Bytes::from_static(field), "b").unwrap(), "JPEG");
        assert_eq!(file(&Bytes::from_static(b"--b\r\n\r\n\r\n--b--"), "b").unwrap(), "");
    }

    #[test]
    fn every_beginning_of_a_form_is_refused_and_none_panics() {
        let form = b"--b\r\nA: filename\r\n\r\nx\r\n--b--";
        for length in 0..form.len() - 2 {
            assert_eq!(file(&Bytes::from_static(&form[..length]), "b"), None, "{length}");
        }
        assert_eq!(file(&Bytes::from_static(form), "c"), None);
    }
}
