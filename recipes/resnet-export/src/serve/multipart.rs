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

/// The content of the form's first file that is not empty, as those are where nothing was chosen; without one, that of its
/// first file, or of its first field where none is a file. None where there is no whole part.
///
/// Source: RFC 7578 and RFC 2046, 5.1.
pub(super) fn file(body: &Bytes, boundary: &str) -> Option<Bytes> {
    let delimiter = format!("--{boundary}");
    let next = format!("\r\n{delimiter}");
    let (mut empty, mut field) = (None, None);
    let mut at = find(body, delimiter.as_bytes())? + delimiter.len();
    while body.get(at..at + 2) == Some(b"\r\n") {
        // From the line end on, so that a part without headers has its empty line too.
        let headers = at + find(&body[at..], b"\r\n\r\n")?;
        let content = headers + 4;
        let end =
            content.checked_sub(2).and_then(|from| Some(from + find(&body[from..], next.as_bytes())?))?;
        let part = body.slice(content..end.max(content));
        match (is_file(&String::from_utf8_lossy(&body[at..headers])), part.is_empty()) {
            (true, false) => return Some(part),
            (true, true) => empty = empty.or(Some(part)),
            (false, _) => field = field.or(Some(part)),
        }
        at = end + next.len();
    }
    empty.or(field)
}

/// Whether a part's headers give it the name of a file: a parameter `filename` or `filename*` (RFC 6266, 4.1).
fn is_file(headers: &str) -> bool {
    let dispositions = headers.lines().filter_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    });
    dispositions.flat_map(parameters).any(|parameter| {
        let name = parameter.split_once('=').map_or("", |(name, _)| name.trim());
        ["filename", "filename*"].iter().any(|file| name.eq_ignore_ascii_case(file))
    })
}

/// What stands after each semicolon that is not within quotes.
fn parameters(value: &str) -> impl Iterator<Item = &str> {
    let (mut quoted, mut escaped) = (false, false);
    let separates = move |c: char| {
        let is_escaped = std::mem::take(&mut escaped);
        match c {
            '"' if !is_escaped => quoted = !quoted,
            '\\' if quoted && !is_escaped => escaped = true,
            _ => {}
        }
        c == ';' && !quoted
    };
    value.split(separates).skip(1)
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
    fn a_file_is_told_by_its_parameter_and_not_by_a_word() {
        let of = |text: &str| is_file(&format!("A: b\r\ncontent-disposition: {text}\r\nC: d"));
        assert!(of("form-data; name=x; FileName=a.png") && of("form-data; filename*=UTF-8''a.png"));
        assert!(of(r#"form-data; name="a \"; b"; filename="c""#));
        for field in [
            r#"form-data; name="filename""#,
            r#"form-data; name="a; filename=b""#,
            r#"form-data; name="a\"; filename=b""#,
            "form-data; filename",
            "filename=a",
        ] {
            assert!(!of(field), "{field}");
        }
        assert!(!is_file("X-Other: form-data; filename=a"));
    }

    #[test]
    fn a_field_named_filename_and_a_file_that_was_not_chosen_are_passed_over() {
        let part = |disposition: &str, content: &str| {
            format!("--b\r\nContent-Disposition: form-data; {disposition}\r\n\r\n{content}\r\n")
        };
        let of = |parts: &[String]| file(&Bytes::from(format!("{}--b--", parts.concat())), "b").unwrap();
        let field = part("name=\"filename\"", "holiday.png");
        let empty = part("name=\"first\"; filename=\"\"", "");
        let picture = part("name=\"second\"; filename=\"a.png\"", "PNG");
        assert_eq!(of(&[field.clone(), empty.clone(), picture]), "PNG");
        assert_eq!(of(&[field.clone(), empty]), "");
        assert_eq!(of(&[field]), "holiday.png");
    }

    #[test]
    fn every_beginning_of_a_form_is_refused_and_none_panics() {
        let form = b"--b\r\nContent-Disposition: form-data; filename=a\r\n\r\nx\r\n--b--";
        for length in 0..form.len() - 2 {
            assert_eq!(file(&Bytes::from_static(&form[..length]), "b"), None, "{length}");
        }
        assert_eq!(file(&Bytes::from_static(form), "c"), None);
    }
}
