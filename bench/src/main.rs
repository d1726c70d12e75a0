use std::process::ExitCode;

fn main() -> ExitCode {
    fleetlimit_bench::main()
}
