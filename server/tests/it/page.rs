//! The live page, in a real Chromium. `make test-page` installs and runs it.

use std::time::Duration;

use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio::time::interval;

use crate::browser::{Browser, ENTER};
use crate::common::{ControlPlane, Redis, Server, request, resource, until};

const SETTINGS: &str = "
policies: { search: { second: 5/s burst 10 }, login: { failures: 5/15min fixed }, pool: { running: 2 concurrent } }
admin: { token: s3cret-0123456789 }
deny: [foe]
";
const TOKEN: &str = "s3cret-0123456789";
/// A key from a client, which must not become part of the page.
const EVIL: &str = "<img src=x onerror=document.title=1>";

async fn check(server: &Server, policy: &str, key: &str) {
    let body = json!({ "policy": policy, "key": key });
    Client::new().post(server.http("/v1/check")).json(&body).send().await.unwrap();
}

/// Denies keys again and again, so that they stay in the list of those that are denied most. The cost is above the limit,
/// so nothing is taken.
fn keep_denied(server: &Server, policies: &[&str], keys: &[&str]) -> JoinSet<()> {
    let bodies = policies.iter().flat_map(|policy| {
        keys.iter().map(move |key| json!({ "policy": policy, "key": key, "cost": 1_000 }))
    });
    let (bodies, url): (Vec<_>, _) = (bodies.collect(), server.http("/v1/check"));
    let (client, mut ticks) = (Client::new(), interval(Duration::from_millis(50)));
    JoinSet::from_iter([async move {
        loop {
            ticks.tick().await;
            for body in &bodies {
                // The server may have ended.
                let _ = client.post(&url).json(body).send().await;
            }
        }
    }])
}

async fn api(server: &Server, path: &str) -> Value {
    let request = Client::new().get(server.admin(path)).bearer_auth(TOKEN);
    request.send().await.unwrap().json().await.unwrap()
}

async fn post(server: &Server, path: &str, body: Value) -> StatusCode {
    let request = Client::new().post(server.admin(path)).bearer_auth(TOKEN);
    request.json(&body).send().await.unwrap().status()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: make test-page"]
async fn the_page_shows_what_the_api_says() {
    let server = Server::with_settings(SETTINGS);
    let check = async |policy: &str, key: &str| check(&server, policy, key).await;
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
    until(async || browser.text("#policies").await.starts_with("search")).await;

    for _ in 0..30 {
        check("login", EVIL).await;
    }
    until(async || browser.text("#denied").await.starts_with(&format!("login\t{EVIL}\t"))).await;
    assert_eq!(browser.run("return document.title").await, "fleetlimit-server");
    assert_eq!(browser.run("return document.images.length").await, 0);

    let api = async || api(&server, "/api/status").await;
    let status = api().await;
    let login = &status["policies"][1];
    assert_eq!((&login["allowed"], &login["denied"]), (&json!(5), &json!(25)));
    let row = "#policies tr:nth-child(2)";
    until(async || browser.text(row).await == "login\tfailures 5/15min fixed\t0\t0\t5\t25\t–")
        .await;

    // The permits in flight of a policy that has some.
    let hold = Client::new().post(server.http("/v1/hold"));
    let held = hold.json(&json!({ "policy": "pool", "key": "ada" })).send().await.unwrap();
    assert!(held.status().is_success());
    until(async || browser.text("#policies tr:nth-child(3)").await.ends_with("\t1")).await;

    // The rates are those of the last second.
    let rate = "return Number(document.querySelector('#policies tr:first-child td:nth-child(4)').innerText)";
    until(async || {
        for _ in 0..20 {
            check("search", "ada").await;
        }
        browser.run(rate).await.as_f64().is_some_and(|rate| rate > 0.0)
    })
    .await;

    // All values are those of the API.
    let body = json!({ "policy": "search", "key": "<b>eve", "seconds": 3_600 });
    assert!(post(&server, "/api/block", body).await.is_success());
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
        let shown = async |table: &str, columns: [usize; 3]| -> Vec<Vec<String>> {
            let rows = browser.rows(table).await.into_iter();
            rows.map(|row| columns.map(|column| row[column].clone()).to_vec()).collect()
        };
        shown("#policies", [0, 4, 5]).await
            == cells(&status["policies"], &["name", "allowed", "denied"])
            && shown("#denied", [0, 1, 2]).await
                == cells(&status["denied"]["keys"], &["policy", "key", "count"])
            && shown("#blocked", [0, 1, 2]).await
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
    let check_both = async || {
        for server in [&server, &other] {
            check(server, "search", "ada").await;
        }
    };
    let browser = Browser::start().await;
    browser.open(&server.admin("/"), None).await;
    let fact = async |name: &str| {
        check_both().await;
        browser.fact(name).await
    };
    until(async || fact("Instances").await == "2").await;
    until(async || fact("Share in an outage").await == "50%").await;
    until(async || fact("Circuit breaker").await == "closed").await;
    until(async || fact("Failure mode").await == "local").await;
    until(async || fact("99% of calls in 30 s took at most").await.ends_with(" ms")).await;
    assert!(!browser.is_shown("#banner").await);
    redis.pause();
    until(async || fact("Circuit breaker").await == "open (1)").await;
    let banner = async || {
        check_both().await;
        browser.text("#banner").await
    };
    until(async || banner().await.contains("all ")).await;
    let text = banner().await;
    assert!(text.starts_with("Limits are enforced locally\n"), "{text}");
    assert!(text.contains("by its share of each limit (50%) since "), "{text}");
    assert!(text.contains("because Redis does not reply in time."), "{text}");
    assert!(
        text.contains("checks that needed Redis were decided by this instance's share"),
        "{text}"
    );
    for scheme in ["light", "dark"] {
        browser.prefer(scheme).await;
        browser.assert_readable(scheme).await;
    }
    browser.screenshot("outage").await;
    // Nothing is claimed of checks that nobody has made.
    until(async || {
        browser.text("#banner-title").await == "The last checks were decided without Redis"
    })
    .await;
    redis.resume();
    until(async || fact("Circuit breaker").await == "closed").await;
    until(async || banner().await.starts_with("Some limits are enforced locally")).await;
    until(async || {
        check_both().await;
        !browser.is_shown("#banner").await
    })
    .await;
    let row = browser.rows("#policies").await.remove(0);
    assert!(row[7].ends_with(" local"), "what was decided then stays visible: {row:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: make test-page"]
async fn the_page_says_that_limits_are_not_enforced_and_why() {
    let browser = Browser::start().await;
    for (mode, title, text, column) in [
        (
            "open",
            "Limits are not enforced",
            "Checks have been allowed whatever the limit is since ",
            "1 not limited",
        ),
        (
            "closed",
            "Checks fail: limits cannot be checked",
            "Gateways have received errors instead of decisions since ",
            "1 failed",
        ),
    ] {
        let server = Server::with_settings(&format!(
            "store: {{ redis: 'redis://127.0.0.1:1' }}\nchecks: {{ failure_mode: {mode} }}\n\
             policies: {{ search: {{ second: 1000/s }}, new: {{ day: 1/day }} }}\nshadow: [new]"
        ));
        browser.open(&server.admin("/"), None).await;
        // A policy in shadow mode limits nothing anyway.
        check(&server, "new", "ada").await;
        let row = async |row: usize| browser.rows("#policies").await.swap_remove(row);
        until(async || row(1).await[7] == "1 not limited").await;
        until(async || api(&server, "/api/history").await["samples"][0]["allowed"] == 1).await;
        assert!(!browser.is_shown("#banner").await, "{mode}");
        check(&server, "search", "ada").await;
        until(async || browser.text("#banner-title").await == title).await;
        until(async || browser.text("#banner-text").await.contains("Redis cannot be reached"))
            .await;
        let shown = browser.text("#banner-text").await;
        let reason = format!("because Redis cannot be reached and the failure mode is {mode}.");
        assert!(shown.starts_with(text) && shown.ends_with(&reason), "{shown}");
        assert_eq!(row(0).await[7], column);
        let tab = browser.run("return document.title").await;
        assert_eq!(tab, format!("{title} – fleetlimit-server"));
        for scheme in ["light", "dark"] {
            browser.prefer(scheme).await;
            browser.assert_readable(scheme).await;
        }
        browser.screenshot(mode).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: make test-page"]
async fn the_page_draws_what_happened_before_it_was_opened() {
    let server = Server::with_settings(
        "policies: { search: { day: 5/day }, new: { day: 1/day } }\nshadow: [new]",
    );
    for (policy, checks) in [("search", 45), ("new", 11)] {
        for _ in 0..checks {
            check(&server, policy, "ada").await;
        }
    }
    let count = async |field: &str| -> u64 {
        let history = api(&server, "/api/history").await;
        let samples = history["samples"].as_array().unwrap().iter();
        samples.map(|sample| sample[field].as_u64().unwrap()).sum()
    };
    until(async || count("denied").await == 40 && count("would_be_denied").await == 10).await;
    // An empty sample after the others, so that these are not those of now.
    until(async || {
        let history = api(&server, "/api/history").await;
        history["samples"].as_array().unwrap().last().unwrap()["p99"].is_null()
    })
    .await;
    let browser = Browser::start().await;
    browser.open(&server.admin("/"), None).await;
    // The area below a line is the number of checks: 900 units are 15 minutes.
    let areas = "return [...document.querySelectorAll('#charts figure')].map((chart) => {
        const top = parseFloat(chart.querySelector('.top').textContent);
        return [...chart.querySelectorAll('polyline')].map((line) => {
            const points = line.getAttribute('points').split(' ').map((point) => point.split(',').map(Number));
            const areas = points.slice(1).map(([x, y], index) => (x - points[index][0]) * (1 - y / 100) * top);
            return Math.round(areas.reduce((sum, area) => sum + area, 0));
        });
    })";
    let drawn = async || browser.run(areas).await;
    until(async || !drawn().await[3].as_array().is_none_or(Vec::is_empty)).await;
    let found = drawn().await;
    // The last line is drawn first.
    for (chart, line, expected) in [(0, 0, 6), (1, 1, 40), (1, 0, 10), (2, 0, 0)] {
        let area = found[chart][line].as_u64().unwrap();
        assert!(area.abs_diff(expected) <= 1, "{expected} in chart {chart}: {found}");
    }
    let label =
        "return document.querySelectorAll('#charts svg[role=img]')[1].getAttribute('aria-label')";
    let label = browser.run(label).await;
    let label = label.as_str().unwrap();
    let now = "Denied per second: denied 0/s, would be denied (shadow) 0/s; at most ";
    assert!(label.starts_with(now), "{label}");
    assert!(label.ends_with("in 15 minutes"), "{label}");
    let row = browser.rows("#policies").await.remove(1);
    assert_eq!([&*row[4], &row[5], &row[6]], ["1", "0", "10"]);
    let since = browser.text("#since").await;
    assert!(since.starts_with("Totals count since "), "{since}");
    // Of a time that is not drawn, nothing is claimed.
    let point = "const plot = document.querySelector('.plot'), { left, top } = plot.getBoundingClientRect();
        plot.dispatchEvent(new PointerEvent('pointermove', { clientX: left + 1, clientY: top + 1 }))";
    browser.run(point).await;
    let note = browser.text("#history-note").await;
    assert!(note.contains("14 min") && note.ends_with("Nothing is known of this time."), "{note}");
}

/// Waits until the dialog shows an answer.
async fn answer(browser: &Browser) -> String {
    until(async || !browser.text("#dialog-answer").await.is_empty()).await;
    browser.text("#dialog-answer").await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: make test-page"]
async fn keys_are_looked_at_reset_blocked_and_unblocked_on_the_page() {
    let mut server = Server::with_settings(&SETTINGS.replace("5/s burst 10", "10/day"));
    let browser = Browser::start().await;
    browser.open(&server.admin("/"), Some(TOKEN)).await;
    for _ in 0..5 {
        check(&server, "login", EVIL).await;
    }
    let _traffic = keep_denied(&server, &["login"], &[EVIL]);
    let button = |table: &str, action: &str| format!("#{table} button[data-action={action}]");
    until(async || browser.rows("#denied").await.len() == 1).await;
    let remaining = async || {
        let body = json!({ "policy": "login", "key": EVIL });
        let peek = Client::new().post(server.admin("/api/peek")).bearer_auth(TOKEN).json(&body);
        peek.send().await.unwrap().json::<Value>().await.unwrap()["remaining"].clone()
    };

    browser.click(&button("denied", "peek")).await;
    let peeked = answer(&browser).await;
    assert!(peeked.starts_with("failures\n0 of 5 left. All are available in 14 min "), "{peeked}");
    assert_eq!(browser.text("#dialog-key").await, format!("{EVIL} of the policy login"));
    assert!(!browser.is_shown("#dialog-confirm").await);
    browser.click("#dialog-close").await;

    // Nothing changes before it is confirmed.
    browser.click(&button("denied", "reset")).await;
    assert_eq!(browser.text("#dialog-title").await, "Reset this key?");
    browser.click("#dialog-close").await;
    assert!(!browser.is_shown("#dialog").await);
    assert_eq!(remaining().await, 0);
    browser.click(&button("denied", "reset")).await;
    browser.click("#dialog-confirm").await;
    assert_eq!(answer(&browser).await, "The key is reset.");
    assert_eq!(remaining().await, 5);
    browser.click("#dialog-close").await;

    // A row is still there while it is pressed, and the keyboard stays where it is.
    let pressed = "document.querySelector('#denied button[data-action=block]')";
    browser.run(&format!("window.pressed = {pressed}; window.pressed.focus()")).await;
    let before = browser.text("#state").await;
    until(async || browser.text("#state").await != before).await;
    let is_same = format!(
        "return [{pressed}, document.activeElement].every((found) => found === window.pressed)"
    );
    assert_eq!(browser.run(&is_same).await, true);
    assert_eq!(browser.rows("#denied").await.len(), 1);

    browser.click(&button("denied", "block")).await;
    browser.run("document.querySelector('#duration').value = '600'").await;
    assert_eq!(api(&server, "/api/status").await["blocked"], json!([]));
    browser.click("#dialog-confirm").await;
    let blocked = answer(&browser).await;
    assert!(blocked.contains("blocked until") && blocked.ends_with("for 10 min."), "{blocked}");
    let seconds = api(&server, "/api/status").await["blocked"][0]["seconds"].as_u64();
    assert!(seconds.is_some_and(|seconds| (590..=600).contains(&seconds)), "{seconds:?}");
    browser.click("#dialog-close").await;
    until(async || browser.rows("#blocked").await.len() == 1).await;
    browser.click(&button("blocked", "peek")).await;
    assert!(answer(&browser).await.starts_with("The key is blocked for another "));
    browser.click("#dialog-close").await;
    browser.click(&button("blocked", "unblock")).await;
    browser.click("#dialog-confirm").await;
    assert_eq!(answer(&browser).await, "The key is not blocked.");
    assert_eq!(api(&server, "/api/status").await["blocked"], json!([]));
    browser.click("#dialog-close").await;
    until(async || !browser.is_shown("#blocked").await).await;

    // A key that is typed in. Without one, there is nothing to do.
    browser.click("#key-form [data-action=peek]").await;
    assert!(!browser.is_shown("#dialog").await);
    browser.press("#key-policy", "pool").await;
    browser.press("#key-text", &format!("ada|7{ENTER}")).await;
    let peeked = answer(&browser).await;
    assert!(peeked.trim() == "running\n2 of 2 left.", "{peeked}");
    browser.click("#dialog-close").await;
    browser.click("#key-form [data-action=block]").await;
    browser.click("#dialog-confirm").await;
    answer(&browser).await;
    let blocked = api(&server, "/api/status").await["blocked"][0].clone();
    assert_eq!((&blocked["policy"], &blocked["key"]), (&json!("pool"), &json!("ada|7")));
    browser.click("#dialog-close").await;

    // Errors are shown, and can be tried again. Old numbers are not shown as those of now.
    browser.run("sessionStorage.setItem('token', 'wrong')").await;
    browser.click("#key-form [data-action=unblock]").await;
    browser.click("#dialog-confirm").await;
    let error = answer(&browser).await;
    assert_eq!(error, "The server says 401: the bearer token is missing or wrong");
    until(async || browser.text("#banner-title").await == "A token is needed").await;
    assert!(browser.is_shown("#login").await);
    let again = format!("sessionStorage.setItem('token', '{TOKEN}')");
    browser.run(&again).await;
    browser.click("#dialog-confirm").await;
    until(async || browser.text("#dialog-answer").await == "The key is not blocked.").await;
    browser.click("#dialog-close").await;
    until(async || !browser.is_shown("#banner").await && !browser.is_shown("#login").await).await;
    assert_eq!(browser.run("return document.title").await, "fleetlimit-server");
    assert_eq!(browser.run("return document.images.length").await, 0);

    server.kill();
    until(async || browser.text("#banner-title").await == "The server does not answer").await;
    let note = browser.text("#banner-text").await;
    assert!(note.starts_with("The numbers below are those of "), "{note}");
    browser.click("#key-form [data-action=peek]").await;
    assert_eq!(answer(&browser).await, "The server does not answer.");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: make test-page"]
async fn a_key_whose_text_has_escapes_is_not_mistaken_for_another_one() {
    let server = Server::with_settings("policies: { login: { day: 1/day } }");
    let browser = Browser::start().await;
    browser.open(&server.admin("/"), None).await;
    let _traffic = keep_denied(&server, &["login"], &["bell\u{7}", r"back\slash|a"]);
    until(async || browser.rows("#denied").await.len() == 2).await;
    for row in browser.rows("#denied").await {
        let has_buttons = row[3].contains("Peek");
        assert_eq!(has_buttons, row[1] == r"back\slash|a", "{row:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: make test-page"]
async fn everything_is_inside_of_the_window_of_a_phone_and_can_be_pressed() {
    let redis = Redis::start().await;
    let name = "a-policy-with-a-name-of-sixty-four-characters-which-is-the-most-";
    let server = Server::with_settings(&format!(
        "store: {{ redis: '{}' }}\nadmin: {{ token: {TOKEN} }}\nshadow: [new]\n\
         holds: {{ secret: h0ld-0123456789ab }}\n\
         policies: {{ {name}: {{ a-quota-with-a-name-of-sixty-four-characters-which-is-the-most-a: 1/day, another-quota: 1000000/31day fixed }},\n\
         new: {{ day: 1/day }}, pool: {{ running: 2 concurrent }} }}",
        redis.url()
    ));
    let browser = Browser::start().await;
    browser.use_phone(360).await;
    browser.open(&server.admin("/"), Some(TOKEN)).await;
    let (long, more) = ("k".repeat(120), "x-api-key|".repeat(12));
    let block = json!({ "policy": name, "key": more, "seconds": 31_000_000 });
    assert!(post(&server, "/api/block", block).await.is_success());
    let keys = ["ada", EVIL, &long];
    let _traffic = keep_denied(&server, &[name, "new"], &keys);
    until(async || {
        check(&server, "new", "ada").await;
        browser.rows("#denied").await.len() == 6 && browser.rows("#blocked").await.len() == 1
    })
    .await;
    let small = "return [...document.querySelectorAll('button, select, input')]
        .filter((button) => button.checkVisibility()).map((button) => button.getBoundingClientRect())
        .filter(({ width, height }) => height < 40 || width < 40).length";
    for is_outage in [false, true] {
        if is_outage {
            redis.pause();
            until(async || {
                check(&server, name, "bob").await;
                browser.text("#banner").await.contains("all ")
            })
            .await;
        }
        for width in [360, 420] {
            browser.use_phone(width).await;
            for action in ["", "-block", "-peek"] {
                if let Some(action) = action.strip_prefix('-') {
                    let button = format!("#denied tr:last-child button[data-action={action}]");
                    browser.click(&button).await;
                }
                if action == "-peek" {
                    answer(&browser).await;
                }
                let state = if is_outage { "outage" } else { "normal" };
                let what = format!("phone-{width}-{state}{action}");
                assert_eq!(browser.outside().await, json!([]), "{what}");
                assert_eq!(browser.run(small).await, 0, "{what}");
                for scheme in ["dark", "light"] {
                    browser.prefer(scheme).await;
                    browser.assert_readable(scheme).await;
                }
                browser.screenshot(&what).await;
                if !action.is_empty() {
                    browser.click("#dialog-close").await;
                }
            }
            let scroll = "return document.documentElement.scrollWidth";
            assert_eq!(browser.run(scroll).await, width);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: make test-page"]
async fn the_page_shows_whether_the_control_plane_is_followed() {
    let mut control_plane = ControlPlane::start().await;
    let server = Server::with_settings(&control_plane.settings(""));
    let address = format!("localhost:{}", control_plane.address.port());
    control_plane.apply("1", vec![resource("d", &[("user", "", 1)])]).await.unwrap();
    let browser = Browser::start().await;
    browser.open(&server.admin("/"), None).await;
    let shows = async |text: &str| {
        let expected = format!("{address}: {text}");
        until(async || browser.fact("Control plane").await == expected).await;
    };
    shows("version 1").await;
    control_plane.apply("2", vec![resource("d", &[("", "", 1)])]).await.unwrap_err();
    shows("version 2 was rejected").await;
    control_plane.stop();
    shows("not connected").await;
}
