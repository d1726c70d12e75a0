//! A real Chromium, for the tests of the live page.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::until;

/// The names of keys, in WebDriver (W3C).
pub(crate) const ENTER: &str = "\u{e007}";
const TAB: &str = "\u{e004}";

/// The colors of all elements with text, and of what is behind each.
const COLORS: &str = r#"
const channels = (color) => color.match(/[\d.]+/g).map(Number);
const behind = (element) => {
  const color = channels(getComputedStyle(element).backgroundColor);
  return color.length === 4 && color[3] === 0 && element.parentElement ? behind(element.parentElement) : color;
};
const hasText = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
const shown = [...document.body.querySelectorAll("*")].filter((element) => element.checkVisibility() && hasText(element));
return shown.map((element) => [channels(getComputedStyle(element).color), behind(element)]);
"#;

/// The visible elements that are outside of the window, to the left or right, or wider than what is around them. Those
/// that only screen readers have are a pixel wide.
const OUTSIDE: &str = r#"
const shown = [...document.body.querySelectorAll("*")].filter((element) => element.checkVisibility());
const isOutside = (element) => {
  const { left, right } = element.getBoundingClientRect();
  return left < 0 || right > document.documentElement.clientWidth + 0.5;
};
const isCut = (element) => element.scrollWidth > element.clientWidth + 1 && element.clientWidth > 1
  && getComputedStyle(element).display !== "inline" && !["SELECT", "INPUT"].includes(element.tagName);
const name = (element) => `${element.tagName} ${element.id} ${element.className}: ${element.textContent.slice(0, 50)}`;
return shown.filter((element) => !element.closest("thead, svg") && (isOutside(element) || isCut(element))).map(name);
"#;

/// A browser, by the WebDriver protocol.
pub(crate) struct Browser {
    driver: Child,
    session: String,
    profile: TempDir,
}

impl Browser {
    pub(crate) async fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let driver = Command::new("chromedriver")
            .arg(format!("--port={port}"))
            .stdout(Stdio::null())
            .spawn()
            .expect("chromedriver is missing: run `make test-page`");
        let url = format!("http://127.0.0.1:{port}");
        until(async || Client::new().get(format!("{url}/status")).send().await.is_ok()).await;
        let profile = tempfile::tempdir().unwrap();
        let data = format!("--user-data-dir={}", profile.path().display());
        let options = json!({ "args": [
            "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--window-size=1000,800", data,
        ] });
        let capabilities =
            json!({ "capabilities": { "alwaysMatch": { "goog:chromeOptions": options } } });
        let reply = Client::new().post(format!("{url}/session")).json(&capabilities).send().await;
        let reply: Value = reply.unwrap().json().await.unwrap();
        let id = reply["value"]["sessionId"].as_str().unwrap_or_else(|| panic!("{reply}"));
        Self { driver, session: format!("{url}/session/{id}"), profile }
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Value {
        let reply = Client::new().post(format!("{}{path}", self.session)).json(&body).send().await;
        let reply: Value = reply.unwrap().json().await.unwrap();
        assert!(reply["value"]["error"].is_null(), "{path}: {reply}");
        reply["value"].clone()
    }

    pub(crate) async fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", json!({ "script": script, "args": [] })).await
    }

    pub(crate) async fn press(&self, element: &str, keys: &str) {
        let id = self.find(element).await;
        self.post(&format!("/element/{id}/value"), json!({ "text": keys })).await;
    }

    /// Moves the focus with Tab, and returns where it is and whether that can be seen.
    pub(crate) async fn tab(&self) -> (String, bool) {
        let keys = ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": TAB }));
        let actions = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": keys }] });
        self.post("/actions", actions).await;
        let focus = "const focus = document.activeElement;
            return [focus.id || focus.innerText, getComputedStyle(focus).outlineStyle !== 'none']";
        let focus = self.run(focus).await;
        (focus[0].as_str().unwrap().to_owned(), focus[1].as_bool().unwrap())
    }

    /// Opens a page, with a token if it needs one.
    pub(crate) async fn open(&self, url: &str, token: Option<&str>) {
        self.post("/url", json!({ "url": url })).await;
        if let Some(token) = token {
            until(async || self.is_shown("#login").await).await;
            self.press("#token", &format!("{token}{ENTER}")).await;
        }
        until(async || self.text("#state").await.starts_with("Up to date")).await;
    }

    /// Presses a button with the mouse. It has to be visible, and nothing may be in front of it.
    pub(crate) async fn click(&self, element: &str) {
        let id = self.find(element).await;
        self.post(&format!("/element/{id}/click"), json!({})).await;
    }

    async fn find(&self, element: &str) -> String {
        let found =
            self.post("/element", json!({ "using": "css selector", "value": element })).await;
        found.as_object().unwrap().values().next().unwrap().as_str().unwrap().to_owned()
    }

    pub(crate) async fn is_shown(&self, element: &str) -> bool {
        let script = format!("return document.querySelector({element:?}).checkVisibility()");
        self.run(&script).await.as_bool().unwrap()
    }

    /// Shows the page as on a phone of this width.
    pub(crate) async fn use_phone(&self, width: u32) {
        let params =
            json!({ "width": width, "height": 740, "deviceScaleFactor": 2, "mobile": true });
        let command = json!({ "cmd": "Emulation.setDeviceMetricsOverride", "params": params });
        self.post("/goog/cdp/execute", command).await;
    }

    /// Returns the visible elements that are outside of the window, or clipped by an element around them.
    pub(crate) async fn outside(&self) -> Value {
        self.run(OUTSIDE).await
    }

    /// The cells of a table.
    pub(crate) async fn rows(&self, body: &str) -> Vec<Vec<String>> {
        let script = format!(
            "return [...document.querySelectorAll('{body} tr')].map(
                (row) => [...row.cells].map((cell) => cell.innerText.replace(/^(\\d+),(\\d+)$/, '$1$2')))"
        );
        serde_json::from_value(self.run(&script).await).unwrap()
    }

    /// A color scheme, as the settings of the system would.
    pub(crate) async fn prefer(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        let params = json!({ "features": features });
        let command = json!({ "cmd": "Emulation.setEmulatedMedia", "params": params });
        self.post("/goog/cdp/execute", command).await;
    }

    /// All text has the contrast that WCAG 2.2 requires (1.4.3), and the page is as light as it should be.
    pub(crate) async fn assert_readable(&self, scheme: &str) {
        let colors = self.run(COLORS).await;
        let luminance = |color: &Value| {
            let channel = |value: &Value| {
                let value = value.as_f64().unwrap() / 255.0;
                if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * channel(&color[0]) + 0.7152 * channel(&color[1]) + 0.0722 * channel(&color[2])
        };
        for pair in colors.as_array().unwrap() {
            let (text, back) = (luminance(&pair[0]), luminance(&pair[1]));
            let contrast = (text.max(back) + 0.05) / (text.min(back) + 0.05);
            assert!(contrast >= 4.5, "{scheme}: {contrast} of {pair}");
            assert_eq!(back > 0.5, scheme == "light", "{pair}");
        }
        let overflows = "return [...document.querySelectorAll('dl > *')].filter(
            (fact) => fact.scrollWidth > fact.clientWidth).map((fact) => fact.innerText)";
        assert_eq!(self.run(overflows).await, json!([]));
    }

    /// To look at: `target/page/NAME.png`.
    pub(crate) async fn screenshot(&self, name: &str) {
        let reply = Client::new().get(format!("{}/screenshot", self.session)).send().await;
        let reply: Value = reply.unwrap().json().await.unwrap();
        let image = BASE64_STANDARD.decode(reply["value"].as_str().unwrap()).unwrap();
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/page");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(format!("{name}.png")), image).unwrap();
    }

    /// What the page says about the server, by the name of the fact.
    pub(crate) async fn fact(&self, name: &str) -> String {
        let text = self.text("#server").await;
        let value = text.split_once(&format!("{name}\n")).map_or("", |(_, rest)| rest);
        value.lines().next().unwrap_or_default().to_owned()
    }

    pub(crate) async fn text(&self, element: &str) -> String {
        let script = format!("return document.querySelector({element:?}).innerText");
        self.run(&script).await.as_str().unwrap().to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        // The browser outlives its driver. Its command line has the profile.
        let _ = Command::new("pkill").args(["-KILL", "-f"]).arg(self.profile.path()).status();
    }
}
