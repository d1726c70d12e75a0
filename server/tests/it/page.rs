//! The live page, in a real Chromium. `make test-page` installs and runs it.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use reqwest::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{Server, until};

const SETTINGS: &str = "
policies: { search: { second: 5/s burst 10 }, login: { failures: 5/15min fixed } }
admin: { token: s3cret }
";
/// The names of keys, in WebDriver (W3C).
const ENTER: &str = "\u{e007}";

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
    browser.press("#token", &format!("wrong{ENTER}")).await;
    until(async || browser.text("#state").await == "A token is needed.").await;
    let clear = "document.querySelector('#token').value = ''";
    browser.run(clear).await;
    browser.press("#token", &format!("s3cret{ENTER}")).await;
    until(async || browser.text("#policies").await.starts_with("login")).await;

    // A key from a client, which must not become part of the page.
    let evil = "<img src=x onerror=document.title=1>";
    for _ in 0..30 {
        check("login", evil).await;
    }
    until(async || browser.text("#denied").await.starts_with(&format!("{evil}\t"))).await;
    assert_eq!(browser.run("return document.title").await, "tollgate-server");
    assert_eq!(browser.run("return document.images.length").await, 0);

    let api = async || -> Value {
        let request = Client::new().get(server.admin("/api/status")).bearer_auth("s3cret");
        request.send().await.unwrap().json().await.unwrap()
    };
    let status = api().await;
    let login = &status["policies"][0];
    assert_eq!((&login["allowed"], &login["denied"]), (&json!(5), &json!(25)));
    let row = "#policies tr:first-child";
    until(async || browser.text(row).await == "login\tfailures 5/15min fixed\t0\t0\t5\t25").await;

    // The rates are those of the last second.
    let rate = "return Number(document.querySelector('#policies tr:last-child td:nth-child(4)').innerText)";
    until(async || {
        for _ in 0..20 {
            check("search", "ada").await;
        }
        browser.run(rate).await.as_f64().is_some_and(|rate| rate > 0.0)
    })
    .await;

    // By keyboard.
    browser.press("#pause", ENTER).await;
    until(async || browser.text("#pause").await == "Continue").await;
    let screenshot = Client::new().get(format!("{}/screenshot", browser.session)).send().await;
    assert!(screenshot.unwrap().status().is_success());
}
