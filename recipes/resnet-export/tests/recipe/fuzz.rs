//! What strangers may send.

use std::fs;
use std::io::Write as _;
use std::time::{Duration, Instant};

use super::support::client::Client;
use super::support::colours::package;
use super::support::onnx::Random;
use super::support::pictures::{GREEN, RED, bomb, jpeg, png, strip};
use super::support::server::{Server, json};

/// Clients that send at once.
const CLIENTS: u64 = 4;
/// All bodies that may be read together, `--max-megapixels 4` at 12 bytes a pixel, and what an allocator keeps.
const BODIES_BYTES: f64 = 64e6 * 1.05;
const PICTURE_BYTES: f64 = 4e6 * 12.0;
const REST_BYTES: f64 = 40e6;
const WAIT: Duration = Duration::from_secs(10);

fn seconds() -> u64 {
    std::env::var("BURN_NCCL_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(5)
}

fn entries(server: &Server, folder: &str) -> usize {
    fs::read_dir(format!("/proc/{}/{folder}", server.id())).unwrap().count()
}

#[test]
fn whatever_is_sent_the_service_stays_up_right_and_bounded() {
    let package = package();
    let server = Server::start(
        package.path(),
        &["--max-body-mb", "2", "--max-megapixels", "4", "--client-seconds", "2"],
    );
    let answers = |server: &Server| {
        let body = json(&server.classify(&png(GREEN)));
        assert_eq!(body["predictions"][0]["label"], "green", "{body}");
    };
    (0..8).for_each(|_| answers(&server));
    let memory = server.figure("process_peak_memory_bytes");
    let (threads, files) = (entries(&server, "task"), entries(&server, "fd"));

    let strips = [strip(1, 3_900_000), strip(3_900_000, 1)];
    let until = Instant::now() + Duration::from_secs(seconds());
    let sent: usize = std::thread::scope(|scope| {
        let client = |seed: u64| {
            scope.spawn({
                let (server, strips) = (&server, &strips);
                move || attack(server, strips, Random(seed + 1), until)
            })
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    });
    let _ = writeln!(std::io::stderr(), "fuzz: {sent} requests in {} s", seconds());
    assert!(sent > 50, "{sent}");

    answers(&server);
    let grown = server.figure("process_peak_memory_bytes") - memory;
    // A picture is decoded on each of these threads at a time.
    let decoders = threads_named(&server, "decode-") as f64;
    assert!(grown < BODIES_BYTES + decoders * PICTURE_BYTES + REST_BYTES, "{grown}, {decoders} decoders");
    assert_eq!(entries(&server, "task"), threads);
    // Half-open connections are closed after two seconds.
    let deadline = Instant::now() + Duration::from_secs(30);
    while entries(&server, "fd") > files {
        assert!(Instant::now() < deadline, "{} files, {files} before", entries(&server, "fd"));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(server.figure("classify_under_way"), 0.0);
    assert_eq!(server.figure("classify_engine_failures_total"), 0.0);
}

/// Threads whose name starts so.
fn threads_named(server: &Server, start: &str) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.id())).unwrap();
    let names = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("comm")).unwrap());
    names.filter(|name| name.starts_with(start)).count()
}

/// Sends until the time is over, and says how many requests.
fn attack(server: &Server, strips: &[Vec<u8>], mut random: Random, until: Instant) -> usize {
    let mut seeds = vec![png(RED), jpeg(RED), bomb(), form(&jpeg(GREEN)), Vec::new()];
    seeds.extend_from_slice(strips);
    let mut held = Vec::new();
    let mut sent = 0;
    while Instant::now() < until {
        let mut body = seeds[random.below(seeds.len())].clone();
        mutate(&mut body, &mut random);
        // A service that is busy with others may refuse a connection; that is no fault.
        let Ok(mut client) = Client::open(server.address, WAIT) else { continue };
        let _ = client.write(&request(&body, &mut random));
        sent += 1;
        match random.below(4) {
            // Half-open: nothing is read, and nothing more is sent.
            0 => held.push(client),
            // The client goes away at once.
            1 => drop(client),
            _ => {
                if let Ok(reply) = client.read() {
                    let known = [200, 400, 404, 405, 408, 411, 413, 414, 415, 422, 429, 431, 503];
                    assert!(known.contains(&reply.status), "{reply:?}");
                }
            }
        }
        if held.len() > 20 {
            held.clear();
        }
    }
    sent
}

/// Changes, removes, repeats and adds bytes.
fn mutate(body: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..random.below(6) {
        let at = random.below(body.len() + 1);
        match random.below(6) {
            0 if at < body.len() => body[at] = random.bits() as u8,
            1 if at < body.len() => body[at] ^= 1 << random.below(8),
            2 => body.truncate(at),
            3 => drop(
                body.splice(at..at, (0..random.below(64)).map(|_| random.bits() as u8).collect::<Vec<_>>()),
            ),
            4 => body.extend_from_within(at..),
            // Beyond the limit of 2 MB, now and then.
            5 if random.below(20) == 0 => body.resize(body.len() + (3 << 20), 7),
            _ => {}
        }
    }
}

fn form(picture: &[u8]) -> Vec<u8> {
    let head = b"--x\r\nContent-Disposition: form-data; name=\"a\"; filename=\"a\"\r\n\r\n".as_slice();
    [head, picture, b"\r\n--x--\r\n"].concat()
}

/// A request with this body, in a form that is right, nearly right, or not at all.
fn request(body: &[u8], random: &mut Random) -> Vec<u8> {
    let kinds = [
        "image/jpeg",
        "multipart/form-data; boundary=x",
        "multipart/form-data; boundary=",
        "\u{7f}",
        "image/png",
    ];
    let kind = kinds[random.below(kinds.len())];
    let paths = ["/classify", "/classify?top=2", "/classify?top=x", "/classify?%ff&=", "/%00", "/metrics"];
    let path = paths[random.below(paths.len())];
    let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\n");
    let length = body.len();
    let lengths = [length, length, length, length / 2, length + 9, usize::MAX];
    match random.below(8) {
        0 => (0..random.below(4000)).map(|_| random.bits() as u8).collect(),
        1 => [head.as_bytes(), b"Transfer-Encoding: chunked\r\n\r\n", &chunks(body, random)].concat(),
        2 => format!("{head}X: {}\r\n\r\n", "y".repeat(random.below(40_000))).into_bytes(),
        3 => [head.as_bytes(), b"Content-Length: 5\r\nContent-Length: 7\r\n\r\n", body].concat(),
        _ => {
            let said = lengths[random.below(lengths.len())];
            [head.as_bytes(), format!("Content-Length: {said}\r\n\r\n").as_bytes(), body].concat()
        }
    }
}

/// The body in chunks, whose sizes are wrong now and then.
fn chunks(body: &[u8], random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    for part in body.chunks(1 + random.below(5000)) {
        match random.below(12) {
            0 => out.extend(b"fffffffffffffffff\r\n"),
            1 => out.extend(b"-1\r\n"),
            2 => out.extend(format!("{:x};{}\r\n", part.len(), "e".repeat(random.below(3000))).bytes()),
            _ => out.extend(format!("{:x}\r\n", part.len()).bytes()),
        }
        out.extend(part);
        out.extend(b"\r\n");
    }
    if random.below(4) > 0 {
        out.extend(b"0\r\n\r\n");
    }
    out
}
