//! The task that renews the permits that this process holds, and repeats calls that have failed.
//!
//! It renews them four times in their lifetime, so that one lost call does not matter. While calls fail, it makes
//! them more often, so that a server that is back soon knows what is held.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::table::{HeldKey, Holds};
use crate::store::redis::sole_task::SoleTask;
use crate::timer;

/// The number of renewals in the lifetime of permits.
const RENEWALS: u32 = 4;

/// The number of rounds in the lifetime of permits. There is at least one in `LONGEST_PAUSE`.
const ROUNDS: u32 = 16;
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The pause between two rounds while the server does not know what is held.
const SHORT_PAUSE: Duration = Duration::from_millis(100);

/// The pause is at least so many times as long as the round.
const REST: u32 = 3;

/// The number of keys that are renewed at a time, so that checks in the same queue do not wait long.
const KEYS: usize = 128;

/// The pause until the next keys, while calls are in flight.
const CALL_PAUSE: Duration = Duration::from_millis(2);

impl Holds {
    /// Starts the task if it is not running. It ends when nothing is held.
    #[inline]
    pub(super) fn start_renewal(self: &Arc<Self>) {
        if !self.task.is_running() {
            self.start_task();
        }
    }

    #[cold]
    fn start_task(self: &Arc<Self>) {
        let task: &Arc<SoleTask> = &self.task;
        let longest = self.lifetime / RENEWALS;
        task.repeat(&Arc::downgrade(self), longest, |holds| async move { holds.round().await });
    }

    async fn round(&self) -> ControlFlow<Duration, Duration> {
        let (start, interval) = (Instant::now(), self.lifetime / RENEWALS);
        let due = |key: Arc<HeldKey>| {
            let due = key.state().due(interval)?;
            (due <= start).then_some((due, key))
        };
        let mut keys: Vec<_> = self.all().into_iter().filter_map(due).collect();
        // Those that end first are renewed first.
        keys.sort_by_key(|(due, _)| *due);
        for keys in keys.chunks(KEYS) {
            let calls = keys.iter().filter_map(|(_, key)| Some((key, self.renew(key)?)));
            let calls: Vec<_> = calls.collect();
            // Calls may fail at once.
            tokio::task::yield_now().await;
            let deadline = Instant::now() + self.lifetime / ROUNDS;
            let is_in_flight =
                |(key, call): &(&Arc<HeldKey>, u64)| key.state().in_flight() == Some(*call);
            while calls.iter().any(is_in_flight) && Instant::now() < deadline {
                timer::sleep(CALL_PAUSE).await;
            }
        }
        if self.remove_idle() {
            return ControlFlow::Break(Duration::ZERO);
        }
        let is_unreported = keys.iter().any(|(_, key)| key.state().is_unreported());
        let pause = (self.lifetime / ROUNDS).min(LONGEST_PAUSE);
        let pause =
            if is_unreported { SHORT_PAUSE.max(start.elapsed() * REST).min(pause) } else { pause };
        ControlFlow::Continue(pause)
    }

    /// Waits until the server knows what is held, because the process is about to end.
    pub(crate) async fn settle(&self, deadline: Instant) {
        let is_unknown = |key: &Arc<HeldKey>| {
            let state = key.state();
            state.in_flight().is_some() || state.is_unreported()
        };
        self.all().iter().for_each(|key| key.state().keep_nothing());
        while Instant::now() < deadline {
            let keys = self.all();
            if !keys.iter().any(is_unknown) {
                return;
            }
            keys.iter().for_each(|key| self.send_next(key));
            timer::sleep(CALL_PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::super::PendingHold;
    use super::*;
    use crate::algorithm::Limits;
    use crate::charge::Charge;
    use crate::store::redis::cluster::Topology;
    use crate::store::redis::connection::Connector;
    use crate::store::redis::queue::Queues;
    use crate::store::redis::script::RedisPolicy;
    use crate::{Key, Quota};

    /// A client may choose the keys.
    #[tokio::test]
    async fn keys_of_which_nothing_is_held_are_forgotten_in_an_outage() {
        let topology = Topology::new(Connector::url("redis://127.0.0.1:1").unwrap());
        let queues = Arc::new(Queues::new(topology));
        let holds = Arc::new(Holds::new(&queues, Duration::from_secs(3_600)));
        let limits = Limits::new(&Quota::concurrent(5).into(), 0).unwrap();
        let policy = RedisPolicy::of_limits("policy", limits, Duration::from_millis(100));
        for key in (0..100u32).map(Key::from) {
            let mut hold = None::<PendingHold>;
            let result = poll_fn(|cx| {
                let start = || PendingHold::start(&holds, &policy, &key, &Charge::Same(1), cx);
                hold.get_or_insert_with(start).poll(cx)
            });
            assert!(result.await.is_err());
        }
        let forgotten = async {
            while !holds.all().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        timer::timeout_at(Instant::now() + Duration::from_secs(30), forgotten).await.unwrap();
    }
}
