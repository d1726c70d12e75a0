use std::env;
use std::str::FromStr;
use std::time::Duration;

use crate::subjects::BoxError;
use crate::worker::Worker;

/// A process that checks.
pub(super) struct Instance(Worker);

/// What the checks of a section came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Report {
    /// Of the key that all instances check.
    pub(super) admitted: u64,
    pub(super) failed: u64,
    /// How many checks took longer than the timeout and 5 ms.
    pub(super) late: u64,
    pub(super) checks: u64,
    /// 99.9% of the checks took no longer.
    pub(super) p999: Duration,
    pub(super) slowest: Duration,
    pub(super) resident_kib: u64,
}

impl Instance {
    pub(super) fn start(url: &str) -> Result<Self, BoxError> {
        Ok(Self(Worker::start(&env::current_exe()?, &["chaos-worker", "--subject", url])?))
    }

    /// Checks this key from now on.
    pub(super) async fn begin(&mut self, key: &str) -> Result<(), BoxError> {
        self.0.send(&format!("begin {key}")).await
    }

    pub(super) async fn end(&mut self) -> Result<Report, BoxError> {
        self.0.ask("end").await?.parse()
    }

    /// Reports when Redis decides again.
    pub(super) async fn watch(&mut self) -> Result<(), BoxError> {
        self.0.send("watch").await
    }

    pub(super) async fn recovered(&mut self) -> Result<(), BoxError> {
        self.0.receive().await.map(|_| ())
    }
}

impl Report {
    pub(super) fn write(&self) -> String {
        let Self { admitted, failed, late, checks, p999, slowest, resident_kib } = self;
        let (p999, slowest) = (p999.as_micros(), slowest.as_micros());
        format!("{admitted} {failed} {late} {checks} {p999} {slowest} {resident_kib}")
    }
}

impl FromStr for Report {
    type Err = BoxError;

    fn from_str(text: &str) -> Result<Self, BoxError> {
        let numbers = text.split(' ').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
        let [admitted, failed, late, checks, p999, slowest, resident_kib] = numbers[..] else {
            return Err(format!("not a report: {text}").into());
        };
        let (p999, slowest) = (Duration::from_micros(p999), Duration::from_micros(slowest));
        Ok(Self { admitted, failed, late, checks, p999, slowest, resident_kib })
    }
}
