//! The script alone: redis-benchmark calls it as fast as the server can, one check a call.

use std::process::Stdio;

use tokio::process::Command;

use crate::captured::load;
use crate::common::Server;
use crate::run::median;
use crate::stage::{Stage, cpu_of};
use crate::subjects::{BURST, Fault, TwoKeys};

/// What any limiter in one key must do: read the clock, read the key, write it.
const LEAST: &str = "redis.call('TIME') redis.call('GET', KEYS[1]) \
                     redis.call('SET', KEYS[1], '1790000000000000', 'PX', '60000') return 1";

pub(crate) const NAME: &str = "tollgate's script";

/// What the scripts came to, the least of them first.
pub(crate) struct ScriptCost {
    pub(crate) rows: Vec<(&'static str, Rates)>,
}

/// Medians of the rounds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    pub(crate) per_second: f64,
    /// Microseconds of the server for a call.
    pub(crate) cpu: f64,
    /// Against [`LEAST`], by calls per second and by the server's time.
    pub(crate) by_rate: f64,
    pub(crate) by_cpu: f64,
}

impl ScriptCost {
    pub(crate) async fn measure(stage: &Stage, rounds: usize, calls: u64) -> Result<Self, Fault> {
        let scripts = scripts(stage).await;
        let mut turns = vec![Vec::new(); scripts.len()];
        for _ in 0..rounds {
            for ((_, words), turns) in scripts.iter().zip(&mut turns) {
                turns.push(turn(&stage.server, words, calls).await?);
            }
        }
        let rows = scripts.iter().zip(&turns);
        let rows = rows.map(|((name, _), these)| (*name, rates(these, &turns[0])));
        Ok(Self { rows: rows.collect() })
    }

    pub(crate) fn own(&self) -> Rates {
        self.rows.iter().find(|(name, _)| *name == NAME).map_or_else(Rates::default, |row| row.1)
    }
}

/// What follows `EVALSHA`.
async fn scripts(stage: &Stage) -> [(&'static str, Vec<String>); 4] {
    // redis-benchmark puts a number in its place, in each call another.
    let caller = "__rand_int__";
    let call = |sha: &str, keys: &[String], arguments: &[String]| {
        let mut words = vec![sha.to_owned(), keys.len().to_string()];
        words.extend(keys.iter().chain(arguments).cloned());
        words
    };
    let least = load(&stage.server, LEAST).await;
    let two_keys = load(&stage.server, TwoKeys::SCRIPT).await;
    let key = [stage.open.key_of(caller)];
    let numbers = &stage.open.arguments;
    let tokens = ["1".into(), BURST.to_string(), String::new(), "1".into()];
    [
        ("TIME, GET and SET only", call(&least, &[format!("least:{caller}")], &[])),
        ("the same, with tollgate's key and arguments", call(&least, &key, numbers)),
        (NAME, call(&stage.open.sha, &key, numbers)),
        ("two-key script", call(&two_keys, &TwoKeys::keys(&stage.open, caller), &tokens)),
    ]
}

#[derive(Clone, Copy)]
struct Turn {
    per_second: f64,
    cpu: f64,
}

async fn turn(server: &Server, words: &[String], calls: u64) -> Result<Turn, Fault> {
    let failed = failures(server).await;
    let before = cpu_of(server).await;
    let output = Command::new("redis-benchmark")
        .args(["-p", &server.port().to_string(), "-n", &calls.to_string()])
        .args(["-P", "32", "-c", "50", "-r", "10000", "--csv", "EVALSHA"])
        .args(words)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await?;
    let cpu = (cpu_of(server).await - before).as_secs_f64() * 1e6 / calls as f64;
    if !output.status.success() || failures(server).await != failed {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("redis-benchmark failed: {said}").into());
    }
    // "the command","calls per second", and six columns of latencies.
    let text = String::from_utf8(output.stdout)?;
    let rate = text.lines().last().and_then(|line| line.rsplit(',').nth(6));
    let rate = rate.and_then(|rate| rate.trim_matches('"').parse().ok());
    let per_second = rate.ok_or_else(|| format!("redis-benchmark said {text:?}"))?;
    Ok(Turn { per_second, cpu })
}

async fn failures(server: &Server) -> Option<String> {
    server.info("stats").await.remove("total_error_replies")
}

fn rates(turns: &[Turn], least: &[Turn]) -> Rates {
    let of = |figure: fn(&Turn, &Turn) -> f64| {
        median(turns.iter().zip(least).map(|(own, least)| figure(own, least)).collect())
            .unwrap_or_default()
    };
    Rates {
        per_second: of(|own, _| own.per_second),
        cpu: of(|own, _| own.cpu),
        by_rate: of(|own, least| own.per_second / least.per_second),
        by_cpu: of(|own, least| least.cpu / own.cpu),
    }
}
