//! Log lines per second of `fleetlimit-server simulate`, with one token bucket policy, against programs
//! that only read the lines. `make bench-simulate` runs it. It fails if a line takes more processor time
//! than `AT_MOST` times that of splitting one of the combined format at spaces, in the same rounds.
//!
//! Each subject is a process of its own with a single thread, so its processor time is that of one core.

use std::error::Error;
use std::fs::File;
use std::hint::black_box;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const LINES: u64 = 2_000_000;
const KEYS: u64 = 100_000;
const LINES_PER_SECOND: u64 = 300;
const ROUNDS: usize = 5;
/// For the first two subjects. Where splitting makes 3.5 million lines per second, that is at least a million.
const AT_MOST: [f64; 2] = [3.0, 3.5];
const SPLIT: &str = "split at spaces, combined";
const SETTINGS: &str = "policies: { api: { second: 2/s burst 5 } }";

fn main() -> Result<ExitCode> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    if let [command, log] = args.as_slice()
        && command == "split"
    {
        split(Path::new(log))?;
        return Ok(ExitCode::SUCCESS);
    }
    let directory = tempfile::tempdir()?;
    let path = |name| directory.path().join(name);
    let (settings, combined, json) = (path("s.yaml"), path("combined.log"), path("json.log"));
    std::fs::write(&settings, SETTINGS)?;
    write_log(&combined, combined_line)?;
    write_log(&json, json_line)?;

    let this = std::env::current_exe()?;
    let simulate = |log: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fleetlimit-server"));
        command.arg("simulate").arg("--config").arg(&settings).arg("--log").arg(log);
        command
    };
    let with = |program: &Path, arg: &str| {
        let mut command = Command::new(program);
        command.arg(arg).arg(&combined);
        command
    };
    let mut subjects = [
        ("simulate, combined", simulate(&combined)),
        ("simulate, JSON", simulate(&json)),
        (SPLIT, with(&this, "split")),
        ("wc -l, combined", with(Path::new("wc"), "-l")),
    ];
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let round = subjects.iter_mut().map(|(_, command)| measure(command));
        rounds.push(round.collect::<Result<Vec<_>>>()?);
    }
    let median = |value: &dyn Fn(&[Measured]) -> f64| {
        let mut values: Vec<_> = rounds.iter().map(|round| value(round)).collect();
        values.sort_by(f64::total_cmp);
        values[ROUNDS / 2]
    };
    let split = subjects.iter().position(|(name, _)| *name == SPLIT).ok_or("nothing is split")?;
    let relative = |index: usize| {
        median(&|round| round[index].cpu.as_secs_f64() / round[split].cpu.as_secs_f64())
    };
    println!("| {LINES} lines | lines/s | lines/s of CPU time | CPU time, relative to splitting |");
    println!("|---|--:|--:|--:|");
    let per_second = |time: Duration| LINES as f64 / time.as_secs_f64();
    for (index, (name, _)) in subjects.iter().enumerate() {
        println!(
            "| {name} | {:.0} | {:.0} | {:.2} |",
            median(&|round| per_second(round[index].elapsed)),
            median(&|round| per_second(round[index].cpu)),
            relative(index),
        );
    }
    let mut exit_code = ExitCode::SUCCESS;
    for (index, (at_most, (name, _))) in AT_MOST.iter().zip(&subjects).enumerate() {
        let relative = relative(index);
        if relative > *at_most {
            println!(
                "{name}: {relative:.2} times the CPU time of splitting is more than {at_most}"
            );
            exit_code = ExitCode::FAILURE;
        }
    }
    Ok(exit_code)
}

/// The least that a program does with the fields of a line.
fn split(log: &Path) -> Result<()> {
    let mut log = BufReader::with_capacity(1 << 20, File::open(log)?);
    let mut line = String::new();
    while log.read_line(&mut line)? > 0 {
        black_box(line.split(' ').map(black_box).count());
        line.clear();
    }
    Ok(())
}

struct Measured {
    elapsed: Duration,
    cpu: Duration,
}

fn measure(command: &mut Command) -> Result<Measured> {
    let (start, before) = (Instant::now(), children_cpu()?);
    let status = command.stdout(Stdio::null()).status()?;
    if !status.success() {
        return Err(format!("{command:?}: {status}").into());
    }
    // Of a program that is faster than that, too.
    let tick = Duration::from_millis(10);
    Ok(Measured { elapsed: start.elapsed(), cpu: (children_cpu()? - before).max(tick) })
}

/// The processor time of the processes that have ended. The kernel counts in hundredths of a second.
fn children_cpu() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name of the program, in parentheses, may have spaces.
    let fields = stat.rsplit(')').next().unwrap_or_default().split(' ');
    let ticks: std::result::Result<u32, _> = fields.skip(14).take(2).map(str::parse::<u32>).sum();
    Ok(Duration::from_millis(10) * ticks?)
}

/// From 2026-01-01, with the same keys in each run.
fn write_log(file: &Path, line: fn(&mut BufWriter<File>, u64, u64) -> Result<()>) -> Result<()> {
    let mut file = BufWriter::new(File::create(file)?);
    let mut state = 1_u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    for n in 0..LINES {
        // Low keys have more requests than high ones.
        let most = 1 + random(KEYS);
        let key = random(most);
        line(&mut file, n / LINES_PER_SECOND, key)?;
    }
    Ok(file.flush()?)
}

fn address(key: u64) -> String {
    format!("10.{}.{}.{}", key >> 16, key >> 8 & 255, key & 255)
}

fn combined_line(file: &mut BufWriter<File>, second: u64, key: u64) -> Result<()> {
    let (hour, minute, second, ip) = (second / 3_600, second / 60 % 60, second % 60, address(key));
    writeln!(
        file,
        "{ip} - - [01/Jan/2026:{hour:02}:{minute:02}:{second:02} +0000] \"GET /v1/items/{key} \
         HTTP/1.1\" 200 5316 \"https://example.com/\" \"Mozilla/5.0 (X11; Linux x86_64) \
         AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Safari/537.36\""
    )?;
    Ok(())
}

fn json_line(file: &mut BufWriter<File>, second: u64, key: u64) -> Result<()> {
    let (time, ip) = (1_767_225_600 + second, address(key));
    writeln!(
        file,
        "{{\"ts\":{time}.25,\"remote_ip\":\"{ip}\",\"method\":\"GET\",\"uri\":\"/v1/items/{key}\",\
         \"status\":200,\"size\":5316}}"
    )?;
    Ok(())
}
