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

/// Of a script against [`LEAST`], each the median of the rounds' ratios.
pub(crate) struct ScriptCost {
    pub(crate) rows: Vec<(&'static str, Rates)>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rates {
    pub(crate) per_second: f64,
    /// Microseconds of the server for a call.
    pub(crate) cpu: f64,
    /// Against the least.
    pub(crate) by_rate: f64,
    pub(crate) by_cpu: f64,
}

pub(crate) const NAME: &str = "tollgate's script";

impl ScriptCost {
    pub(crate) async fn measure(stage: &Stage, rounds: usize, calls: u64) -> Result<Self, Fault> {
        // In its own place in each name: redis-benchmark makes a number of it.
        let caller = "__rand_int__";
        let least = load(&stage.server, LEAST).await;
        let two_keys = load(&stage.server, TwoKeys::SCRIPT).await;
        let key = stage.open.key_of(caller);
        let mut own = vec![stage.open.sha.clone(), "1".into(), key.clone()];
        own.extend(stage.open.arguments.clone());
        let [tokens, time] = TwoKeys::keys(&stage.open, caller);
        let burst = BURST.to_string();
        let scripts = [
            ("TIME, GET, SET only", vec![least, "1".into(), format!("least:{caller}")]),
            (NAME, own),
            (
                "two-key script",
                [two_keys, "2".into(), tokens, time, "1".into(), burst, String::new(), "1".into()]
                    .into(),
            ),
        ];
        let mut turns = vec![Vec::new(); scripts.len()];
        for _ in 0..rounds {
            for ((_, words), turns) in scripts.iter().zip(&mut turns) {
                turns.push(turn(&stage.server, words, calls).await?);
            }
        }
        let least = turns[0].clone();
        let rows =
            scripts.iter().zip(turns).map(|((name, _), turns)| (*name, rates(&turns, &least)));
        Ok(Self { rows: rows.collect() })
    }

    pub(crate) fn own(&self) -> Rates {
        self.rows.iter().find(|(name, _)| *name == NAME).map_or_else(Rates::default, |row| row.1)
    }
}

/// Calls per second, and microseconds of the server for a call.
async fn turn(server: &Server, words: &[String], calls: u64) -> Result<(f64, f64), Fault> {
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
    Ok((rate.ok_or_else(|| format!("redis-benchmark said {text:?}"))?, cpu))
}

async fn failures(server: &Server) -> Option<String> {
    server.info("stats").await.remove("total_error_replies")
}

fn rates(turns: &[(f64, f64)], least: &[(f64, f64)]) -> Rates {
    let of = |figure: fn((&(f64, f64), &(f64, f64))) -> f64| {
        median(turns.iter().zip(least).map(figure).collect()).unwrap_or_default()
    };
    Rates {
        per_second: of(|(own, _)| own.0),
        cpu: of(|(own, _)| own.1),
        by_rate: of(|(own, least)| own.0 / least.0),
        by_cpu: of(|(own, least)| least.1 / own.1),
    }
}
