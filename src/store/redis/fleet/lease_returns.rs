//! The task that gives back the unused permits of leases.
//!
//! The task runs in the background while there are leases. At short intervals, it collects the leases that have ended,
//! so that keys share calls. A call that fails is not repeated, because Redis may have executed it.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::store::lease::Returned;
use crate::store::redis::queue::Queues;
use crate::store::redis::script::RedisPolicy;
use crate::store::redis::sole_task::SoleTask;
use crate::store::{Op, StateCache};
use crate::timer;

/// The pause between two rounds while there are leases. It delays permits that are given back.
const PAUSE: Duration = Duration::from_millis(20);

/// The pause between two rounds while a store is shut down and requests are in flight.
const CLOSING_PAUSE: Duration = Duration::from_millis(2);

/// The number of rounds without a lease after which the task ends. The next check starts another task.
const IDLE_ROUNDS: usize = 50;

/// The most attempts to give back the same permits. A call can arrive too late, for example because the clock of the
/// server has stepped.
const ATTEMPTS: usize = 3;

/// The longest expected duration of a round. With longer timeouts, the next round may begin before the last one ends.
const LONGEST_ROUND: Duration = Duration::from_secs(10);

/// The task that gives back the unused permits of leases.
#[derive(Debug)]
pub(crate) struct LeaseReturns {
    states: Arc<StateCache>,
    task: Arc<SoleTask>,
    /// The number of latest rounds in which there were no leases.
    idle_rounds: AtomicUsize,
}

impl LeaseReturns {
    pub(crate) fn new(states: &Arc<StateCache>) -> Self {
        Self { states: states.clone(), task: Arc::default(), idle_rounds: AtomicUsize::new(0) }
    }

    /// Starts the task if it is not running. It ends when there are no more leases.
    #[inline]
    pub(crate) fn start(self: &Arc<Self>, queues: &Arc<Queues>) {
        if !self.task.is_running() {
            self.start_task(Arc::downgrade(queues));
        }
    }

    #[cold]
    fn start_task(self: &Arc<Self>, queues: Weak<Queues>) {
        self.task.repeat(&Arc::downgrade(self), LONGEST_ROUND, move |returns| {
            let queues = queues.clone();
            async move {
                let Some(queues) = queues.upgrade() else {
                    return ControlFlow::Break(Duration::ZERO);
                };
                returns.round(&queues).await
            }
        });
    }

    async fn round(&self, queues: &Queues) -> ControlFlow<Duration, Duration> {
        let (returned, has_more) = self.states.leases().collect(self.states.now());
        self.give_back(returned, queues).await;
        if has_more {
            self.idle_rounds.store(0, Ordering::Relaxed);
        } else if self.idle_rounds.fetch_add(1, Ordering::Relaxed) >= IDLE_ROUNDS {
            self.idle_rounds.store(0, Ordering::Relaxed);
            return ControlFlow::Break(Duration::ZERO);
        }
        ControlFlow::Continue(PAUSE)
    }

    /// Ends all leases and gives back their unused permits, because the process is about to end.
    pub(crate) async fn close(&self, queues: &Queues, deadline: Instant) {
        let leases = self.states.leases();
        let give_back = async {
            loop {
                // A reply that arrives afterwards may still lease permits.
                let has_in_flight = leases.has_in_flight();
                self.give_back(leases.close(), queues).await;
                if !has_in_flight {
                    break;
                }
                timer::sleep_until(Instant::now() + CLOSING_PAUSE).await;
            }
        };
        let _ = timer::timeout_at(deadline, give_back).await;
    }

    async fn give_back(&self, returned: Vec<Returned>, queues: &Queues) {
        let mut calls = FuturesUnordered::new();
        for returned in returned {
            calls.push(self.give_back_one(returned, queues));
        }
        while calls.next().await.is_some() {}
    }

    async fn give_back_one(&self, returned: Returned, queues: &Queues) {
        let Returned { key, part, delays, owner } = returned;
        let Ok(policy) = owner.downcast::<RedisPolicy>() else { return };
        let (permits, metrics) = (part.unused(), &policy.metrics);
        for _ in 0..ATTEMPTS {
            let Some(credit) = part.credit(&policy.limits, self.states.now(), delays) else {
                // All permits have refilled.
                return metrics.lease_returned(permits);
            };
            let op = Op::Return(credit.into());
            let result = match queues.add(&policy, policy.timeout, &key, &op, Waker::noop()) {
                Ok((queue, mut check)) => {
                    queue.start();
                    poll_fn(|cx| queues.poll(&policy, &key, &op, &mut check, cx)).await
                }
                Err(error) => Err(error),
            };
            match result {
                Ok(verdict) if verdict.is_allowed() => return metrics.lease_returned(permits),
                // The call arrived too late, so nothing was given back.
                Ok(_) => {}
                Err(_) => break,
            }
        }
        metrics.lease_lost(permits);
    }
}
