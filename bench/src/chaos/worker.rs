//! One of the processes: tasks that check the key of the section more often than the limit allows, tasks that check
//! many other keys, tasks that check a key with leases, in every other second more often than its limit allows, and
//! tasks that hold permits of a key for a moment.

use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use ::fleetlimit::{Limiter, Policy, Quota, RedisStore, Source};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::held::{self, Uses};
use super::instance::{Report, Reports};
use super::{BURST, HOLD_FOR, LEASE, LEASED_BURST, LEASED_RATE, RATE, TIMEOUT};
use crate::settings::Settings;
use crate::soak::resident_kib;
use crate::subjects::BoxError;

pub(super) const TASKS_ON_THE_KEY: u64 = 2;
const TASKS_ON_OTHERS: u64 = 6;
const TASKS_ON_LEASED: u64 = 4;
/// In every other second these leave out all checks but one in so many, so that there are permits to lease.
const SELDOM: u64 = 4;
/// Between two checks of a task.
pub(super) const PAUSE: Duration = Duration::from_millis(5);
const OTHER_KEYS: u64 = 10_000;
/// The time for which a task holds a permit.
const HOLD: Duration = Duration::from_millis(30);

/// The keys that a task checks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keys {
    Shared,
    Others,
    Leased,
}

#[derive(Default)]
struct Section {
    key: String,
    /// Of the shared key and others, and of the key with leases.
    exact: Outcomes,
    leased: Outcomes,
    held: Uses,
}

#[derive(Default)]
struct Outcomes {
    admitted: u64,
    failed: u64,
    by_lease: u64,
    /// Since when the process decides without Redis, and how long it did so before.
    alone_since: Option<Instant>,
    alone: Duration,
    /// Of the checks that neither the denial cache nor a lease decided.
    took: Vec<Duration>,
}

type Shared = Arc<Mutex<Section>>;

pub(crate) async fn run(settings: Settings) -> Result<ExitCode, BoxError> {
    let store = RedisStore::open(settings.subject)?.hold_for(HOLD_FOR);
    let quota = Quota::per_second(RATE as u64).burst(BURST as u64);
    let limiter = Limiter::builder(store.clone(), quota).timeout(TIMEOUT).build()?;
    let quota = Quota::per_second(LEASED_RATE as u64).burst(LEASED_BURST as u64);
    let leased = Policy::new("leased").quota("rate", quota);
    let leased = Limiter::builder(store.clone(), leased).timeout(TIMEOUT).lease(LEASE).build()?;
    let held = Policy::new("held").quota("held", Quota::concurrent(held::LIMIT));
    let held = Limiter::builder(store, held).timeout(TIMEOUT).build()?;
    let section = Shared::default();
    for (keys, count, limiter) in [
        (Keys::Shared, TASKS_ON_THE_KEY, &limiter),
        (Keys::Others, TASKS_ON_OTHERS, &limiter),
        (Keys::Leased, TASKS_ON_LEASED, &leased),
    ] {
        for number in 0..count {
            tokio::spawn(check_all(limiter.clone(), section.clone(), keys, number));
        }
    }
    for _ in 0..held::TASKS {
        tokio::spawn(hold_all(held.clone(), section.clone()));
    }
    let mut commands = BufReader::new(stdin()).lines();
    while let Some(command) = commands.next_line().await? {
        match command.split_once(' ') {
            Some((_, key)) => {
                *lock(&section) = Section { key: key.into(), ..Section::default() };
            }
            None if command == "end" => {
                let ended = std::mem::take(&mut *lock(&section));
                println!("{}", ended.reports().write());
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

async fn check_all(limiter: Limiter, section: Shared, keys: Keys, number: u64) {
    let mut tick = interval(PAUSE);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (mut other, mut count) = (number, number);
    loop {
        tick.tick().await;
        let key = lock(&section).key.clone();
        if key.is_empty() {
            continue;
        }
        count += 1;
        if keys == Keys::Leased && is_calm() && !count.is_multiple_of(SELDOM) {
            continue;
        }
        let start = Instant::now();
        let decision = if keys == Keys::Others {
            other = (other + 7_919) % OTHER_KEYS;
            limiter.check(other).await
        } else {
            limiter.check(key.as_str()).await
        };
        let took = start.elapsed();
        let mut section = lock(&section);
        // A check that began in another section counts for none: it cannot have admitted more.
        if section.key != key {
            continue;
        }
        let outcomes = match keys {
            Keys::Leased => &mut section.leased,
            Keys::Shared | Keys::Others => &mut section.exact,
        };
        match decision {
            Ok(decision) => {
                outcomes.admitted += u64::from(keys != Keys::Others && decision.is_allowed());
                let source = decision.source();
                match source {
                    Source::Cached => {}
                    Source::Lease => outcomes.by_lease += 1,
                    _ => outcomes.took.push(took),
                }
                outcomes.note(source, start);
            }
            Err(_) => outcomes.failed += 1,
        }
    }
}

/// Holds permits of the key of the section, one after the other.
async fn hold_all(limiter: Limiter, section: Shared) {
    loop {
        let key = lock(&section).key.clone();
        if key.is_empty() {
            sleep(PAUSE).await;
            continue;
        }
        match limiter.hold(key.as_str(), 1).await {
            Ok(hold) if hold.decision().is_allowed() => {
                let began = held::clock();
                sleep(HOLD).await;
                let ended = held::clock();
                drop(hold);
                let mut section = lock(&section);
                // A use of another section counts for none.
                if section.key == key {
                    section.held.add(began, ended);
                }
            }
            _ => sleep(PAUSE).await,
        }
    }
}

/// True in every other second, in all processes at once.
fn is_calm() -> bool {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    now.as_secs().is_multiple_of(2)
}

impl Section {
    fn reports(self) -> Reports {
        let (exact, leased) = (self.exact.report(), self.leased.report());
        Reports { exact, leased, held: self.held }
    }
}

impl Outcomes {
    /// Notes who has decided a check that began at `start`.
    fn note(&mut self, source: Source, start: Instant) {
        match (source, self.alone_since) {
            (Source::Local, None) => self.alone_since = Some(start),
            (Source::Store, Some(since)) if start > since => self.end_outage(),
            _ => {}
        }
    }

    fn end_outage(&mut self) {
        self.alone += self.alone_since.take().map(|since| since.elapsed()).unwrap_or_default();
    }

    fn report(mut self) -> Report {
        self.end_outage();
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
            by_lease: self.by_lease,
            alone: self.alone,
        }
    }
}

fn lock(section: &Shared) -> std::sync::MutexGuard<'_, Section> {
    section.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
