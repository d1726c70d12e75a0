//! Lines of an access log, which contain what clients have sent.

#![no_main]

use fleetlimit::{Policy, Quota};
use fleetlimit_simulate::Simulation;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|log: &[u8]| {
    for (key, cost) in [("{ip}", "1"), ("{user} {method} {path} {status} {1} {agent}", "{bytes}")] {
        let pattern = |text: &str| text.parse().expect("the pattern is valid");
        let mut simulation = Simulation::new(pattern(key), pattern(cost));
        let policy = Policy::new("api").quota("second", Quota::per_second(2));
        simulation.add("settings.yaml", [policy]).expect("the policy is valid");
        // The error of a log without a single line that can be used.
        let Ok(report) = simulation.run(log, 10) else { continue };
        let _ = (report.table(10), report.svg(), report.json());
    }
});
