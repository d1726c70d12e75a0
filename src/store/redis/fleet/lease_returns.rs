//! Gives back what leases have not used.
//!
//! A task does so in the background for as long as there are leases. It collects those that have ended at short
//! intervals, so that keys share calls. What fails is not sent again, because the call may have been made.

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

/// The pauses while there are leases. Permits are given back so late.
const PAUSE: Duration = Duration::from_millis(20);

/// The pauses of a store that closes while requests are in flight.
const CLOSING_PAUSE: Duration = Duration::from_millis(2);

/// The rounds without a lease after which the task ends. The next check starts another.
const IDLE_ROUNDS: usize = 50;

/// The most calls that give the same permits back, if they come too late. The clock of the server may have stepped.
const ATTEMPTS: usize = 3;

/// The longest that giving back takes. With longer timeouts, another round may begin meanwhile.
const LONGEST_ROUND: Duration = Duration::from_secs(10);

/// The task that gives back.
#[derive(Debug)]
pub(crate) struct LeaseReturns {
    states: Arc<StateCache>,
    task: Arc<SoleTask>,
    /// The latest rounds in which there were no leases.
    idle_rounds: AtomicUsize,
}

impl LeaseReturns {
    pub(crate) fn new(states: &Arc<StateCache>) -> Self {
        Self { states: states.clone(), task: Arc::default(), idle_rounds: AtomicUsize::new(0) }
    }

    /// Gives back from now on, for as long as there are leases.
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

    /// Ends all leases, before the process ends.
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
                // All of it has refilled.
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
                // It came too late, so that nothing was given back.
                Ok(_) => {}
                Err(_) => break,
            }
        }
        metrics.lease_lost(permits);
    }
}
