//! The page at `/`, in a browser.

use serde_json::{Value, json};

use super::support::colours::package;
use super::support::pictures::{GREEN, RED, jpeg, png};
use super::support::server::Server;
use super::support::skip;
use super::support::webdriver::Browser;

/// Drops a file of these bytes on the page, as a browser does.
const DROP: &str = r#"
const [bytes, name] = arguments;
const transfer = new DataTransfer();
transfer.items.add(new File([new Uint8Array(bytes)], name));
const target = document.getElementById("drop");
for (const kind of ["dragenter", "dragover", "drop"])
  target.dispatchEvent(new DragEvent(kind, { dataTransfer: transfer, bubbles: true, cancelable: true }));
"#;

fn browser(test: &str) -> Option<Browser> {
    Browser::start().inspect_err(|reason| skip(test, reason)).ok()
}

#[test]
fn a_picture_that_is_chosen_or_dropped_shows_its_classes_and_another_file_its_error() {
    let Some(browser) = browser("a_picture_that_is_chosen_or_dropped_shows_its_classes") else { return };
    let (package, files) = (package(), tempfile::tempdir().unwrap());
    let server = Server::start(package.path(), &["--max-body-mb", "1"]);
    let file = |name: &str, bytes: &[u8]| {
        let path = files.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    browser.open(&format!("http://{}/", server.address));
    browser.wait_for("#about", |text| text.starts_with("colours knows 3 classes."));
    assert!(browser.text("#limits").contains("up to 1 MB"));
    assert_eq!(browser.text("#said"), "");

    browser.type_into("#file", &file("meadow.jpg", &jpeg(GREEN)));
    browser.wait_for("#name", |text| text.starts_with("meadow.jpg: most likely green, "));
    let rows = browser.text("#classes");
    assert!(rows.starts_with("green\n") && rows.contains("red\n") && rows.contains("blue\n"), "{rows}");
    assert!(browser.text("#time").contains(" ms in the service"));
    let shown = browser.script(
        "const p = document.getElementById('preview'); return [p.hidden, p.naturalWidth, p.alt];",
        &[],
    );
    assert_eq!(shown, json!([false, 40, "The chosen picture, meadow.jpg"]));
    let widths = "return [...document.querySelectorAll('.bar')].map(bar => bar.offsetWidth / bar.parentElement.clientWidth);";
    let widths = browser.script(widths, &[]);
    let widths: Vec<f64> = widths.as_array().unwrap().iter().map(|width| width.as_f64().unwrap()).collect();
    assert!(widths.len() == 3 && widths[0] > 0.9 && widths[1] < 0.1, "{widths:?}");
    assert_eq!(browser.errors(), []);

    let bytes: Value = png(RED).into();
    browser.script(DROP, &[bytes, "sunset.png".into()]);
    browser.wait_for("#name", |text| text.starts_with("sunset.png: most likely red, "));
    assert!(browser.text("#classes").starts_with("red\n"));
    assert_eq!(browser.errors(), []);

    browser.type_into("#file", &file("notes.jpg", b"not a picture"));
    browser.wait_for("#error", |text| {
        text.eq_ignore_ascii_case("this is no JPEG or PNG image but something else.")
    });
    assert!(browser.text("#help").eq_ignore_ascii_case("give a JPEG or PNG image."));
    assert_eq!((browser.text("#classes"), browser.text("#again")), (String::new(), String::new()));
    // The browser itself notes every answer of 400 and above; the page has no part in it.
    let errors = browser.errors();
    assert!(errors.iter().all(|(source, text)| source == "network" && text.contains("415")), "{errors:?}");

    browser.type_into("#file", &file("large.jpg", &vec![0; 2 << 20]));
    browser.wait_for("#error", |text| text == "The file has 2 MB, and 1 MB are allowed.");
    browser.type_into("#file", &file("after.png", &png(GREEN)));
    browser.wait_for("#name", |text| text.starts_with("after.png: most likely green"));
    assert_eq!((browser.text("#wrong"), browser.errors()), (String::new(), vec![]));

    drop(server);
    browser.type_into("#file", &file("late.png", &png(GREEN)));
    browser.wait_for("#error", |text| text == "The service does not answer.");
    assert_eq!(browser.text("#again"), "Try again");
}

#[test]
fn the_page_can_be_used_by_keyboard_and_screen_reader() {
    let Some(browser) = browser("the_page_can_be_used_by_keyboard_and_screen_reader") else { return };
    let package = package();
    let server = Server::start(package.path(), &[]);
    browser.open(&format!("http://{}/", server.address));
    browser.press("\u{e004}");
    let focus = "const f = document.activeElement; return [f.id, f.matches(':focus-visible')];";
    assert_eq!(browser.script(focus, &[]), json!(["file", true]));
    assert_eq!(browser.label("#file"), "Drop a picture here, or choose one");
    let outline = "return getComputedStyle(document.getElementById('drop')).outlineStyle;";
    assert_eq!(browser.script(outline, &[]), "solid");
    let roles = "return ['name', 'wrong'].map(id => document.getElementById(id).getAttribute('role'));";
    assert_eq!(browser.script(roles, &[]), json!(["status", "alert"]));
    let list = "return document.getElementById('classes').getAttribute('aria-label');";
    assert_eq!(browser.script(list, &[]), "Classes, the most probable first");
    assert_eq!(browser.script("return document.documentElement.lang", &[]), "en");
    assert_eq!(browser.errors(), []);
}
