//! `classify`.

use std::fs;

use serde_json::Value;

use super::support::colours::{package, probability};
use super::support::pictures::{BLUE, GREEN, RED, bomb, jpeg, png};
use super::support::{RECIPE, run, stderr, stdout};

#[test]
fn each_image_is_a_line_with_its_classes() {
    let (package, pictures) = (package(), tempfile::tempdir().unwrap());
    let path = |name: &str| pictures.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("a.png"), png(RED)).unwrap();
    // The content counts, not the name.
    fs::write(path("b.png"), jpeg(BLUE)).unwrap();
    let from = package.path().to_str().unwrap();
    let output = run(RECIPE, &["classify", &path("a.png"), &path("b.png"), "--from", from, "--top", "2"]);
    let lines: Vec<&str> = stdout(&output).lines().collect();
    assert!(output.status.success() && lines.len() == 2, "{output:?}");
    let share = |class| format!("{:.1}%", 100.0 * probability(RED, class));
    assert_eq!(lines[0], format!("{}: red {}, blue {}", path("a.png"), share(0), share(2)));
    assert!(lines[1].starts_with(&format!("{}: blue ", path("b.png"))), "{lines:?}");
    assert!(stderr(&output).is_empty());
}

#[test]
fn a_bad_image_is_told_and_the_others_are_classified() {
    let (package, pictures) = (package(), tempfile::tempdir().unwrap());
    let path = |name: &str| pictures.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("good.png"), png(GREEN)).unwrap();
    fs::write(path("cut.jpg"), &jpeg(RED)[..200]).unwrap();
    fs::write(path("bomb.jpg"), bomb()).unwrap();
    fs::write(path("text.jpg"), "hello").unwrap();
    let images = ["cut.jpg", "bomb.jpg", "good.png", "text.jpg", "gone.jpg"].map(path);
    let mut args = vec!["classify".to_owned(), "--json".into(), "--verbose".into(), "--from".into()];
    args.push(package.path().to_str().unwrap().into());
    args.extend(images.clone());
    let output = run(RECIPE, &args);
    assert_eq!(output.status.code(), Some(1));
    let lines: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 5);
    for (line, image) in lines.iter().zip(&images) {
        assert_eq!(line["image"], image.as_str());
        let good = image.ends_with("good.png");
        assert_eq!((line.get("predictions").is_some(), line.get("error").is_some()), (good, !good), "{line}");
    }
    let found = &lines[2]["predictions"][0];
    assert_eq!((&found["label"], &found["class"]), (&"green".into(), &1.into()));
    assert!((found["probability"].as_f64().unwrap() - probability(GREEN, 1)).abs() < 1e-5);
    assert!(lines[2]["peak_memory_bytes"].as_u64().unwrap() > 1 << 20);
    let said = stderr(&output);
    for text in [
        "cut off",
        "65000x65000",
        "something else",
        "gone.jpg",
        "4 of 5 images were not classified",
        "peak memory ",
    ] {
        assert!(said.contains(text), "{text:?} is not in {said}");
    }
}
