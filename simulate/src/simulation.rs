//! The interface of this crate: `Simulation`, which takes policies and replays a log.

use std::io::{self, BufRead, ErrorKind};

use fleetlimit::{ConfigError, Policy};

use crate::pattern::Pattern;
use crate::plot;
use crate::report::Report;
use crate::run::{Run, replay};
use crate::table::table;

/// The policies to replay a log against, and the patterns of the keys and costs of its requests.
#[derive(Debug)]
pub struct Simulation {
    key: Pattern,
    cost: Pattern,
    files: Vec<String>,
    runs: Vec<Run>,
}

impl Simulation {
    /// Creates a simulation without policies.
    pub fn new(key: Pattern, cost: Pattern) -> Self {
        Self { key, cost, files: Vec::new(), runs: Vec::new() }
    }

    /// Adds the policies of a file. The report compares policies that have the same name in two files.
    ///
    /// # Errors
    ///
    /// If a policy cannot be replayed.
    pub fn add(
        &mut self,
        file: impl Into<String>,
        policies: impl IntoIterator<Item = Policy>,
    ) -> Result<(), ConfigError> {
        for policy in policies {
            self.runs.push(Run::new(self.files.len(), policy)?);
        }
        self.files.push(file.into());
        Ok(())
    }

    /// Replays the lines of a log. The report lists at most `top` keys of each kind.
    ///
    /// # Errors
    ///
    /// If the log cannot be read, or none of its lines can be used.
    pub fn run(mut self, mut log: impl BufRead, top: usize) -> io::Result<Report> {
        let lines = replay(&mut log, &self.key, &self.cost, &mut self.runs)?;
        match lines.error() {
            Some(error) => Err(io::Error::new(ErrorKind::InvalidData, error)),
            None => Ok(Report::new(self.files, &lines, &self.runs, top)),
        }
    }
}

impl Report {
    /// Returns the report as text, with the busiest `minutes` of each policy.
    pub fn table(&self, minutes: usize) -> String {
        table(self, minutes)
    }

    /// Returns an SVG document that plots all minutes.
    pub fn svg(&self) -> String {
        plot::svg(self)
    }
}
