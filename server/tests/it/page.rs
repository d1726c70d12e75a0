//! The live page, in a real Chromium. `make test-page` installs and runs it.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use reqwest::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{Redis, Server, request, until};

const SETTINGS: &str = "
policies: { search: { second: 5/s burst 10 }, login: { failures: 5/15min fixed }, pool: { running: 2 concurrent } }
admin: { token: s3cret-0123456789 }
deny: [foe]
";
/// The names of keys, in WebDriver (W3C).
const ENTER: &str = "\u{e007}";
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

/// A browser, by the WebDriver protocol.
struct Browser {
    driver: Child,
    session: String,
    profile: TempDir,
}

impl Browser {
    async fn start() -> Self {
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

    async fn post(&self, path: &str, body: Value) -> Value {
        let reply = Client::new().post(format!("{}{path}", self.session)).json(&body).send().await;
        let reply: Value = reply.unwrap().json().await.unwrap();
        assert!(reply["value"]["error"].is_null(), "{path}: {reply}");
        reply["value"].clone()
    }

    async fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", json!({ "script": script, "args": [] })).await
    }

    async fn press(&self, element: &str, keys: &str) {
        let found =
            self.post("/element", json!({ "using": "css selector", "value": element })).await;
        let id = found.as_object().unwrap().values().next().unwrap().as_str().unwrap().to_owned();
        self.post(&format!("/element/{id}/value"), json!({ "text": keys })).await;
    }

    /// Moves the focus with Tab, and returns where it is and whether that can be seen.
    async fn tab(&self) -> (String, bool) {
        let keys = ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": TAB }));
        let actions = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": keys }] });
        self.post("/actions", actions).await;
        let focus = "const focus = document.activeElement;
            return [focus.id || focus.innerText, getComputedStyle(focus).outlineStyle !== 'none']";
        let focus = self.run(focus).await;
        (focus[0].as_str().unwrap().to_owned(), focus[1].as_bool().unwrap())
    }

    /// The cells of a table.
    async fn rows(&self, body: &str) -> Vec<Vec<String>> {
        let script = format!(
            "return [...document.querySelectorAll('{body} tr')].map(
                (row) => [...row.cells].map((cell) => cell.innerText.replace(/^(\\d+),(\\d+)$/, '$1$2')))"
        );
        serde_json::from_value(self.run(&script).await).unwrap()
    }

    /// A color scheme, as the settings of the system would.
    async fn prefer(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        let params = json!({ "features": features });
        let command = json!({ "cmd": "Emulation.setEmulatedMedia", "params": params });
        self.post("/goog/cdp/execute", command).await;
    }

    /// All text has the contrast that WCAG 2.2 requires (1.4.3), and the page is as light as it should be.
    async fn assert_readable(&self, scheme: &str) {
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
    async fn screenshot(&self, name: &str) {
        let reply = Client::new().get(format!("{}/screenshot", self.session)).send().await;
        let reply: Value = reply.unwrap().json().await.unwrap();
        let image = BASE64_STANDARD.decode(reply["value"].as_str().unwrap()).unwrap();
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/page");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join(format!("{name}.png")), image).unwrap();
    }

    /// What the page says about the server, by the name of the fact.
    async fn fact(&self, name: &str) -> String {
        let text = self.text("#server").await;
        let value = text.split_once(&format!("{name}\n")).map_or("", |(_, rest)| rest);
        value.lines().next().unwrap_or_default().to_owned()
    }

    async fn text(&self, element: &str) -> String {
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

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: make test-page"]
async fn the_page_shows_what_the_api_says() {
    let server = Server::with_settings(SETTINGS);
    let check = async |policy: &str, key: &str| {
        let body = json!({ "policy": policy, "key": key });
        Client::new().post(server.http("/v1/check")).json(&body).send().await.unwrap();
    };
    let browser = Browser::start().await;
    browser.post("/url", json!({ "url": server.admin("/") })).await;
    until(async || browser.text("#state").await == "A token is needed.").await;
    for expected in ["pause", "token", "Show"] {
        assert_eq!(browser.tab().await, (expected.to_owned(), true));
    }
    browser.press("#token", &format!("wrong{ENTER}")).await;
    until(async || browser.text("#state").await == "A token is needed.").await;
    let clear = "document.querySelector('#token').value = ''";
    browser.run(clear).await;
    browser.press("#token", &format!("s3cret-0123456789{ENTER}")).await;
    until(async || browser.text("#policies").await.starts_with("login")).await;

    // A key from a client, which must not become part of the page.
    let evil = "<img src=x onerror=document.title=1>";
    for _ in 0..30 {
        check("login", evil).await;
    }
    until(async || browser.text("#denied").await.starts_with(&format!("login\t{evil}\t"))).await;
    assert_eq!(browser.run("return document.title").await, "fleetlimit-server");
    assert_eq!(browser.run("return document.images.length").await, 0);

    let api = async || -> Value {
        let request =
            Client::new().get(server.admin("/api/status")).bearer_auth("s3cret-0123456789");
        request.send().await.unwrap().json().await.unwrap()
    };
    let status = api().await;
    let login = &status["policies"][0];
    assert_eq!((&login["allowed"], &login["denied"]), (&json!(5), &json!(25)));
    let row = "#policies tr:first-child";
    until(async || browser.text(row).await == "login\tfailures 5/15min fixed\t0\t0\t5\t25\t–")
        .await;

    // The permits in flight of a policy that has some.
    let hold = Client::new().post(server.http("/v1/hold"));
    let held = hold.json(&json!({ "policy": "pool", "key": "ada" })).send().await.unwrap();
    assert!(held.status().is_success());
    until(async || browser.text("#policies tr:nth-child(2)").await.ends_with("\t1")).await;

    // The rates are those of the last second.
    let rate = "return Number(document.querySelector('#policies tr:last-child td:nth-child(4)').innerText)";
    until(async || {
        for _ in 0..20 {
            check("search", "ada").await;
        }
        browser.run(rate).await.as_f64().is_some_and(|rate| rate > 0.0)
    })
    .await;

    // All values are those of the API.
    let block = Client::new().post(server.admin("/api/block")).bearer_auth("s3cret-0123456789");
    let body = json!({ "policy": "search", "key": "<b>eve", "seconds": 3_600 });
    assert!(block.json(&body).send().await.unwrap().status().is_success());
    until(async || {
        let status = api().await;
        let cell = |value: &Value| match value {
            Value::String(text) => text.clone(),
            number => number.to_string(),
        };
        let cells = |list: &Value, names: &[&str]| -> Vec<Vec<String>> {
            let rows = list.as_array().unwrap().iter();
            rows.map(|row| names.iter().map(|name| cell(&row[*name])).collect()).collect()
        };
        let counts: Vec<Vec<String>> = browser
            .rows("#policies")
            .await
            .into_iter()
            .map(|row| vec![row[0].clone(), row[4].clone(), row[5].clone()])
            .collect();
        counts == cells(&status["policies"], &["name", "allowed", "denied"])
            && browser.rows("#denied").await
                == cells(&status["denied"]["keys"], &["policy", "key", "count"])
            && browser.rows("#blocked").await
                == cells(&status["blocked"], &["policy", "key", "seconds"])
            && !status["denied"]["keys"].as_array().unwrap().is_empty()
    })
    .await;
    assert_eq!(browser.fact("Decided by lists, blocks and limits of 0").await, "none");
    check("search", "<b>eve").await;
    check("search", "foe").await;
    until(async || {
        let decided = browser.fact("Decided by lists, blocks and limits of 0").await;
        decided == "block 1, deny 1"
    })
    .await;
    let client = server.client().await;
    let failed = client.clone().send(request("", &[])).await;
    assert!(failed.is_err());
    until(async || browser.fact("gRPC requests that failed").await == "INVALID_ARGUMENT 1").await;
    let requests = "return performance.getEntriesByType('resource').map((entry) => entry.name)";
    let requests: Vec<String> = serde_json::from_value(browser.run(requests).await).unwrap();
    assert!(!requests.is_empty());
    let is_own = |url: &String| url.starts_with(&server.admin("/"));
    assert!(requests.iter().all(is_own), "{requests:?}");

    // Another configuration, a part of which is not in effect.
    let changed =
        SETTINGS.replace("admin:", "shadow: [search]\nresource_limits: { streams: 7 }\nadmin:");
    server.files().write("settings.yaml", &changed);
    until(async || browser.text("#policies").await.contains("(shadow)")).await;
    let note = "as in the files, except resource_limits: these need a restart";
    until(async || browser.text("#server").await.contains(note)).await;

    // By keyboard.
    browser.press("#pause", ENTER).await;
    until(async || browser.text("#pause").await == "Continue").await;
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).await;
        browser.assert_readable(scheme).await;
        browser.screenshot(scheme).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: make test-page"]
async fn the_page_shows_an_outage_of_redis() {
    let redis = Redis::start().await;
    let settings = format!(
        "store: {{ redis: '{}' }}\npolicies: {{ search: {{ second: 1000/s }} }}\n",
        redis.url()
    );
    let server = Server::with_settings(&settings);
    let other = Server::with_settings(&settings);
    let check = async || {
        for server in [&server, &other] {
            let body = json!({ "policy": "search", "key": "ada" });
            Client::new().post(server.http("/v1/check")).json(&body).send().await.unwrap();
        }
    };
    let browser = Browser::start().await;
    browser.post("/url", json!({ "url": server.admin("/") })).await;
    let fact = async |name: &str| {
        check().await;
        browser.fact(name).await
    };
    until(async || fact("Instances").await == "2").await;
    until(async || fact("Share in an outage").await == "50%").await;
    until(async || fact("Circuit breaker").await == "closed").await;
    until(async || fact("Failure mode").await == "local").await;
    until(async || fact("99% of calls in 30 s took at most").await.ends_with(" ms")).await;
    redis.pause();
    until(async || fact("Circuit breaker").await == "open (1)").await;
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).await;
        browser.assert_readable(scheme).await;
    }
    browser.screenshot("outage").await;
    redis.resume();
    until(async || fact("Circuit breaker").await == "closed").await;
}
