use std::process::ExitCode;

fn main() -> ExitCode {
    tollgate_bench::main()
}
