//! The cost of the script in Redis: redis-benchmark calls it at full speed, one check per call.

use std::process::Stdio;

use tokio::process::Command;

use crate::captured::load_script;
use crate::common::Server;
use crate::runs::median;
use crate::setup::{Setup, server_cpu};
use crate::subjects::{BURST, BoxError, TwoKeys};

/// The least that any limiter with one Redis key must do: read the clock, read and write the key.
const MINIMAL_SCRIPT: &str = "\
    redis.call('TIME') redis.call('GET', KEYS[1]) \
    redis.call('SET', KEYS[1], '1790000000000000', 'PX', '60000') return 1";

const FLEETLIMIT: &str = "fleetlimit's script";

/// The rates of each script. The first is [`MINIMAL_SCRIPT`].
pub(crate) struct ScriptCost {
    pub(crate) rows: Vec<(&'static str, Rates)>,
}

/// Medians of the rounds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    pub(crate) per_second: f64,
    /// CPU time of Redis per call, in microseconds.
    pub(crate) cpu: f64,
    /// Calls per second relative to [`MINIMAL_SCRIPT`].
    pub(crate) rate_ratio: f64,
    /// CPU time of [`MINIMAL_SCRIPT`] relative to this script.
    pub(crate) cpu_ratio: f64,
}

impl ScriptCost {
    pub(crate) async fn measure(
        setup: &Setup,
        rounds: usize,
        calls: u64,
    ) -> Result<Self, BoxError> {
        let scripts = scripts(setup).await;
        let mut runs = vec![Vec::new(); scripts.len()];
        for _ in 0..rounds {
            for ((_, arguments), runs) in scripts.iter().zip(&mut runs) {
                runs.push(run(&setup.server, arguments, calls).await?);
            }
        }
        let rows = scripts.iter().zip(&runs);
        let rows = rows.map(|((name, _), script_runs)| (*name, rates(script_runs, &runs[0])));
        Ok(Self { rows: rows.collect() })
    }

    pub(crate) fn fleetlimit(&self) -> Rates {
        let row = self.rows.iter().find(|(name, _)| *name == FLEETLIMIT);
        row.map_or_else(Rates::default, |row| row.1)
    }
}

/// Returns the name of each script and the arguments of its `EVALSHA`.
async fn scripts(setup: &Setup) -> [(&'static str, Vec<String>); 4] {
    // redis-benchmark replaces this with a random number in each call.
    let key = "__rand_int__";
    let evalsha = |sha: &str, redis_keys: &[String], arguments: &[String]| {
        let mut words = vec![sha.to_owned(), redis_keys.len().to_string()];
        words.extend(redis_keys.iter().chain(arguments).cloned());
        words
    };
    let minimal = load_script(&setup.server, MINIMAL_SCRIPT).await;
    let two_keys = load_script(&setup.server, TwoKeys::SCRIPT).await;
    let call = &setup.allow_call;
    let redis_key = [call.redis_key(key)];
    // Those of a token bucket are text.
    let arguments = call.arguments.iter().map(|word| String::from_utf8_lossy(word).into_owned());
    let arguments: Vec<String> = arguments.collect();
    let two_keys_arguments = ["1".into(), BURST.to_string(), String::new(), "1".into()];
    [
        ("TIME, GET and SET only", evalsha(&minimal, &[format!("bench:{key}")], &[])),
        (
            "TIME, GET and SET only, with fleetlimit's key and arguments",
            evalsha(&minimal, &redis_key, &arguments),
        ),
        (FLEETLIMIT, evalsha(&call.sha, &redis_key, &arguments)),
        (
            "two-key script",
            evalsha(&two_keys, &TwoKeys::redis_keys(call, key), &two_keys_arguments),
        ),
    ]
}

#[derive(Clone, Copy)]
struct Run {
    per_second: f64,
    cpu: f64,
}

async fn run(server: &Server, arguments: &[String], calls: u64) -> Result<Run, BoxError> {
    let errors_before = error_replies(server).await;
    let cpu_before = server_cpu(server).await;
    let output = Command::new("redis-benchmark")
        .args(["-p", &server.port().to_string(), "-n", &calls.to_string()])
        .args(["-P", "32", "-c", "50", "-r", "10000", "--csv", "EVALSHA"])
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let cpu = (server_cpu(server).await - cpu_before).as_secs_f64() * 1e6 / calls as f64;
    if !output.status.success() || error_replies(server).await != errors_before {
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("redis-benchmark failed: {stderr}").into());
    }
    // "command","calls per second", and six columns of latencies.
    let text = String::from_utf8(output.stdout)?;
    let rate = text.lines().last().and_then(|line| line.rsplit(',').nth(6));
    let rate = rate.and_then(|rate| rate.trim_matches('"').parse().ok());
    let per_second = rate.ok_or_else(|| format!("unexpected redis-benchmark output: {text:?}"))?;
    Ok(Run { per_second, cpu })
}

async fn error_replies(server: &Server) -> Option<String> {
    server.info("stats").await.remove("total_error_replies")
}

fn rates(runs: &[Run], minimal_runs: &[Run]) -> Rates {
    let median_of = |figure: fn(&Run, &Run) -> f64| {
        let pairs = runs.iter().zip(minimal_runs);
        median(pairs.map(|(run, minimal)| figure(run, minimal)).collect()).unwrap_or_default()
    };
    Rates {
        per_second: median_of(|run, _| run.per_second),
        cpu: median_of(|run, _| run.cpu),
        rate_ratio: median_of(|run, minimal| run.per_second / minimal.per_second),
        cpu_ratio: median_of(|run, minimal| minimal.cpu / run.cpu),
    }
}
