//! Replays recorded traffic against policies: what they would have admitted and denied.

mod json_line;
mod line;
mod log_time;
mod pattern;
mod plot;
mod report;
mod run;

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use clap::Args;

use self::pattern::Pattern;
use self::report::Report;
use crate::config::{Config, Source};

/// Replay an access log against the policies of a settings file
#[derive(Args, Debug)]
pub(crate) struct Simulate {
    /// The settings file with the policies (YAML)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Another settings file, to compare with
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// An access log: common, combined, or a JSON object per line. - is standard input
    #[arg(long, value_name = "FILE")]
    log: PathBuf,
    /// Replay only this policy (repeatable) [default: all of the settings and domain files]
    #[arg(long = "policy", value_name = "NAME")]
    policies: Vec<String>,
    /// The key of a request: text with {ip}, {user}, {method}, {path}, {status}, {agent}, {referer},
    /// {1} for the first segment of the path, or {field.name} of JSON
    #[arg(long, default_value = "{ip}", value_name = "PATTERN")]
    key: Pattern,
    /// The cost of a request: a number, {bytes}, or {field.name} of JSON
    #[arg(long, default_value = "1", value_name = "PATTERN")]
    cost: Pattern,
    /// Number of most-denied keys to list
    #[arg(long, default_value_t = 10, value_name = "NUMBER")]
    top: usize,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Write an SVG plot, per minute
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Simulate {
    /// # Errors
    ///
    /// If a file is invalid or cannot be read, or no line of the log can be used.
    pub(crate) fn run(&self) -> Result<(), String> {
        let files = std::iter::once(&self.config).chain(&self.compare);
        let configs = files
            .map(|file| Ok((file.as_path(), load(file)?)))
            .collect::<Result<Vec<(&Path, Config)>, String>>()?;
        let mut runs = Vec::new();
        for (file, config) in &configs {
            runs.extend(run::Run::of(file, config, &self.policies)?);
        }
        let mut counted = run::Lines::default();
        let mut log = BufReader::with_capacity(1 << 20, open(&self.log)?);
        run::replay(&mut log, &self.key, &self.cost, &mut runs, &mut counted)
            .map_err(|error| format!("{}: {error}", self.log.display()))?;
        if counted.used == 0 {
            return Err(format!(
                "{}: none of {} lines could be used: {}",
                self.log.display(),
                counted.all,
                counted.first_error.unwrap_or_else(|| "there are none".to_owned())
            ));
        }
        let report = Report::new(&counted, &runs, self.top);
        if let Some(file) = &self.svg {
            std::fs::write(file, plot::svg(&report))
                .map_err(|error| format!("{}: {error}", file.display()))?;
        }
        if self.json {
            println!("{}", report.json());
        } else {
            print!("{}", report.table());
        }
        Ok(())
    }
}

fn load(file: &Path) -> Result<Config, String> {
    let source = Source { file: Some(file.to_owned()), ..Source::default() };
    source.load().1.map_err(|errors| errors.to_string())
}

fn open(file: &Path) -> Result<Box<dyn Read>, String> {
    if file == Path::new("-") {
        return Ok(Box::new(io::stdin()));
    }
    let file_error = |error: io::Error| format!("{}: {error}", file.display());
    File::open(file).map(|file| Box::new(file) as Box<dyn Read>).map_err(file_error)
}
