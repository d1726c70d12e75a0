//! The command `simulate`: the policies of settings files, replayed by `fleetlimit-simulate`.

use std::collections::HashSet;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::iter;
use std::path::{Path, PathBuf};

use clap::Args;
use fleetlimit::Policy;
use fleetlimit_simulate::{Pattern, Simulation};

use crate::config::{Config, Origin, Source};
use crate::holds;

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
    /// Number of keys to list: those with the most requests, and those denied most
    #[arg(long, default_value_t = 10, value_name = "NUMBER")]
    top: usize,
    /// Number of minutes to list in the table: those with the most requests
    #[arg(long, default_value_t = 10, value_name = "NUMBER")]
    minutes: usize,
    /// Print JSON, with all minutes, instead of a table
    #[arg(long)]
    json: bool,
    /// Write an SVG plot of all minutes
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

impl Simulate {
    /// # Errors
    ///
    /// If a file is invalid or cannot be read, or no line of the log can be used.
    pub(crate) fn run(&self) -> Result<(), String> {
        let simulation = self.simulation()?;
        let log = BufReader::with_capacity(1 << 16, open(&self.log)?);
        let report = simulation.run(log, self.top).map_err(|error| in_file(&self.log, error))?;
        if let Some(warning) = report.warning() {
            eprintln!("warning: {}", in_file(&self.log, warning));
        }
        if let Some(file) = &self.svg {
            std::fs::write(file, report.svg()).map_err(|error| in_file(file, error))?;
        }
        let text = match self.json {
            true => report.json() + "\n",
            false => report.table(self.minutes),
        };
        print(&text).map_err(|error| format!("standard output: {error}"))
    }

    /// The chosen policies of all files.
    fn simulation(&self) -> Result<Simulation, String> {
        let mut simulation = Simulation::new(self.key.clone(), self.cost.clone());
        let mut found = HashSet::new();
        for file in iter::once(&self.config).chain(&self.compare) {
            let policies = load(file)?.policies;
            let chosen = policies.iter().filter(|policy| self.is_chosen(policy)).cloned();
            let (held, chosen): (Vec<_>, Vec<_>) = chosen.partition(holds::are_in);
            if let Some(policy) = held.first() {
                let name = policy.name();
                let reason =
                    "limits requests in flight, but a log does not say when a request has ended";
                if !self.policies.is_empty() {
                    return Err(format!("--policy: `{name}` {reason}"));
                }
                eprintln!("warning: {}", in_file(file, format!("left out: `{name}` {reason}")));
            }
            found.extend(chosen.iter().map(|policy| policy.name().to_owned()));
            let added = simulation.add(file.display().to_string(), chosen);
            added.map_err(|error| in_file(file, error))?;
        }
        if let Some(missing) = self.policies.iter().find(|name| !found.contains(*name)) {
            return Err(format!("--policy: no settings file has a policy `{missing}`"));
        }
        if found.is_empty() {
            Err("no settings file has a policy".to_owned())
        } else {
            Ok(simulation)
        }
    }

    fn is_chosen(&self, policy: &Policy) -> bool {
        self.policies.is_empty() || self.policies.iter().any(|name| name == policy.name())
    }
}

/// A reader such as `head` closes the pipe when it has read enough.
fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

fn load(file: &Path) -> Result<Config, String> {
    let source = Source { origin: Origin::File(file.to_owned()), ..Source::default() };
    source.load_limits().map_err(|errors| errors.to_string())
}

fn open(file: &Path) -> Result<Box<dyn Read>, String> {
    if file == Path::new("-") {
        return Ok(Box::new(io::stdin()));
    }
    let opened = File::open(file).map_err(|error| in_file(file, error))?;
    Ok(Box::new(opened))
}

fn in_file(file: &Path, error: impl Display) -> String {
    format!("{}: {error}", file.display())
}
