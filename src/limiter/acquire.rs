//! Checks that wait for their permits.

use std::fmt;
use std::future::poll_fn;
use std::time::Duration;

use super::Limiter;
use super::check::CheckState;
use super::taken::micros;
use super::waiters::Waiter;
use super::waiting::Wait;
use crate::charge::Patience;
use crate::{Costs, Decision, Error, Key, cooperation};

/// Permits that were taken in advance: see [`Limiter::reserve`].
///
/// If it is dropped before [its time](Self::delay), those behind it in this process move up, and the
/// last permits are given back.
#[must_use = "a reservation that is dropped before its time gives its permits back"]
pub struct Reservation {
    decision: Decision,
    wait: Option<Wait>,
}

impl Reservation {
    /// The decision. If it is a denial, nothing is reserved.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns the time until the permits are there, on Tokio's clock. Zero if they are there now, or if the
    /// check was denied. It gets shorter when a check before it gives up.
    pub fn delay(&self) -> Duration {
        self.wait.as_ref().map_or(Duration::ZERO, |wait| wait.delay())
    }

    /// Waits until the permits are there. A denial is returned at once.
    ///
    /// # Panics
    ///
    /// If it has to wait outside of a Tokio runtime with a time driver.
    pub async fn wait(self) -> Decision {
        let Self { decision, wait } = self;
        if let Some(mut wait) = wait {
            poll_fn(|cx| wait.poll(cx)).await;
        }
        decision
    }

    /// Gives the permits back, as dropping it does, and waits for the store, at most twice the
    /// [`timeout`](crate::LimiterBuilder::timeout). Afterwards another call can take them, in any
    /// process. If other processes have queued behind them, they stay reserved for the next call of
    /// this process that takes as many.
    ///
    /// # Errors
    ///
    /// If the store failed for this reservation or another that was given back with it, whatever the
    /// failure mode. The error is also logged.
    pub async fn cancel(self) -> Result<(), Error> {
        match self.wait {
            Some(mut wait) => wait.cancel().await,
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("decision", self.decision())
            .field("delay", &self.delay())
            .finish()
    }
}

impl Limiter {
    /// Takes one permit, and waits until it is there.
    ///
    /// If the permits of a token bucket are used up, the next one that it gains is taken in
    /// advance, and the future completes when it is there. Later calls of `acquire` wait behind it,
    /// in all processes, and [`check`](Self::check) denies. So a fleet of processes proceeds at the
    /// rate of the quota, after the burst. A denial is returned at once:
    ///
    /// - if the wait would be longer than the quota's [`queue`](crate::Quota::queue) allows, or
    ///   [`max_wait`](crate::LimiterBuilder::max_wait) for a bucket without one;
    /// - if [`max_waiters`](crate::LimiterBuilder::max_waiters) checks of this limiter wait in this
    ///   process, or [`max_waiters_per_key`](crate::LimiterBuilder::max_waiters_per_key) of the key;
    /// - if a quota with another algorithm, or one that [lends](crate::Quota::borrow_up_to) permits,
    ///   denies the check. These have no queue.
    ///
    /// The wait is not part of the [`timeout`](crate::LimiterBuilder::timeout). It counts from the
    /// reply of the store, so it is never too short. If the future is dropped while it waits, the
    /// checks of this process that wait behind it for as many permits move up, and the last permits are
    /// given back. If other processes have queued behind these, the next `acquire` of this process gets
    /// them. If the store fails, the failure
    /// mode applies: [`Local`](crate::FailureMode::Local) waits for the share of this process, and the
    /// others decide at once.
    ///
    /// ```
    /// use fleetlimit::{Limiter, MemoryStore, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10).burst(20))?;
    /// let start = tokio::time::Instant::now();
    /// for _ in 0..50 {
    ///     limiter.acquire("api.example.com").await?.ensure_allowed()?;
    /// }
    /// // 20 at once, and then 10 per second.
    /// assert_eq!(start.elapsed().as_secs(), 3);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`check`](Self::check).
    ///
    /// # Panics
    ///
    /// As for [`Reservation::wait`].
    pub async fn acquire(&self, key: impl Into<Key>) -> Result<Decision, Error> {
        self.acquire_cost(key, 1).await
    }

    /// Waits as [`acquire`](Self::acquire) does, for a number of permits, or for [`Costs`] that differ per
    /// quota.
    ///
    /// # Errors
    ///
    /// As for [`check_cost`](Self::check_cost).
    ///
    /// # Panics
    ///
    /// As for [`Reservation::wait`].
    pub async fn acquire_cost(
        &self,
        key: impl Into<Key>,
        cost: impl Into<Costs>,
    ) -> Result<Decision, Error> {
        Ok(self.reserve(key, cost).await?.wait().await)
    }

    /// Takes permits as [`acquire_cost`](Self::acquire_cost) does, but leaves the waiting to the
    /// caller.
    ///
    /// ```
    /// use std::time::Duration;
    /// use fleetlimit::{Limiter, MemoryStore, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let quota = Quota::per_minute(1).queue(Duration::from_secs(3_600));
    /// let limiter = Limiter::new(MemoryStore::new(), quota)?;
    /// limiter.acquire("reports").await?.ensure_allowed()?;
    ///
    /// let reservation = limiter.reserve("reports", 1).await?;
    /// assert!(reservation.decision().is_allowed());
    /// if reservation.delay() > Duration::from_secs(10) {
    ///     // That is too late. The permit is given back.
    ///     drop(reservation);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`check_cost`](Self::check_cost).
    pub async fn reserve(
        &self,
        key: impl Into<Key>,
        cost: impl Into<Costs>,
    ) -> Result<Reservation, Error> {
        cooperation::cooperate(self.take_or_queue(key.into(), cost.into())).await
    }

    /// Takes permits, or a place in the queue for them.
    async fn take_or_queue(&self, key: Key, costs: Costs) -> Result<Reservation, Error> {
        let blocked = CheckState::blocked(self, &self.revision(), &key);
        if let Some(decision) = blocked {
            return Ok(Reservation { decision, wait: None });
        }
        let patience = Patience(micros(self.inner.max_wait));
        let mut waiter = Waiter::new(self, &key, &costs, patience);
        let (held, state) = {
            let revision = self.revision();
            waiter = match waiter.map(|waiter| Wait::take_over(waiter, || revision.hold())) {
                Some(Ok((decision, wait))) => {
                    return Ok(Reservation { decision, wait: Some(wait) });
                }
                Some(Err(waiter)) => Some(waiter),
                None => None,
            };
            let may_wait = waiter.is_some();
            let state = CheckState::enqueue(self, &revision, &key, &costs, patience, may_wait);
            (revision.hold(), state)
        };
        let mut decision = state.finish(self, &key).await?;
        let wait = waiter.and_then(|waiter| Wait::new(&mut decision, waiter, || held));
        Ok(Reservation { decision, wait })
    }
}
