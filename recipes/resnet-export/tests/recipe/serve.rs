//! `serve`.

use std::time::{Duration, Instant};

use super::support::client::Client;
use super::support::colours::{package, probability};
use super::support::pictures::{BLUE, GREEN, RED, bomb, jpeg, png};
use super::support::server::{PATIENCE, Server, json, refusal};
use super::support::{RECIPE, run, stderr};

#[test]
fn a_picture_gets_its_classes_with_the_probabilities_of_the_formula() {
    let package = package();
    let server = Server::start(package.path(), &[]);
    for (colour, label) in [(RED, "red"), (GREEN, "green"), (BLUE, "blue")] {
        for body in [png(colour), jpeg(colour)] {
            let reply = server.classify(&body);
            let answer = json(&reply);
            assert_eq!(reply.status, 200, "{answer}");
            let predictions = answer["predictions"].as_array().unwrap();
            assert_eq!((predictions.len(), &predictions[0]["label"]), (3, &label.into()));
            for prediction in predictions {
                let class = prediction["class"].as_u64().unwrap() as usize;
                let expected = probability(colour, class);
                // JPEG's colours are up to two off: 10 * 2 / 255 of a logit.
                let found = prediction["probability"].as_f64().unwrap();
                assert!((found - expected).abs() < 0.08 * expected + 1e-6, "{found} is not {expected}");
            }
            assert!(answer["milliseconds"].as_f64().unwrap() > 0.0 && answer["batch"] == 1, "{answer}");
        }
    }
    let exact = json(&server.classify(&png(GREEN)));
    let found = exact["predictions"][0]["probability"].as_f64().unwrap();
    assert!((found - probability(GREEN, 1)).abs() < 1e-5, "{exact}");
    assert_eq!(json(&server.send("GET", "/healthz", &[], &[]))["engine"], exact["engine"]);
}

#[test]
fn top_says_how_many_classes_are_told() {
    let package = package();
    let server = Server::start(package.path(), &[]);
    let of = |path: &str| server.send("POST", path, &[], &png(BLUE));
    assert_eq!(json(&of("/classify?top=1"))["predictions"].as_array().unwrap().len(), 1);
    assert_eq!(json(&of("/classify?top=99"))["predictions"].as_array().unwrap().len(), 3);
    assert_eq!(refusal(&of("/classify?top=none")), (400, "top is \"none\"".into()));
}

#[test]
fn forms_chunks_and_kept_connections_are_understood() {
    let package = package();
    let server = Server::start(package.path(), &[]);
    let form = [
        b"--xyz\r\nContent-Disposition: form-data; name=\"a\"; filename=\"a.png\"\r\n\r\n".as_slice(),
        &png(RED),
        b"\r\n--xyz--\r\n",
    ]
    .concat();
    let kind = [("Content-Type", "multipart/form-data; boundary=xyz")];
    let mut client = server.client();
    let reply = client.send("POST", "/classify", &kind, &form).unwrap();
    assert_eq!(json(&reply)["predictions"][0]["label"], "red");
    let cut = client.send("POST", "/classify", &kind, &form[..form.len() - 12]).unwrap();
    assert_eq!(refusal(&cut), (400, "the form has no whole file in it".into()));

    // The same connection, in chunks of 100 bytes.
    let mut chunked = b"POST /classify HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for chunk in png(GREEN).chunks(100) {
        chunked.extend(format!("{:x}\r\n", chunk.len()).into_bytes());
        chunked.extend(chunk);
        chunked.extend(b"\r\n");
    }
    client.write(&[&chunked[..], b"0\r\n\r\n"].concat()).unwrap();
    assert_eq!(json(&client.read().unwrap())["predictions"][0]["label"], "green");
}

#[test]
fn each_bad_request_has_its_status_and_says_what_to_do() {
    let package = package();
    let server = Server::start(package.path(), &["--max-body-mb", "1", "--max-megapixels", "1"]);
    let of = |body: &[u8]| refusal(&server.classify(body));
    let whole = jpeg(RED);
    let said = "this is no JPEG or PNG image but ";
    assert_eq!(of(b"GIF89a and so on"), (415, format!("{said}a GIF image")));
    assert_eq!(of(b"hello"), (415, format!("{said}something else")));
    assert_eq!(of(b""), (415, format!("{said}nothing at all")));
    let (status, error) = of(&whole[..whole.len() / 2]);
    assert_eq!((status, error.starts_with("the image is cut off")), (422, true), "{error}");
    let mut damaged = png(RED);
    damaged[60] ^= 0xff;
    let (status, error) = of(&damaged);
    assert_eq!((status, error.starts_with("the image is damaged")), (422, true), "{error}");
    let (status, error) = of(&bomb());
    assert_eq!((status, error.contains("65000x65000")), (413, true), "{error}");
    assert_eq!(of(&vec![0; (1 << 20) + 1]), (413, "the body has more than 1 MB".into()));

    let other = |method: &str, path: &str, kind: &str| {
        refusal(&server.send(method, path, &[("Content-Type", kind)], &whole))
    };
    assert_eq!(other("POST", "/classify", "multipart/form-data").0, 400);
    assert_eq!(other("PUT", "/classify", "image/png").0, 405);
    assert_eq!(other("GET", "/nothing", "image/png").0, 404);
    let encoded = server.send("POST", "/classify", &[("Content-Encoding", "gzip")], &whole);
    assert_eq!(refusal(&encoded).0, 415);
    assert_eq!(server.classify(&whole).status, 200);
}

#[test]
fn the_content_counts_and_not_the_type_that_is_said() {
    let package = package();
    let server = Server::start(package.path(), &[]);
    // The first is what curl says of --data-binary.
    for kind in ["application/x-www-form-urlencoded", "image/jpeg", "text/plain; charset=utf-8", ""] {
        let reply = server.send("POST", "/classify?top=1", &[("Content-Type", kind)], &png(GREEN));
        assert_eq!(
            (reply.status, &json(&reply)["predictions"][0]["label"]),
            (200, &"green".into()),
            "{kind}"
        );
        let page = server.send("POST", "/classify", &[("Content-Type", kind)], b"<html>");
        let error = "this is no JPEG or PNG image but something else";
        assert_eq!(refusal(&page), (415, error.into()));
    }
}

#[test]
fn a_client_that_sends_a_large_body_reads_why_it_is_refused() {
    let package = package();
    let server = Server::start(package.path(), &[]);
    let body = vec![0; 8 << 20];
    for (method, path, encoding, status) in [
        ("POST", "/classify", "gzip", 415),
        ("POST", "/classify?top=0", "identity", 400),
        ("PUT", "/classify", "identity", 405),
        ("POST", "/nothing", "identity", 404),
    ] {
        // Without the body being read, nearly every second client loses its connection before it has the answer.
        for _ in 0..8 {
            let reply = server.send(method, path, &[("Content-Encoding", encoding)], &body);
            assert_eq!(refusal(&reply).0, status);
        }
    }
}

#[test]
fn an_oversized_body_without_a_length_is_refused_too() {
    let package = package();
    let server = Server::start(package.path(), &["--max-body-mb", "1"]);
    let mut client = server.client();
    client.write(b"POST /classify HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
    let chunk = [b"10000\r\n".as_slice(), &[7; 0x10000], b"\r\n"].concat();
    for _ in 0..24 {
        client.write(&chunk).unwrap();
    }
    client.write(b"0\r\n\r\n").unwrap();
    assert_eq!(refusal(&client.read().unwrap()).0, 413);
}

#[test]
fn the_figures_count_what_was_asked() {
    let package = package();
    let server = Server::start(package.path(), &[]);
    (0..3).for_each(|_| assert_eq!(server.classify(&png(RED)).status, 200));
    assert_eq!(server.classify(b"x").status, 415);
    assert_eq!(server.figure("http_requests_total{path=\"/classify\",status=\"200\"}"), 3.0);
    assert_eq!(server.figure("http_requests_total{path=\"/classify\",status=\"415\"}"), 1.0);
    assert_eq!(server.figure("classify_seconds_count"), 3.0);
    assert_eq!(server.figure("classify_decode_seconds_bucket{le=\"+Inf\"}"), 4.0);
    assert_eq!(server.figure("classify_engine_seconds_count"), 3.0);
    assert_eq!(server.figure("classify_under_way"), 0.0);
    let resident = server.figure("process_resident_memory_bytes");
    assert!(resident > 1e6);
    // Two answers, between which it may grow; the system counts pages to within a few hundred.
    assert!(server.figure("process_peak_memory_bytes") > 0.9 * resident);
    assert!(server.figure("process_uptime_seconds") > 0.0);
}

#[test]
fn the_page_and_all_answers_have_headers_that_close_them() {
    let package = package();
    let server = Server::start(package.path(), &[]);
    let page = server.send("GET", "/", &[], &[]);
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    for path in ["/", "/healthz", "/nothing"] {
        let reply = server.send("GET", path, &[], &[]);
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"), "{path}");
        assert!(reply.header("content-security-policy").is_some(), "{path}");
    }
}

#[test]
fn the_first_line_says_address_engine_time_and_memory() {
    let package = package();
    let server = Server::start(package.path(), &["--engine", "tract"]);
    let line = &server.line;
    assert!(line.starts_with("serving colours (3 classes) at http://127.0.0.1:"), "{line}");
    assert!(
        line.contains(" by tract ") && line.contains(": ready after ") && line.ends_with(" MB at most"),
        "{line}"
    );
}

#[test]
fn sigterm_and_sigint_end_the_service_with_success() {
    let package = package();
    for signal in ["TERM", "INT"] {
        let mut server = Server::start(package.path(), &[]);
        let kept = server.client();
        assert_eq!(server.classify(&png(RED)).status, 200);
        let began = Instant::now();
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0), "{signal}");
        assert!(began.elapsed() < Duration::from_secs(9), "{signal}: an idle connection holds it");
        drop(kept);
    }
}

#[test]
fn a_second_signal_ends_the_service_at_once() {
    let package = package();
    let mut server = Server::start(package.path(), &["--grace-seconds", "600", "--client-seconds", "600"]);
    // A request whose body does not come is under way.
    let mut slow = server.client();
    slow.write(b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n")
        .unwrap();
    // The service has begun to read the body when it says so.
    assert_eq!(slow.read().unwrap().status, 100);
    server.signal("TERM");
    let deadline = Instant::now() + PATIENCE;
    while Client::open(server.address, PATIENCE).is_ok() {
        assert!(Instant::now() < deadline, "it goes on to accept");
        std::thread::sleep(Duration::from_millis(10));
    }
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(143));
}

#[test]
fn what_cannot_be_served_is_told_before_anything_is() {
    let package = package();
    let from = package.path().to_str().unwrap();
    let server = Server::start(package.path(), &[]);
    let address = server.address.to_string();
    let fails = |args: &[&str], code: i32, text: &str| {
        let output = run(RECIPE, &[&["serve"], args].concat());
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(text) && said.contains("\nhelp:  "), "{said}");
    };
    fails(&["--from", from, "--address", &address], 1, "Address already in use");
    fails(
        &["--from", from, "--address", "nowhere"],
        2,
        "write --address ADDRESS:PORT, such as 127.0.0.1:8000",
    );
    fails(&["--address", "127.0.0.1:0"], 2, "--from is not given");
    fails(&["--address", "127.0.0.1:0", "--from", "/nowhere"], 1, "/nowhere");
    fails(&["--address", "127.0.0.1:0", "--from", from, "--queue", "0"], 2, "--queue");
    let mut model = std::fs::read(package.path().join("model.onnx")).unwrap();
    model.truncate(model.len() / 2);
    std::fs::write(package.path().join("model.onnx"), model).unwrap();
    fails(&["--address", "127.0.0.1:0", "--from", from], 1, "model.onnx");
}
