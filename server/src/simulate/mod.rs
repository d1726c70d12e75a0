//! Replays recorded traffic against policies: what they would have admitted and denied.

mod busy_keys;
mod json_line;
mod line;
mod log_time;
mod pattern;
mod plot;
mod report;
mod run;
mod table;

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use self::pattern::Pattern;
use self::report::Report;
use self::run::Run;
use crate::config::{Config, Origin, Source};

/// Replay an access log against the policies of a settings file
#[derive(Args, Debug)]
pub(crate) struct Simulate {
    /// The settings file with the policies (YAML)
    #[arg(long, visible_alias = "limits", value_name = "FILE")]
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
        let files: Vec<_> = std::iter::once(&self.config).chain(&self.compare).collect();
        let mut runs = self.runs(&files)?;
        let mut log = BufReader::with_capacity(1 << 16, open(&self.log)?);
        let lines = run::replay(&mut log, &self.key, &self.cost, &mut runs)
            .map_err(|error| format!("{}: {error}", self.log.display()))?;
        if let Some(error) = lines.error() {
            return Err(format!("{}: {error}", self.log.display()));
        }
        if let Some(warning) = &lines.warning {
            eprintln!("warning: {}: {warning}", self.log.display());
        }
        let files = files.into_iter().map(|file| file.display().to_string()).collect();
        let report = Report::new(files, &lines, &runs, self.top);
        if let Some(file) = &self.svg {
            std::fs::write(file, plot::svg(&report))
                .map_err(|error| format!("{}: {error}", file.display()))?;
        }
        let text = match self.json {
            true => report.json() + "\n",
            false => table::table(&report, self.minutes),
        };
        print(&text).map_err(|error| format!("standard output: {error}"))
    }

    /// The chosen policies of all files.
    fn runs(&self, files: &[&PathBuf]) -> Result<Vec<Run>, String> {
        let mut runs = Vec::new();
        for (index, file) in files.iter().enumerate() {
            let of_file = Run::of(index, &load(file)?, &self.policies);
            runs.extend(of_file.map_err(|error| format!("{}: {error}", file.display()))?);
        }
        for name in &self.policies {
            if runs.iter().all(|run| run.policy.name() != name) {
                return Err(format!("--policy: no settings file has a policy `{name}`"));
            }
        }
        if runs.is_empty() { Err("no settings file has a policy".to_owned()) } else { Ok(runs) }
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
    let file_error = |error: io::Error| format!("{}: {error}", file.display());
    File::open(file).map(|file| Box::new(file) as Box<dyn Read>).map_err(file_error)
}
