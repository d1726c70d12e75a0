//! Instruction counts of checks that are counted by a recorder. They are a build of their own, because the
//! features `metrics` and `tracing` would change the rows of `instructions`.

use std::hint::black_box;

use fleetlimit::{Decision, Limiter, MemoryStore, Quota};
use futures_util::FutureExt;
use gungraun::prelude::*;
use metrics_exporter_prometheus::PrometheusBuilder;

const ALLOW_ALL: Quota = Quota::per_second(1).burst(1_000);
/// The warm-up uses the only request.
const DENY: Quota = Quota::per_day(1);

fn check(limiter: &Limiter) -> Decision {
    limiter.check(black_box("203.0.113.7")).now_or_never().unwrap().unwrap()
}

fn warm_limiter(quota: Quota) -> Limiter {
    PrometheusBuilder::new().install_recorder().unwrap();
    let limiter = Limiter::new(MemoryStore::new(), quota).unwrap();
    for _ in 0..3 {
        let _ = check(&limiter);
    }
    limiter
}

// Compare with `memory_check` of `instructions`.
#[library_benchmark]
#[bench::allowed(warm_limiter(ALLOW_ALL))]
#[bench::denied(warm_limiter(DENY))]
fn recorded_memory_check(limiter: Limiter) -> (Limiter, Decision) {
    let decision = check(&limiter);
    (limiter, decision)
}

library_benchmark_group!(name = recorded, benchmarks = [recorded_memory_check]);
main!(library_benchmark_groups = [recorded]);
