//! A browser without a screen, led by WebDriver (<https://www.w3.org/TR/webdriver2/>).

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::client::Client;
use super::server::PATIENCE;
use super::wait_for_line;

/// How WebDriver names a reference to an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

pub(crate) struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    _profile: TempDir,
}

impl Browser {
    /// Starts chromedriver and chromium; none where this machine lacks one of them.
    pub(crate) fn start() -> Result<Self, String> {
        let binary =
            ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| is_program(name));
        let binary = binary.ok_or("there is no chromium: apt-get install chromium")?;
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("no chromedriver: {error}: apt-get install chromium-driver"))?;
        let output = driver.stdout.take().unwrap();
        let profile = tempfile::tempdir().unwrap();
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut browser = Self { driver, address: nowhere, session: String::new(), _profile: profile };
        let port = wait_for_line(output, |line| {
            let (_, port) = line.split_once("started successfully on port ")?;
            port.trim_end_matches('.').parse::<u16>().ok()
        });
        browser.address.set_port(port.expect("chromedriver says its port"));
        let args = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-dev-shm-usage",
            "--window-size=1100,900",
        ];
        let folder = format!("--user-data-dir={}", browser._profile.path().display());
        let args: Vec<&str> = args.into_iter().chain([folder.as_str()]).collect();
        let options = json!({
            "browserName": "chrome",
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "binary": path_of(binary), "args": args },
        });
        let created =
            browser.call("POST", "/session", &json!({ "capabilities": { "alwaysMatch": options } }));
        browser.session = format!("/session/{}", created["sessionId"].as_str().unwrap());
        Ok(browser)
    }

    fn call(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut client = Client::open(self.address, PATIENCE).unwrap();
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let kind = [("Content-Type", "application/json; charset=utf-8")];
        let reply = client.send(method, path, &kind, body.as_bytes()).unwrap();
        let mut answer: Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(reply.status, 200, "{path}: {answer}");
        answer["value"].take()
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.call("POST", &format!("{}{path}", self.session), body)
    }

    pub(crate) fn open(&self, url: &str) {
        self.post("/url", &json!({ "url": url }));
    }

    /// Runs a function's body with these `arguments`.
    pub(crate) fn script(&self, body: &str, arguments: &[Value]) -> Value {
        self.post("/execute/sync", &json!({ "script": body, "args": arguments }))
    }

    fn element(&self, selector: &str) -> String {
        let found = self.post("/element", &json!({ "using": "css selector", "value": selector }));
        found[ELEMENT].as_str().unwrap().to_owned()
    }

    /// Types into an element; into one for files, chooses the file of that path.
    pub(crate) fn type_into(&self, selector: &str, text: &str) {
        let element = self.element(selector);
        self.post(&format!("/element/{element}/value"), &json!({ "text": text }));
    }

    /// Presses a key wherever the focus is.
    pub(crate) fn press(&self, key: &str) {
        let keys = json!([{ "type": "keyDown", "value": key }, { "type": "keyUp", "value": key }]);
        self.post("/actions", &json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": keys }] }));
    }

    /// The name by which a screen reader calls an element.
    pub(crate) fn label(&self, selector: &str) -> String {
        let element = self.element(selector);
        let label =
            self.call("GET", &format!("{}/element/{element}/computedlabel", self.session), &Value::Null);
        label.as_str().unwrap().to_owned()
    }

    /// The visible text of an element, nothing of a hidden one.
    pub(crate) fn text(&self, selector: &str) -> String {
        let element = self.element(selector);
        let text = self.call("GET", &format!("{}/element/{element}/text", self.session), &Value::Null);
        text.as_str().unwrap().to_owned()
    }

    /// Waits until an element's visible text is as wanted.
    pub(crate) fn wait_for(&self, selector: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = self.text(selector);
            if wanted(&text) {
                return text;
            }
            assert!(Instant::now() < deadline, "{selector} stays {text:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The errors on the console since the last call: `source` and `message` of each.
    pub(crate) fn errors(&self) -> Vec<(String, String)> {
        let log = self.post("/se/log", &json!({ "type": "browser" }));
        let errors = log.as_array().unwrap().iter().filter(|entry| entry["level"] == "SEVERE");
        let text = |entry: &Value, key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        errors.map(|entry| (text(entry, "source"), text(entry, "message"))).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the browser, which chromedriver would leave behind.
        if !self.session.is_empty()
            && let Ok(mut client) = Client::open(self.address, Duration::from_secs(10))
        {
            let _ = client.send("DELETE", &self.session, &[], &[]);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

fn path_of(program: &str) -> String {
    let folders = std::env::var("PATH").unwrap_or_default();
    let mut paths = folders.split(':').map(|folder| format!("{folder}/{program}"));
    paths.find(|path| std::path::Path::new(path).is_file()).unwrap_or_default()
}

fn is_program(program: &str) -> bool {
    !path_of(program).is_empty()
}
