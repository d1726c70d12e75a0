//! One of the processes: tasks that check the key of the section more often than the limit allows, and
//! tasks that check many other keys.

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ::fleetlimit::{Limiter, Quota, RedisStore, Source};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::instance::Report;
use super::{BURST, RATE, TIMEOUT};
use crate::settings::Settings;
use crate::soak::resident_kib;
use crate::subjects::BoxError;

pub(super) const TASKS_ON_THE_KEY: u64 = 2;
const TASKS_ON_OTHERS: u64 = 6;
/// Between two checks of a task.
pub(super) const PAUSE: Duration = Duration::from_millis(5);
const OTHER_KEYS: u64 = 10_000;

#[derive(Default)]
struct Section {
    key: String,
    admitted: u64,
    failed: u64,
    /// Of the checks that the denial cache did not answer.
    took: Vec<Duration>,
}

type Shared = Arc<Mutex<Section>>;

pub(crate) async fn run(settings: Settings) -> Result<ExitCode, BoxError> {
    let store = RedisStore::open(settings.subject)?;
    let quota = Quota::per_second(RATE as u64).burst(BURST as u64);
    let limiter = Limiter::builder(store, quota).timeout(TIMEOUT).build()?;
    let section = Shared::default();
    for number in 0..TASKS_ON_THE_KEY + TASKS_ON_OTHERS {
        tokio::spawn(check_all(limiter.clone(), section.clone(), number));
    }
    let mut commands = BufReader::new(stdin()).lines();
    while let Some(command) = commands.next_line().await? {
        match command.split_once(' ') {
            Some((_, key)) => {
                *lock(&section) = Section { key: key.into(), ..Section::default() };
            }
            None if command == "end" => {
                let ended = std::mem::take(&mut *lock(&section));
                println!("{}", ended.report().write());
            }
            // In a task, so that the end of the input ends the process.
            None => drop(tokio::spawn(watch(limiter.clone()))),
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn watch(limiter: Limiter) {
    while !limiter.check("watch").await.is_ok_and(|decision| decision.source() == Source::Store) {
        sleep(Duration::from_millis(1)).await;
    }
    println!("recovered");
}

async fn check_all(limiter: Limiter, section: Shared, number: u64) {
    let mut tick = interval(PAUSE);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut other = number;
    loop {
        tick.tick().await;
        let key = lock(&section).key.clone();
        if key.is_empty() {
            continue;
        }
        let is_of_section = number < TASKS_ON_THE_KEY;
        let start = Instant::now();
        let decision = if is_of_section {
            limiter.check(key.as_str()).await
        } else {
            other = (other + 7_919) % OTHER_KEYS;
            limiter.check(other).await
        };
        let took = start.elapsed();
        let mut section = lock(&section);
        // A check that began in another section counts for none: it cannot have admitted more.
        if section.key != key {
            continue;
        }
        match decision {
            Ok(decision) => {
                section.admitted += u64::from(is_of_section && decision.is_allowed());
                if decision.source() != Source::Cached {
                    section.took.push(took);
                }
            }
            Err(_) => section.failed += 1,
        }
    }
}

impl Section {
    fn report(mut self) -> Report {
        self.took.sort_unstable();
        let checks = self.took.len();
        let bound = TIMEOUT + Duration::from_millis(5);
        let p999 = self.took.get((checks * 999).div_ceil(1_000).saturating_sub(1));
        Report {
            admitted: self.admitted,
            failed: self.failed,
            late: self.took.iter().filter(|took| **took > bound).count() as u64,
            checks: checks as u64,
            p999: p999.copied().unwrap_or_default(),
            slowest: self.took.last().copied().unwrap_or_default(),
            resident_kib: resident_kib(),
        }
    }
}

fn lock(section: &Shared) -> std::sync::MutexGuard<'_, Section> {
    section.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
