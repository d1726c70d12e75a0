//! A long run of several processes with one fault after another. Every admission is counted, and the scorecard
//! says whether the limit held, what a check cost, and how soon Redis decided again. The processes share three keys:
//! one without leases, one with them, and one whose permits are held for a moment.
//!
//! An `instance` is a process as the benchmark sees it, and a `worker` what runs in it. A `fault` happens to a
//! server, the `scorecard` has the figures (`held` those of permits that are held), and `open_breaker` measures the time of a check without a server.
//! `outage` draws a single fault.

mod fault;
mod held;
mod instance;
mod open_breaker;
mod outage;
mod scorecard;
mod worker;

use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::time::sleep;

use self::fault::{Fault, Target};
use self::held::Uses;
use self::instance::{Instance, Reports};
pub(crate) use self::outage::run as draw_outage;
use self::scorecard::{Cycle, Scorecard};
pub(crate) use self::worker::run as run_worker;
use crate::settings::Settings;
use crate::subjects::BoxError;

const INSTANCES: usize = 3;
const RATE: f64 = 50.0;
const BURST: f64 = 50.0;

/// The limit of the key with leases.
const LEASED_RATE: f64 = 1_000.0;
const LEASED_BURST: f64 = 500.0;
const LEASE: Duration = Duration::from_millis(100);

/// The time for which Redis counts permits that a process does not renew.
const HOLD_FOR: Duration = Duration::from_secs(1);

const TIMEOUT: Duration = Duration::from_millis(50);

/// Without a fault, and how long a fault lasts.
const CALM: Duration = Duration::from_secs(2);
const FAULT: Duration = Duration::from_secs(4);

/// Until all instances have agreed on their parts.
const SETTLE: Duration = Duration::from_secs(6);

pub(crate) async fn run(settings: Settings) -> Result<ExitCode, BoxError> {
    let time = settings.slice.unwrap_or(Duration::from_secs(600));
    let target = Target::start().await;
    let mut instances = Vec::new();
    for _ in 0..INSTANCES {
        instances.push(Instance::start(&target.url())?);
    }
    section(&mut instances, "warm", SETTLE).await?;
    let (start, mut number, mut scorecard) = (Instant::now(), 0, Scorecard::default());
    let mut faults = Faults::new(&settings.only)?;
    while start.elapsed() < time {
        number += 1;
        let calm = section(&mut instances, &format!("calm{number}"), CALM).await?;
        let fault = faults.next();
        let cycle = cycle(&mut instances, &target, fault, &format!("fault{number}")).await?;
        println!("{:>5.0?} {}", start.elapsed(), cycle.summary());
        scorecard.add(calm, cycle);
    }
    drop(instances);
    scorecard.open_breaker = open_breaker::measure(&target).await?;
    print!("{scorecard}");
    Ok(if scorecard.is_met() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A time in which all instances check one key.
struct Section {
    time: Duration,
    rate: f64,
    burst: f64,
    /// The permits per second that an instance adds that has lost Redis while others have not: its share. 0 if the
    /// demand is always above the limit: then all that it allows is charged afterwards, because nothing has refilled.
    rate_alone: f64,
    reports: Vec<instance::Report>,
}

/// A time in which all instances check one key without leases, and one with leases.
struct Sections {
    exact: Section,
    leased: Section,
    held: Uses,
}

impl Sections {
    fn new(time: Duration, reports: &[Reports]) -> Self {
        let exact = reports.iter().map(|reports| reports.exact).collect();
        let leased = reports.iter().map(|reports| reports.leased).collect();
        let mut held = Uses::default();
        reports.iter().for_each(|reports| held.extend(&reports.held));
        Self {
            exact: Section { time, rate: RATE, burst: BURST, rate_alone: 0.0, reports: exact },
            leased: Section {
                time,
                rate: LEASED_RATE,
                burst: LEASED_BURST,
                rate_alone: LEASED_RATE / INSTANCES as f64,
                reports: leased,
            },
            held,
        }
    }
}

async fn begin(instances: &mut [Instance], key: &str) -> Result<Instant, BoxError> {
    // Before the first check of the key.
    let start = Instant::now();
    for instance in instances {
        instance.begin(key).await?;
    }
    Ok(start)
}

/// Ends the checks of the key.
async fn end(instances: &mut [Instance], start: Instant) -> Result<Sections, BoxError> {
    end_with(instances, start, Vec::new()).await
}

/// Ends the checks of the key, with what those of other instances came to.
async fn end_with(
    instances: &mut [Instance],
    start: Instant,
    mut reports: Vec<Reports>,
) -> Result<Sections, BoxError> {
    for instance in instances {
        reports.push(instance.end().await?);
    }
    Ok(Sections::new(start.elapsed(), &reports))
}

async fn section(
    instances: &mut [Instance],
    key: &str,
    time: Duration,
) -> Result<Sections, BoxError> {
    let start = begin(instances, key).await?;
    sleep(time).await;
    end(instances, start).await
}

async fn cycle(
    instances: &mut [Instance],
    target: &Target,
    fault: Fault,
    key: &str,
) -> Result<Cycle, BoxError> {
    let start = begin(instances, key).await?;
    sleep(CALM / 2).await;
    let replaced = fault.happen(target, instances, key, FAULT).await?;
    let ended = Instant::now();
    for instance in &mut *instances {
        instance.watch().await?;
    }
    for instance in &mut *instances {
        instance.recovered().await?;
    }
    let recovery = ended.elapsed();
    sleep(CALM / 2).await;
    let replaced = replaced.into_iter().collect();
    Ok(Cycle { fault, recovery, sections: end_with(instances, start, replaced).await? })
}

/// All faults in a random order, again and again.
struct Faults {
    all: Vec<Fault>,
    left: Vec<Fault>,
    random: u64,
}

impl Faults {
    /// Those whose name contains a text.
    fn new(text: &str) -> Result<Self, BoxError> {
        let all = Fault::ALL.into_iter().filter(|fault| fault.name().contains(text));
        let all: Vec<_> = all.collect();
        if all.is_empty() {
            return Err(format!("no fault has a name with {text:?}").into());
        }
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self { all, left: Vec::new(), random: seed.as_nanos() as u64 | 1 })
    }

    fn next(&mut self) -> Fault {
        if self.left.is_empty() {
            self.left.clone_from(&self.all);
        }
        // Xorshift.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.left.swap_remove(self.random as usize % self.left.len())
    }
}
