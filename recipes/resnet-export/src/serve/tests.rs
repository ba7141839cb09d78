//! The service with engines that do as they are told.

use std::io::Cursor;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use burn_nccl_datasets::{Pipeline, Transform};
use burn_nccl_inference::{Engine, EngineKind, Error, Result};
use image::{ImageFormat, Rgb, RgbImage};
use serde_json::Value;
use tokio::sync::oneshot;

use super::connections;
use super::options::Limits;
use super::service::{Model, Service};
use crate::bench::client::{Client, Reply};
use crate::bench::load;
use crate::classifier::Classifier;
use crate::package::Preprocess;

/// No answer takes longer, whatever the machine is doing.
const PATIENCE: Duration = Duration::from_secs(30);

/// Logits are the means of the channels.
struct Means {
    /// What a batch waits for, until the other end is dropped.
    gate: Option<Receiver<()>>,
    /// Batches that have come as far as the gate.
    batches: Arc<AtomicUsize>,
    /// Images that were computed.
    images: Arc<AtomicUsize>,
    /// What happens to a picture whose first value is 0, that is to one without red.
    without_red: fn(&mut Vec<f32>) -> Result<()>,
}

impl Engine for Means {
    fn name(&self) -> String {
        "means 1".into()
    }

    fn run(&mut self, batch: usize, images: &[f32], logits: &mut Vec<f32>) -> Result<()> {
        self.batches.fetch_add(1, Ordering::SeqCst);
        if let Some(gate) = &self.gate {
            let _ = gate.recv_timeout(PATIENCE);
        }
        self.images.fetch_add(batch, Ordering::SeqCst);
        logits.clear();
        logits.extend(images.chunks_exact(4).map(|plane| plane.iter().sum::<f32>()));
        if images.chunks_exact(12).any(|image| image[0] == 0.0) { (self.without_red)(logits) } else { Ok(()) }
    }
}

struct Running {
    address: SocketAddr,
    batches: Arc<AtomicUsize>,
    images: Arc<AtomicUsize>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(without_red: fn(&mut Vec<f32>) -> Result<()>, change: impl FnOnce(&mut Limits)) -> Self {
        Self::with_gate(None, without_red, change)
    }

    /// One whose batches wait until the sender is dropped.
    fn gated(change: impl FnOnce(&mut Limits)) -> (Self, Sender<()>) {
        let (open, gate) = channel();
        (Self::with_gate(Some(gate), fine, change), open)
    }

    fn with_gate(
        gate: Option<Receiver<()>>,
        without_red: fn(&mut Vec<f32>) -> Result<()>,
        change: impl FnOnce(&mut Limits),
    ) -> Self {
        let (batches, images) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let engine = Means { gate, batches: Arc::clone(&batches), images: Arc::clone(&images), without_red };
        let labels: Vec<String> = ["red", "green", "blue"].map(String::from).into();
        let classifier = Classifier::of(Box::new(engine), labels.clone());
        let mut limits = Limits {
            max_batch: 4,
            max_wait: Duration::ZERO,
            queue: 32,
            connections: 64,
            max_body_bytes: 1 << 20,
            all_bodies_bytes: 8 << 20,
            max_pixels: 1_000_000,
            client: Duration::from_secs(10),
            answer: PATIENCE,
            grace: Duration::from_secs(10),
        };
        change(&mut limits);
        let preprocess = Preprocess {
            input: [3, 2, 2],
            transforms: Pipeline::new([Transform::Resize { height: 2, width: 2 }]),
        };
        let model = Model { name: "means".into(), labels, engine: classifier.engine() };
        let service = Service::start(model, preprocess, classifier, limits).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                connections::serve(listener, &service, async { drop(stopped.await) }).await.unwrap();
            });
            service.stop();
        });
        Self { address, batches, images, stop: Some(stop), thread: Some(thread) }
    }

    fn client(&self) -> Client {
        Client::open(self.address, PATIENCE).unwrap()
    }

    fn post(&self, body: &[u8]) -> Reply {
        self.client().send("POST", "/classify", &[], body).unwrap()
    }

    fn get(&self, path: &str) -> Reply {
        self.client().send("GET", path, &[], &[]).unwrap()
    }

    /// A figure of `GET /metrics`.
    fn figure(&self, name: &str) -> f64 {
        self.counted(name).unwrap_or_else(|| panic!("there is no {name}"))
    }

    /// The same; none of what has not happened yet.
    fn counted(&self, name: &str) -> Option<f64> {
        let text = String::from_utf8(self.get("/metrics").body).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map(|value| value.parse().unwrap())
    }

    /// Waits until so many batches are at the gate or behind it.
    fn wait_for_batches(&self, batches: usize) {
        wait_until("a batch is computed", || self.batches.load(Ordering::SeqCst) >= batches);
    }

    /// Waits for the end of a service that was told to stop.
    fn wait_for_end(&mut self) {
        let thread = self.thread.take().unwrap();
        wait_until("the service ends", || thread.is_finished());
        thread.join().unwrap();
    }

    fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

fn fine(_: &mut Vec<f32>) -> Result<()> {
    Ok(())
}

fn png(colour: [u8; 3]) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    RgbImage::from_pixel(3, 3, Rgb(colour)).write_to(&mut bytes, ImageFormat::Png).unwrap();
    bytes.into_inner()
}

fn json(reply: &Reply) -> Value {
    serde_json::from_slice(&reply.body).unwrap()
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

const GREEN: [u8; 3] = [9, 255, 9];

#[test]
fn an_engine_that_fails_panics_or_gives_no_numbers_is_a_500_and_the_service_goes_on() {
    let error = |_: &mut Vec<f32>| {
        let (engine, action, reason) = (EngineKind::Tract, "run", "out of luck".into());
        Err(Error::Engine { engine, action, reason })
    };
    let no_number = |logits: &mut Vec<f32>| {
        logits.fill(f32::NAN);
        Ok(())
    };
    let too_few = |logits: &mut Vec<f32>| {
        logits.clear();
        Ok(())
    };
    type Run = fn(&mut Vec<f32>) -> Result<()>;
    let cases: [(Run, &str); 4] = [
        (error, "out of luck"),
        (|_| panic!("this panic is a part of the test"), "panicked"),
        (no_number, "not a number"),
        (too_few, "0 results for 1 pictures"),
    ];
    for (without_red, expected) in cases {
        let service = Running::start(without_red, |_| ());
        let reply = service.post(&png([0, 255, 0]));
        assert_eq!(reply.status, 500);
        let body = json(&reply);
        assert!(body["error"].as_str().unwrap().contains(expected), "{body}");
        assert!(body["help"].as_str().is_some_and(|help| !help.is_empty()));
        let reply = service.post(&png(GREEN));
        assert_eq!((reply.status, &json(&reply)["predictions"][0]["label"]), (200, &"green".into()));
        assert_eq!(service.get("/healthz").status, 200);
    }
}

#[test]
fn the_state_is_bad_while_the_newest_batch_has_failed() {
    let service = Running::start(|_| panic!("this panic is a part of the test"), |_| ());
    service.post(&png([0, 255, 0]));
    let reply = service.get("/healthz");
    assert_eq!((reply.status, &json(&reply)["status"]), (503, &"the newest batch failed".into()));
    assert_eq!(service.figure("classify_engine_failures_total"), 1.0);
    service.post(&png(GREEN));
    assert_eq!(service.get("/healthz").status, 200);
}

#[test]
fn pictures_that_wait_are_computed_together_and_each_gets_its_own_answer() {
    // As long as one of them is being decoded the others wait for it.
    let (service, gate) = Running::gated(|limits| limits.max_wait = PATIENCE);
    let colours = [[255, 9, 9], [9, 255, 9], [9, 9, 255]];
    let batches: Vec<u64> = std::thread::scope(|scope| {
        let ask = |index: usize| {
            let colour: [u8; 3] = colours[index % 3];
            let service = &service;
            scope.spawn(move || {
                let body = json(&service.post(&png(colour)));
                assert_eq!(body["predictions"][0]["label"], ["red", "green", "blue"][index % 3], "{body}");
                body["batch"].as_u64().unwrap()
            })
        };
        let threads: Vec<_> = (0..12).map(ask).collect();
        wait_until("all are under way", || service.figure("classify_under_way") == 12.0);
        drop(gate);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(batches.iter().all(|batch| *batch <= 4), "{batches:?}");
    assert!(batches.contains(&4), "{batches:?}");
    assert_eq!(service.images.load(Ordering::SeqCst), 12);
    assert_eq!(service.figure("classify_batch_size_sum"), 12.0);
}

#[test]
fn a_lone_picture_does_not_wait_for_others() {
    let service = Running::start(fine, |limits| limits.max_wait = Duration::from_secs(20));
    let began = Instant::now();
    assert_eq!(json(&service.post(&png(GREEN)))["batch"], 1);
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn beyond_its_queue_the_service_refuses_at_once_and_answers_what_it_has_accepted() {
    let (service, gate) = Running::gated(|limits| {
        limits.queue = 3;
        limits.max_batch = 1;
    });
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(|| service.post(&png(GREEN)))).collect();
        let refused = "http_requests_total{path=\"/classify\",status=\"429\"}";
        wait_until("thirteen of sixteen are refused", || service.counted(refused) == Some(13.0));
        assert_eq!(service.figure("classify_under_way"), 3.0);
        drop(gate);
        let replies: Vec<Reply> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert_eq!(replies.iter().filter(|reply| reply.status == 200).count(), 3);
        for refused in replies.iter().filter(|reply| reply.status != 200) {
            let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
            assert!(refused.status == 429 && (1..=60).contains(&seconds), "{refused:?}");
            assert!(json(refused)["error"].as_str().unwrap().starts_with("3 requests are under way"));
        }
    });
    assert_eq!(service.figure("classify_under_way"), 0.0);
}

#[test]
fn clients_that_keep_asking_are_answered_or_refused_and_none_is_lost() {
    let service = Running::start(fine, |limits| {
        limits.queue = 3;
        limits.max_batch = 1;
    });
    let report = load::measure(service.address, 16, 1.0, &png(GREEN));
    assert!(report.failed == 0 && report.answered > 0, "{report:?}");
    let computed = service.images.load(Ordering::SeqCst);
    assert_eq!(report.answered, computed, "{report:?}");
}

#[test]
fn the_picture_of_a_client_that_went_away_is_not_computed() {
    let (service, gate) = Running::gated(|limits| limits.max_batch = 1);
    let first = std::thread::scope(|scope| {
        let first = scope.spawn(|| service.post(&png(GREEN)).status);
        service.wait_for_batches(1);
        let mut gone = service.client();
        let body = png(GREEN);
        let head = format!("POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", body.len());
        gone.write(&[head.as_bytes(), &body].concat()).unwrap();
        wait_until("the second picture waits", || service.figure("classify_under_way") == 2.0);
        drop(gone);
        wait_until("its client is missed", || service.figure("classify_cancelled_total") == 1.0);
        drop(gate);
        first.join().unwrap()
    });
    assert_eq!(first, 200);
    assert_eq!(service.post(&png(GREEN)).status, 200);
    assert_eq!(service.images.load(Ordering::SeqCst), 2);
}

#[test]
fn a_stop_answers_what_is_under_way_and_refuses_what_comes_then() {
    // An idle connection that kept the service from ending would do so for longer than anybody waits here.
    let (mut service, gate) = Running::gated(|limits| {
        limits.grace = 10 * PATIENCE;
        limits.client = 10 * PATIENCE;
    });
    let address = service.address;
    let idle = service.client();
    let under_way = std::thread::spawn(move || {
        let mut client = Client::open(address, PATIENCE).unwrap();
        client.send("POST", "/classify", &[], &png(GREEN)).unwrap()
    });
    service.wait_for_batches(1);
    service.stop();
    wait_until("connections are refused", || Client::open(address, PATIENCE).is_err());
    drop(gate);
    let reply = under_way.join().unwrap();
    assert_eq!((reply.status, reply.header("connection")), (200, Some("close")));
    service.wait_for_end();
    drop(idle);
}

#[test]
fn a_stop_ends_after_the_grace_even_if_the_engine_does_not() {
    let (mut service, gate) = Running::gated(|limits| limits.grace = Duration::from_millis(100));
    let address = service.address;
    let under_way = std::thread::spawn(move || {
        let mut client = Client::open(address, PATIENCE).unwrap();
        client.send("POST", "/classify", &[], &png(GREEN))
    });
    service.wait_for_batches(1);
    service.stop();
    service.wait_for_end();
    assert!(under_way.join().unwrap().is_err());
    drop(gate);
}

#[test]
fn slow_headers_close_the_connection_and_slow_bodies_are_told() {
    let service = Running::start(fine, |limits| limits.client = Duration::from_secs(1));
    let mut header = service.client();
    header.write(b"POST /classify HTTP/1.1\r\nHost: x\r\nX-Slow: ").unwrap();
    let mut body = service.client();
    body.write(b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc").unwrap();
    let idle = service.client();
    assert!(header.read().is_err());
    let reply = body.read().unwrap();
    assert_eq!(reply.status, 408);
    assert!(json(&reply)["error"].as_str().unwrap().contains("within 1 s"));
    drop(body);
    wait_until("idle connections are closed", || service.figure("http_connections") == 1.0);
    drop(idle);
}

#[test]
fn a_request_is_given_up_after_its_time() {
    let (service, gate) = Running::gated(|limits| limits.answer = Duration::from_millis(100));
    let reply = service.post(&png(GREEN));
    drop(gate);
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("5")));
}

#[test]
fn connections_beyond_the_limit_are_refused_with_a_503() {
    let service = Running::start(fine, |limits| limits.connections = 2);
    let mut held = [service.client(), service.client()];
    // They count once the service has taken them.
    held.iter_mut().for_each(|client| {
        assert_eq!(client.send("GET", "/healthz", &[], &[]).unwrap().status, 200);
    });
    let reply = service.client().read().unwrap();
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
    drop(held);
    wait_until("a place is free again", || {
        service.client().send("GET", "/healthz", &[], &[]).is_ok_and(|reply| reply.status == 200)
    });
}

#[test]
fn bodies_of_all_requests_together_are_bounded() {
    let service = Running::start(fine, |limits| limits.all_bodies_bytes = 1000);
    let mut half = service.client();
    half.write(b"POST /classify HTTP/1.1\r\nHost: x\r\nContent-Length: 901\r\n\r\n").unwrap();
    half.write(&[7; 900]).unwrap();
    wait_until("the rest is too small for another", || service.post(&[7; 500]).status == 503);
    // Who sends much reads the answer too.
    (0..8).for_each(|_| assert_eq!(service.post(&[7; 1 << 20]).status, 503));
    drop(half);
    wait_until("the memory is free again", || service.post(&png(GREEN)).status == 200);
}
