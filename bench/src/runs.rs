//! Measures the subjects of a row. The load of the machine varies over time, so every round runs
//! all subjects for a short time. Figures are medians of the rounds, and ratios are computed within
//! a round.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::load::{Load, Measurement, Until};
use crate::rows::{Row, Subject};
use crate::setup::{Place, Setup};
use crate::subjects::BoxError;

#[derive(Clone, Copy, Debug)]
pub(crate) struct RunConfig {
    pub(crate) rounds: usize,
    /// The duration of one run.
    pub(crate) slice: Duration,
}

/// The measurements of one row: one per subject and round.
pub(crate) struct Runs {
    pub(crate) row: &'static str,
    pub(crate) order: Vec<&'static str>,
    measurements: BTreeMap<&'static str, Vec<Measurement>>,
}

/// Measures the subjects whose name contains `subject`.
pub(crate) async fn measure_row(
    row: &Row,
    subject: &str,
    setup: &Setup,
    config: RunConfig,
) -> Result<Runs, BoxError> {
    let mut subjects = row.subjects(setup).await?;
    subjects.retain(|candidate| candidate.name.contains(subject));
    measure_subjects(row, &subjects, setup, config)
        .await
        .map_err(|error| format!("{}: {error}", row.name).into())
}

async fn measure_subjects(
    row: &Row,
    subjects: &[Subject],
    setup: &Setup,
    config: RunConfig,
) -> Result<Runs, BoxError> {
    let mut runs = Runs {
        row: row.name,
        order: subjects.iter().map(|subject| subject.name).collect(),
        measurements: BTreeMap::new(),
    };
    let load = |time| Load { tasks: row.tasks, keys: row.keys, until: Until::Elapsed(time) };
    for subject in subjects {
        // Opens the connections, loads the script and creates the keys.
        subject.run(load(config.slice / 5)).await?;
    }
    for round in 0..config.rounds {
        for n in 0..subjects.len() {
            let subject = &subjects[(n + round) % subjects.len()];
            if row.allow_all && row.place != Place::Cluster && subject.uses_redis {
                // The keys of other subjects would take space in the CPU caches.
                setup.server(row.place).query::<()>(&["FLUSHALL"]).await;
                subject.run(load(config.slice / 5)).await?;
            }
            let measurement = measure(subject, load(config.slice), setup, row.place).await?;
            verify(subject, &measurement, row.allow_all)?;
            runs.measurements.entry(subject.name).or_default().push(measurement);
        }
    }
    Ok(runs)
}

pub(crate) async fn measure(
    subject: &Subject,
    load: Load,
    setup: &Setup,
    place: Place,
) -> Result<Measurement, BoxError> {
    if !subject.uses_redis {
        return subject.run(load).await;
    }
    let before = setup.cpu(place).await;
    let mut measurement = subject.run(load).await?;
    measurement.redis_cpu = setup.cpu(place).await.saturating_sub(before);
    Ok(measurement)
}

/// A measurement with unexpected decisions is not valid.
fn verify(subject: &Subject, measurement: &Measurement, allow_all: bool) -> Result<(), BoxError> {
    let Measurement { allowed, denied, .. } = *measurement;
    let unexpected = if allow_all { denied } else { allowed };
    if measurement.decisions() == 0 || subject.is_verified && unexpected > 0 {
        let name = subject.name;
        return Err(
            format!("unexpected decisions of {name}: {allowed} allowed, {denied} denied").into()
        );
    }
    Ok(())
}

/// Computes a figure of a measurement.
pub(crate) type Figure = fn(&Measurement) -> f64;

pub(crate) fn per_second(measurement: &Measurement) -> f64 {
    measurement.decisions() as f64 / measurement.elapsed.as_secs_f64()
}

pub(crate) fn p50(measurement: &Measurement) -> f64 {
    measurement.p50.into()
}

pub(crate) fn p99(measurement: &Measurement) -> f64 {
    measurement.p99.into()
}

/// CPU time of this process per decision, in microseconds.
pub(crate) fn client_cpu(measurement: &Measurement) -> f64 {
    measurement.client_cpu.as_secs_f64() * 1e6 / measurement.decisions() as f64
}

/// CPU time of Redis per decision, in microseconds.
pub(crate) fn redis_cpu(measurement: &Measurement) -> f64 {
    measurement.redis_cpu.as_secs_f64() * 1e6 / measurement.decisions() as f64
}

impl Runs {
    pub(crate) fn get(&self, name: &str) -> &[Measurement] {
        self.measurements.get(name).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn median(&self, name: &str, figure: Figure) -> Option<f64> {
        median(self.get(name).iter().map(figure).collect())
    }

    /// Returns the median of the ratios of all rounds.
    pub(crate) fn ratio(&self, name: &str, reference: &str, figure: Figure) -> Option<f64> {
        let pairs = self.get(name).iter().zip(self.get(reference));
        median(pairs.map(|(run, reference)| figure(run) / figure(reference)).collect())
    }
}

pub(crate) fn median(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let upper = *figures.get(figures.len() / 2)?;
    let lower = figures[(figures.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}
