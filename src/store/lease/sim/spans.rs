//! What was used in any span, against a burst and a rate.

/// The permits that were used, in the order of time.
#[derive(Debug, Default)]
pub(super) struct Spans(Vec<(u64, u64)>);

impl Spans {
    pub(super) fn use_at(&mut self, time: u64, permits: u64) {
        self.0.push((time, permits));
    }

    /// Returns the most by which a span exceeds `permits_per` permits per `period`, which is what may be used at once.
    pub(super) fn worst(&mut self, permits_per: u64, period: u64) -> f64 {
        self.0.sort_unstable();
        let (mut used, mut least, mut worst) = (0i128, i128::MAX, i128::MIN);
        let (rate, period) = (i128::from(permits_per), i128::from(period));
        for &(time, permits) in &self.0 {
            let refilled = i128::from(time) * rate;
            least = least.min(used * period - refilled);
            used += i128::from(permits);
            worst = worst.max(used * period - refilled - least);
        }
        if self.0.is_empty() { 0.0 } else { worst as f64 / period as f64 }
    }

    /// Returns the most that was used between two multiples of `period`.
    pub(super) fn worst_window(&mut self, period: u64) -> u64 {
        self.0.sort_unstable();
        let windows = self.0.chunk_by(|a, b| a.0 / period == b.0 / period);
        windows.map(|window| window.iter().map(|(_, permits)| permits).sum()).max().unwrap_or(0)
    }
}

#[test]
fn the_worst_span_is_found() {
    let mut spans = Spans::default();
    for (time, permits) in [(0, 5), (10, 5), (10, 3), (1_000, 8)] {
        spans.use_at(time, permits);
    }
    // 13 in 10 ms, in which 1 refills.
    assert!((spans.worst(100, 1_000) - 12.0).abs() < 1e-9);
    assert_eq!(spans.worst_window(1_000), 13);
    assert_eq!(spans.worst_window(10), 8);
}
