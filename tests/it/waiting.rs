//! Checks that wait for their permits, and requests that wait in the layer.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use fleetlimit::resolve::Global;
use fleetlimit::{
    Costs, Decision, ErrorKind, FailureMode, Limiter, MemoryStore, Policy, Quota, RateLimitLayer,
    RedisStore, Reservation, Source,
};
use futures_util::future::join_all;
use http::StatusCode;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, advance, sleep, sleep_until, timeout};
use tower::limit::ConcurrencyLimit;
use tower::{BoxError, Layer, Service, ServiceExt, service_fn};

use crate::common::{BOUND, Proxy, Server, wait_until};
use crate::exact::{test_limiter, test_limiter_builder, uncached};

const SECOND: Duration = Duration::from_secs(1);
/// Five per second, and one that arrives now waits for at most two seconds.
const QUEUE: Quota = Quota::per_second(5).queue(Duration::from_secs(2));

fn limiter(quota: Quota) -> Limiter {
    Limiter::new(MemoryStore::new(), quota).unwrap()
}

async fn spawned(limiter: &Limiter, count: usize) -> Vec<(Decision, Duration)> {
    let (start, mut tasks) = (Instant::now(), JoinSet::new());
    for _ in 0..count {
        let limiter = limiter.clone();
        tasks.spawn(async move { (limiter.acquire("key").await.unwrap(), start.elapsed()) });
    }
    tasks.join_all().await
}

#[tokio::test(start_paused = true)]
async fn waiters_proceed_evenly_and_those_that_would_wait_too_long_are_denied_at_once() {
    let results = spawned(&limiter(QUEUE), 20).await;
    let (allowed, denied): (Vec<_>, Vec<_>) =
        results.iter().partition(|(decision, _)| decision.is_allowed());
    let times: Vec<_> = allowed.iter().map(|(_, time)| time.as_millis()).collect();
    assert_eq!(times, (0..=10).map(|n| 200 * n).collect::<Vec<_>>());
    assert_eq!(denied.len(), 9);
    for (decision, time) in denied {
        // A place in the queue is free when the next one proceeds.
        assert_eq!(decision.retry_after(), Some(Duration::from_millis(200)));
        assert_eq!(time, &Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn a_bucket_lets_a_burst_through_and_then_waiters_one_by_one() {
    let results = spawned(&limiter(Quota::per_second(10).burst(20)), 40).await;
    let times: Vec<_> = results.iter().map(|(_, time)| time.as_millis()).collect();
    let expected = (0..40u128).map(|n| 100 * n.saturating_sub(19));
    assert_eq!(times, expected.collect::<Vec<_>>());
    assert!(results.iter().all(|(decision, _)| decision.is_allowed()));
}

#[tokio::test(start_paused = true)]
async fn a_cost_above_the_burst_waits_for_the_rest() {
    let limiter = limiter(QUEUE);
    let start = Instant::now();
    assert!(limiter.acquire_cost("key", 6).await.unwrap().is_allowed());
    assert_eq!(start.elapsed(), SECOND);
    // 2 seconds, and the permit that a full bucket has.
    assert!(limiter.acquire_cost("other", 12).await.unwrap().exceeds_capacity());
    assert!(limiter.check_cost("other", 2).await.unwrap().exceeds_capacity());
}

#[tokio::test(start_paused = true)]
async fn a_check_does_not_wait_and_takes_nothing_in_advance() {
    let limiter = limiter(QUEUE);
    assert!(limiter.check("key").await.unwrap().is_allowed());
    let denied = limiter.check("key").await.unwrap();
    assert_eq!(denied.retry_after(), Some(Duration::from_millis(200)));
}

#[tokio::test(start_paused = true)]
async fn no_more_than_the_configured_number_wait() {
    let store = MemoryStore::new();
    let limiter =
        Limiter::builder(store, QUEUE).max_waiters(2).max_waiters_per_key(2).build().unwrap();
    let take = async || limiter.reserve("key", 1).await.unwrap();
    assert!(take().await.decision().is_allowed(), "one that need not wait is no waiter");
    let (one, two) = (take().await, take().await);
    assert!(two.decision().is_allowed());
    assert!(take().await.decision().is_denied());
    let other = limiter.acquire("other key").await.unwrap();
    assert!(other.is_allowed(), "one that need not wait");
    let _ = one.wait().await;
    let three = take().await;
    assert!(three.decision().is_allowed());
    assert_eq!((two.delay().as_millis(), three.delay().as_millis()), (200, 400));
}

#[tokio::test(start_paused = true)]
async fn one_key_cannot_hold_all_waiters() {
    let quota = Quota::per_minute(1).queue(100 * 60 * SECOND);
    for (limiter, per_key) in [
        (Limiter::builder(MemoryStore::new(), quota).max_waiters(30), 4),
        (Limiter::builder(MemoryStore::new(), quota).max_waiters(30).max_waiters_per_key(7), 7),
        (Limiter::builder(MemoryStore::new(), quota).max_waiters(9).max_waiters_per_key(100), 9),
    ] {
        let limiter = limiter.build().unwrap();
        let mut waiting = Vec::new();
        for n in 0..40 {
            let reservation = limiter.reserve("hostile", 1).await.unwrap();
            assert_eq!(reservation.decision().is_allowed(), n <= per_key, "{n}");
            waiting.push(reservation);
        }
        for n in 0..2 {
            let other = limiter.reserve("other", 1).await.unwrap();
            assert_eq!(other.decision().is_allowed(), n == 0 || per_key < 9);
            waiting.push(other);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_place_of_a_check_that_gives_up_goes_to_those_behind_it() {
    let limiter = limiter(QUEUE);
    let take = async || limiter.reserve("key", 1).await.unwrap();
    let millis = |reservation: &Reservation| reservation.delay().as_millis();
    let [first, second, third] = [take().await, take().await, take().await];
    assert_eq!([millis(&first), millis(&second), millis(&third)], [0, 200, 400]);
    drop(second);
    assert_eq!(millis(&third), 200, "it moves up");
    let fourth = take().await;
    assert_eq!(millis(&fourth), 400, "the last place was free");
    drop(fourth);
    let fifth = take().await;
    assert_eq!(millis(&fifth), 400);
    advance(Duration::from_millis(400)).await;
    drop(fifth);
    assert_eq!(millis(&take().await), 200, "its time had come");
}

#[tokio::test(start_paused = true)]
async fn a_place_that_cannot_be_given_back_goes_to_the_next_caller() {
    let limiter = limiter(Quota::per_second(5).queue(10 * SECOND));
    let take = async |cost| limiter.reserve("key", cost).await.unwrap();
    let millis = |reservation: &Reservation| reservation.delay().as_millis();
    let [_first, second, large] = [take(1).await, take(1).await, take(2).await];
    assert_eq!([millis(&second), millis(&large)], [200, 600]);
    drop(second);
    let third = take(1).await;
    assert_eq!([millis(&third), millis(&large)], [200, 600], "the place of the second");
    assert_eq!(millis(&take(1).await), 800, "there is no other");
    // Nobody takes this place while it is there.
    drop(third);
    advance(Duration::from_millis(200)).await;
    assert_eq!(millis(&take(1).await), 600, "the last place");
}

#[tokio::test(start_paused = true)]
async fn a_caller_after_a_reset_does_not_get_a_place_from_before() {
    let limiter = limiter(Quota::per_second(5).queue(10 * SECOND));
    let take = async |cost| limiter.reserve("key", cost).await.unwrap();
    let [_first, second, _large] = [take(1).await, take(1).await, take(2).await];
    drop(second);
    limiter.reset("key").await.unwrap();
    assert_eq!(take(1).await.delay(), Duration::ZERO);
}

/// The store does not take it back then, as if others had queued behind it.
#[tokio::test(start_paused = true)]
async fn a_place_that_is_given_up_after_a_reset_delays_nobody() {
    let limiter = limiter(Quota::per_second(5).queue(10 * SECOND));
    let take = async || limiter.reserve("key", 1).await.unwrap();
    let [_first, second] = [take().await, take().await];
    assert!(second.delay() > Duration::ZERO);
    limiter.reset("key").await.unwrap();
    drop(second);
    assert_eq!(take().await.delay(), Duration::ZERO);
}

/// A process does not learn of a reset by another one.
#[tokio::test(start_paused = true)]
async fn a_place_from_before_a_reset_by_another_process_gives_nothing_back_and_delays_one_caller() {
    let store = MemoryStore::new();
    let quota = Quota::per_second(5).queue(10 * SECOND);
    let [here, other] = [(); 2].map(|()| Limiter::new(store.clone(), quota).unwrap());
    let take = async |cost| here.reserve("key", cost).await.unwrap();
    let [_first, second, large] = [take(1).await, take(1).await, take(2).await];
    drop(second);
    advance(SECOND / 20).await;
    other.reset("key").await.unwrap();
    let late = take(1).await;
    assert_eq!(late.delay(), SECOND * 3 / 20, "the place of the second");
    assert_eq!(take(1).await.delay(), Duration::ZERO, "the next has what the reset gave");
    drop((late, large));
    let left = other.peek("key").await.unwrap();
    assert_eq!((left.remaining(), left.reset_after()), (0, SECOND / 5));
}

/// A check every `pause`, whose caller gives up after `patience`. Returns the numbers of those that
/// proceed, in this order.
async fn proceeding(
    limiter: &Limiter,
    pause: Duration,
    patience: Duration,
    count: u32,
) -> Vec<u32> {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let start = Instant::now();
    for n in 0..count {
        sleep_until(start + n * pause).await;
        let (limiter, sender) = (limiter.clone(), sender.clone());
        tokio::spawn(async move {
            let decision = timeout(patience, limiter.acquire("key")).await;
            if decision.is_ok_and(|decision| decision.unwrap().is_allowed()) {
                sender.send(n).unwrap();
            }
        });
    }
    drop(sender);
    let mut proceeding = Vec::new();
    while let Some(n) = receiver.recv().await {
        proceeding.push(n);
    }
    proceeding
}

/// Three of four give up.
#[tokio::test(start_paused = true)]
async fn callers_that_give_up_do_not_starve_the_others() {
    let millis = Duration::from_millis;
    let limiter = limiter(Quota::per_second(5).queue(30 * SECOND));
    let served = proceeding(&limiter, millis(50), millis(2_000), 1_200).await;
    assert!(served.len() >= 300, "{} of 300", served.len());
    assert!(served.is_sorted(), "in order of arrival: {served:?}");
}

#[tokio::test]
async fn on_redis_callers_that_give_up_do_not_starve_the_others() {
    let server = Server::start().await;
    let quota = Quota::per_second(25).queue(6 * SECOND);
    let limiter = test_limiter(RedisStore::open(server.url()).unwrap(), quota);
    limiter.peek("warm").await.unwrap().ensure_allowed().unwrap();
    let millis = Duration::from_millis;
    let served = proceeding(&limiter, millis(10), millis(400), 600).await;
    assert!(served.len() >= 135, "{} of 150", served.len());
    assert!(served.is_sorted(), "in order of arrival: {served:?}");
}

/// The layer waits only in queues, but `acquire` for any bucket.
#[tokio::test(start_paused = true)]
async fn a_request_does_not_take_over_a_place_for_which_only_acquire_waits() {
    let policy = Policy::new("test")
        .quota("queue", Quota::per_second(5).queue(10 * SECOND))
        .quota("bucket", Quota::per_minute(1));
    let builder = Limiter::builder(MemoryStore::new(), policy).max_wait(600 * SECOND);
    let limiter = builder.build().unwrap();
    let take = async |cost| limiter.reserve("global", cost).await.unwrap();
    let [_first, second, _behind] = [take(1).await, take(1).await, take(2).await];
    assert_eq!(second.delay(), 60 * SECOND);
    // Its place is kept.
    second.cancel().await.unwrap();
    let service = RateLimitLayer::new(limiter.clone(), Global)
        .layer(service_fn(async |_: Request| Ok::<_, Infallible>(StatusCode::OK.into_response())));
    let start = Instant::now();
    let response = service.oneshot(request()).await.unwrap();
    let result = (response.status(), start.elapsed());
    assert_eq!(result, (StatusCode::TOO_MANY_REQUESTS, Duration::ZERO));
    assert_eq!(take(1).await.delay(), 60 * SECOND, "the place of the second");
}

/// Such as the waker of a task that is dropped with it.
struct DropsReservation(#[expect(dead_code, reason = "it is dropped")] Mutex<Option<Reservation>>);

impl Wake for DropsReservation {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_waker_whose_destructor_gives_up_a_place_of_the_same_key_causes_no_deadlock() {
    let (sender, receiver) = std::sync::mpsc::channel();
    let scenario = async move {
        let limiter = limiter(Quota::per_second(5).queue(10 * SECOND));
        let take = async || limiter.reserve("key", 1).await.unwrap();
        let [_first, second, third] = [take().await, take().await, take().await];
        let drops = Arc::new(DropsReservation(Mutex::new(Some(third))));
        let mut waiting = Box::pin(second.wait());
        let waker = drops.clone().into();
        assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        // The line and the timer have clones, until the time has come.
        drop((drops, waker));
        sleep(SECOND / 5).await;
        let _ = waiting.await;
        sender.send(take().await.delay()).unwrap();
    };
    std::thread::spawn(|| {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().unwrap().block_on(scenario);
    });
    assert_eq!(receiver.recv_timeout(BOUND), Ok(SECOND / 5), "the place of the third");
}

/// The application drops its requests in any order.
#[test]
fn a_clean_shutdown_gives_all_places_back_to_other_processes() {
    let runtime = || tokio::runtime::Runtime::new().unwrap();
    let here = runtime();
    let server = here.block_on(Server::start());
    let quota = Quota::per_day(1).queue(200 * 86_400 * SECOND);
    let open = || {
        let store = RedisStore::open(server.url()).unwrap();
        (store.clone(), uncached(store, quota))
    };
    let process = runtime();
    process.block_on(async {
        let (store, limiter) = open();
        let waiting = join_all((0..91).map(|_| limiter.reserve("key", 1))).await;
        let waiting: Vec<_> = waiting.into_iter().map(Result::unwrap).collect();
        assert!(waiting.iter().all(|waiting| waiting.decision().is_allowed()));
        drop(waiting);
        store.shutdown().await;
    });
    drop(process);
    here.block_on(async {
        let next = open().1.reserve("key", 1).await.unwrap();
        assert!(next.delay() <= 86_400 * SECOND, "{:?}", next.delay());
    });
}

/// The permits of another window would add to what that one allows.
#[tokio::test(start_paused = true)]
async fn a_check_that_moved_up_gives_back_the_permits_of_its_place() {
    let policy = Policy::new("test")
        .quota("queue", Quota::new(1, 200 * SECOND).queue(3_600 * SECOND))
        .quota("window", Quota::new(10, 100 * SECOND).fixed_window());
    let limiter = Limiter::new(MemoryStore::new(), policy).unwrap();
    let service = RateLimitLayer::new(limiter.clone(), Global)
        .cost_by_response(|_| 0)
        .layer(service_fn(async |_: Request| Ok::<_, Infallible>(StatusCode::OK.into_response())));
    let send = || tokio::spawn(service.clone().oneshot(request()));
    let only = |quota, cost| Costs::new(0).with(quota, cost);
    assert!(limiter.acquire("global").await.unwrap().is_allowed());
    advance(30 * SECOND).await;
    let early = send();
    sleep(80 * SECOND).await;
    let late = send();
    sleep(10 * SECOND).await;
    early.abort();
    assert!(early.await.unwrap_err().is_cancelled());
    sleep(10 * SECOND).await;
    assert!(limiter.check_cost("global", only("window", 3)).await.unwrap().is_allowed());
    let response = late.await.unwrap().unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    drop(response);
    let decision = limiter.peek("global").await.unwrap();
    let window = decision.quotas().find(|quota| quota.name() == "window").unwrap();
    assert_eq!(window.remaining(), 7);
}

#[tokio::test]
async fn on_redis_processes_share_the_rate_and_cancelled_waiters_return_their_places() {
    let server = Server::start().await;
    let quota = Quota::per_second(50).queue(Duration::from_secs(20));
    let limiters = [(); 3].map(|()| uncached(RedisStore::open(server.url()).unwrap(), quota));
    let (start, mut tasks) = (Instant::now(), JoinSet::new());
    for n in 0..60 {
        let limiter = limiters[n % 3].clone();
        tasks.spawn(async move {
            assert!(limiter.acquire("key").await.unwrap().is_allowed());
        });
    }
    tasks.join_all().await;
    assert!(start.elapsed() >= SECOND * 59 / 50, "{:?}", start.elapsed());

    let daily = Quota::per_day(1).queue(100 * 86_400 * SECOND);
    let limiter = uncached(RedisStore::open(server.url()).unwrap().key_prefix("daily"), daily);
    let reserve = async || limiter.reserve("key", 1).await.unwrap();
    let (_first, second) = (reserve().await, reserve().await);
    let delay = second.delay();
    assert!(delay > 86_390 * SECOND && delay <= 86_400 * SECOND);
    drop(second);
    wait_until("the place is given back", BOUND, async || {
        limiter.peek("key").await.unwrap().reset_after() <= 86_400 * SECOND
    })
    .await;
    let again = reserve().await;
    assert!(again.decision().is_allowed() && again.delay() <= 86_400 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_quota_without_a_queue_denies_one_that_would_have_to_wait() {
    let policy =
        Policy::new("test").quota("queue", QUEUE).quota("daily", Quota::per_day(2).calendar());
    let limiter = Limiter::new(MemoryStore::new(), policy).unwrap();
    let start = Instant::now();
    for millis in [0, 200] {
        assert!(limiter.acquire("key").await.unwrap().is_allowed());
        assert_eq!(start.elapsed().as_millis(), millis);
    }
    let denied = limiter.acquire("key").await.unwrap();
    let violated: Vec<_> = denied.quotas().filter(|quota| quota.is_violated()).collect();
    assert_eq!((violated.len(), violated[0].name()), (1, "daily"));
    // Nothing was taken from the queue.
    advance(Duration::from_millis(200)).await;
    assert_eq!(limiter.peek("key").await.unwrap().quotas().next().unwrap().remaining(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_wait_gives_back_what_it_took_from_each_quota() {
    let policy = Policy::new("test")
        .quota("queue", QUEUE)
        .quota("window", Quota::per_day(9).fixed_window())
        .quota("sliding", Quota::per_day(9).approximate_sliding_window())
        .quota("interval", Quota::per_day(9).interval_refill())
        .quota("lent", Quota::per_day(9).borrow_up_to(3));
    let limiter = Limiter::new(MemoryStore::new(), policy).unwrap();
    assert!(limiter.acquire("key").await.unwrap().is_allowed());
    let before = limiter.peek("key").await.unwrap();
    let costs = Costs::new(4).with("queue", 1);
    let reservation = limiter.reserve("key", costs).await.unwrap();
    assert!(reservation.decision().is_allowed() && !reservation.delay().is_zero());
    reservation.cancel().await.unwrap();
    assert_eq!(limiter.peek("key").await.unwrap(), before);
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_is_full_again_keeps_nobody_from_leaving_and_gets_nothing_back() {
    let slow = Quota::per_minute(1).queue(600 * SECOND);
    for (other, burst) in
        [(Quota::per_second(10), 10), (Quota::per_second(1).queue(600 * SECOND), 1)]
    {
        let policy = Policy::new("test").quota("slow", slow).quota("other", other);
        let limiter = Limiter::new(MemoryStore::new(), policy).unwrap();
        let reserve = async |costs: Costs| limiter.reserve("key", costs).await.unwrap();
        assert!(reserve(Costs::new(1)).await.delay().is_zero());
        let waiter = reserve(Costs::new(1)).await;
        assert_eq!(waiter.delay(), 60 * SECOND);
        advance(5 * SECOND).await;
        // Others use all permits of the other quota, and do not queue.
        let all = reserve(Costs::new(0).with("other", burst)).await;
        assert!(all.decision().is_allowed() && all.delay().is_zero());
        waiter.cancel().await.unwrap();
        let standing = limiter.peek("key").await.unwrap();
        assert_eq!(standing.quotas().nth(1).unwrap().remaining(), 0);
        assert_eq!(reserve(Costs::new(1)).await.delay(), 55 * SECOND);
    }
}

#[tokio::test]
async fn an_outage_is_decided_at_once_by_the_failure_mode() {
    let store = RedisStore::open("redis://127.0.0.1:1").unwrap();
    let builder = || Limiter::builder(store.clone(), QUEUE);
    let open = builder().failure_mode(FailureMode::Open).build().unwrap();
    for _ in 0..3 {
        let decision = open.acquire("key").await.unwrap();
        assert_eq!(decision.source(), Source::FailureMode);
    }
    let closed = builder().failure_mode(FailureMode::Closed).build().unwrap();
    assert!(closed.acquire("key").await.is_err());
}

fn request() -> Request {
    Request::new(Body::empty())
}

/// Panics if it is called without being ready. A clone is not ready.
struct Strict {
    is_ready: bool,
    calls: Arc<AtomicUsize>,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { is_ready: false, calls: self.calls.clone() }
    }
}

impl Service<Request> for Strict {
    type Response = Response;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called without being ready");
        self.calls.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(StatusCode::OK.into_response()))
    }
}

#[tokio::test(start_paused = true)]
async fn requests_wait_in_the_layer_and_only_a_ready_service_is_called() {
    let calls = Arc::new(AtomicUsize::new(0));
    let strict = Strict { is_ready: false, calls: calls.clone() };
    let service = RateLimitLayer::new(limiter(QUEUE), Global).layer(strict);
    let (start, mut tasks) = (Instant::now(), JoinSet::new());
    for _ in 0..13 {
        let service = service.clone();
        tasks.spawn(async move {
            let response = service.oneshot(request()).await.unwrap();
            (response.status(), response.headers().clone(), start.elapsed())
        });
    }
    sleep(Duration::from_millis(250)).await;
    assert_eq!(calls.load(Ordering::Relaxed), 2, "the others wait");
    let results = tasks.join_all().await;
    let denied: Vec<_> = results.iter().filter(|(status, ..)| *status != StatusCode::OK).collect();
    assert_eq!(denied.len(), 2);
    for (status, headers, time) in denied {
        assert_eq!((*status, time.as_millis()), (StatusCode::TOO_MANY_REQUESTS, 0));
        assert_eq!(headers["retry-after"], "1");
    }
    let times = results.iter().filter(|(status, ..)| *status == StatusCode::OK);
    let times: Vec<_> = times
        .map(|(_, headers, time)| (!headers["ratelimit"].is_empty(), time.as_millis()))
        .collect();
    assert_eq!(times, (0..=10).map(|n| (true, 200 * n)).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn the_next_request_gets_the_place_of_one_that_disconnected() {
    let limiter = limiter(Quota::per_second(5).queue(10 * SECOND));
    let service = RateLimitLayer::new(limiter.clone(), Global)
        .layer(service_fn(async |_: Request| Ok::<_, Infallible>(StatusCode::OK.into_response())));
    let send = || tokio::spawn(service.clone().oneshot(request()));
    let start = Instant::now();
    assert_eq!(send().await.unwrap().unwrap().status(), StatusCode::OK);
    let waiting = send();
    sleep(Duration::from_millis(100)).await;
    // Others have queued behind it.
    let _behind = limiter.reserve("global", 2).await.unwrap();
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    assert_eq!(send().await.unwrap().unwrap().status(), StatusCode::OK);
    assert_eq!(start.elapsed(), Duration::from_millis(200));
}

#[tokio::test(start_paused = true)]
async fn a_waiting_request_holds_no_place_of_an_inner_concurrency_limit() {
    let inner = service_fn(async |_: Request| Ok::<_, BoxError>(StatusCode::OK.into_response()));
    let inner = ConcurrencyLimit::new(inner, 1);
    let service = RateLimitLayer::new(limiter(QUEUE), Global).layer(inner.clone());
    assert_eq!(service.clone().oneshot(request()).await.unwrap().status(), StatusCode::OK);
    let waiting = tokio::spawn(service.oneshot(request()));
    sleep(Duration::from_millis(100)).await;
    let mut other = inner;
    let holder = timeout(SECOND, other.ready()).await.expect("the waiting request holds no place");
    holder.unwrap();
    // Afterwards it waits for the place.
    sleep(SECOND).await;
    assert!(!waiting.is_finished());
    drop(other);
    assert_eq!(waiting.await.unwrap().unwrap().status(), StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_disconnects_while_it_waits_returns_its_place_and_is_not_charged() {
    let limiter = limiter(QUEUE);
    let service = RateLimitLayer::new(limiter.clone(), Global)
        .cost_by_response(|_| 1)
        .cost_without_response(Costs::new(7))
        .layer(service_fn(async |_: Request| Ok::<_, Infallible>(StatusCode::OK.into_response())));
    let _ = service.clone().oneshot(request()).await.unwrap();
    let waiting = tokio::spawn(service.oneshot(request()));
    sleep(Duration::from_millis(100)).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    let next = limiter.reserve("global", 1).await.unwrap();
    assert_eq!(next.delay(), Duration::from_millis(100));
}

#[tokio::test]
async fn a_wait_in_the_layer_is_longer_than_the_timeout_of_the_check() {
    let server = Server::start().await;
    let quota = Quota::per_second(2).queue(SECOND);
    let store = RedisStore::open(server.url()).unwrap();
    let builder = Limiter::builder(store, quota).failure_mode(FailureMode::Closed);
    let limiter = builder.timeout(Duration::from_millis(300)).build().unwrap();
    limiter.peek("warm").await.unwrap().ensure_allowed().unwrap();
    let service = RateLimitLayer::new(limiter, Global)
        .layer(service_fn(async |_: Request| Ok::<_, Infallible>(StatusCode::OK.into_response())));
    let start = Instant::now();
    for _ in 0..3 {
        let response = service.clone().oneshot(request()).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
    }
    assert!(start.elapsed() >= SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_cost_above_the_burst_is_not_too_large_when_too_many_wait() {
    let limiter = Limiter::builder(MemoryStore::new(), QUEUE).max_waiters(0).build().unwrap();
    let denied = limiter.acquire_cost("key", 6).await.unwrap();
    assert!(denied.is_denied() && !denied.exceeds_capacity());
    assert!(denied.retry_after().is_some_and(|wait| !wait.is_zero()));
    assert!(limiter.acquire_cost("key", 12).await.unwrap().exceeds_capacity());
    assert!(limiter.acquire("key").await.unwrap().is_allowed());
    let denied = limiter.acquire_cost("key", 6).await.unwrap();
    assert_eq!(denied.retry_after(), Some(Duration::from_millis(200)));
}

/// A queue on Redis behind a proxy. It lets one through per day, and that of today has gone.
struct DailyQueue {
    limiter: Limiter,
    /// Past the proxy.
    direct: Limiter,
    proxy: Proxy,
    _server: Server,
}

impl DailyQueue {
    async fn start() -> Self {
        let server = Server::start().await;
        let proxy = Proxy::start(server.port()).await;
        let daily = Quota::per_day(1).queue(100 * 86_400 * SECOND);
        let limiter = uncached(RedisStore::open(proxy.url()).unwrap(), daily);
        assert!(limiter.acquire("key").await.unwrap().is_allowed());
        let direct = uncached(RedisStore::open(server.url()).unwrap(), daily);
        Self { limiter, direct, proxy, _server: server }
    }

    async fn debt(&self) -> Duration {
        self.direct.peek("key").await.unwrap().reset_after()
    }
}

#[tokio::test]
async fn a_place_whose_caller_gave_up_before_the_reply_is_given_back() {
    let queue = DailyQueue::start().await;
    let (limiter, proxy) = (&queue.limiter, &queue.proxy);
    let debt = async || queue.debt().await;
    assert!(debt().await <= 86_400 * SECOND);
    // Not so long that the connection counts as silent.
    proxy.delay(Duration::from_millis(400));
    let given_up = timeout(Duration::from_millis(30), limiter.acquire("key")).await;
    assert!(given_up.is_err());
    // Before the reply has arrived.
    wait_until("it is taken", BOUND, async || debt().await > 86_400 * SECOND).await;
    wait_until("it is given back", BOUND, async || debt().await <= 86_400 * SECOND).await;
}

/// Another task may be giving places back already.
#[tokio::test]
async fn a_cancelled_place_is_given_back_when_cancel_returns_while_others_are_given_back() {
    let queue = DailyQueue::start().await;
    let (limiter, proxy) = (&queue.limiter, &queue.proxy);
    let reserve = async || limiter.reserve("key", 1).await.unwrap();
    let [second, third, fourth] = [reserve().await, reserve().await, reserve().await];
    assert!(queue.debt().await > 3 * 86_400 * SECOND);
    proxy.delay(Duration::from_millis(300));
    drop(fourth);
    // Its call is in flight, so the next place is part of another.
    let given_back = async || queue.debt().await <= 3 * 86_400 * SECOND;
    wait_until("one is given back", BOUND, given_back).await;
    drop(third);
    second.cancel().await.unwrap();
    assert!(queue.debt().await <= 86_400 * SECOND, "{:?}", queue.debt().await);
}

/// Of a process that ends, for example.
#[test]
fn a_place_that_nothing_can_give_back_is_an_error_of_cancel() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let queue = runtime.block_on(DailyQueue::start());
    let waiting = runtime.block_on(queue.limiter.reserve("key", 1)).unwrap();
    assert!(!waiting.delay().is_zero());
    let mut cancelled = Box::pin(waiting.cancel());
    let polled = cancelled.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Err(error)) = polled else { panic!("{polled:?}") };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_place_whose_caller_is_gone_before_it_reads_the_reply_is_given_back() {
    let queue = DailyQueue::start().await;
    let (limiter, proxy) = (&queue.limiter, &queue.proxy);
    let debt = async || queue.debt().await;
    proxy.delay(Duration::from_millis(50));
    // A check alone would read its reply itself.
    let other = limiter.clone();
    let other = tokio::spawn(async move { other.peek("other").await.map(drop) });
    tokio::task::yield_now().await;
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let mut caller = Box::pin(limiter.acquire("key"));
    let waker = flag.clone().into();
    assert!(caller.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    wait_until("its verdict is there", BOUND, async || flag.0.load(Ordering::Relaxed)).await;
    assert!(debt().await > 86_400 * SECOND);
    drop(caller);
    wait_until("it is given back", BOUND, async || debt().await <= 86_400 * SECOND).await;
    other.await.unwrap().unwrap();
}

#[tokio::test]
async fn places_that_are_given_up_together_are_all_given_back() {
    let queue = DailyQueue::start().await;
    let (limiter, proxy) = (&queue.limiter, &queue.proxy);
    let debt = async || queue.debt().await;
    proxy.delay(Duration::from_millis(400));
    // In one batch, because another check is in flight.
    let other = limiter.clone();
    let other = tokio::spawn(async move { other.peek("other").await.map(drop) });
    tokio::task::yield_now().await;
    let callers = join_all((0..5).map(|_| limiter.acquire("key")));
    assert!(timeout(Duration::from_millis(30), callers).await.is_err());
    wait_until("all are taken", BOUND, async || debt().await > 5 * 86_400 * SECOND).await;
    wait_until("all are given back", BOUND, async || debt().await <= 86_400 * SECOND).await;
    other.await.unwrap().unwrap();
}

/// A service that is never ready.
#[derive(Clone)]
struct NeverReady;

impl Service<Request> for NeverReady {
    type Response = Response;
    type Error = Infallible;
    type Future = std::future::Ready<Result<Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Pending
    }

    fn call(&mut self, _: Request) -> Self::Future {
        unreachable!("it is not ready")
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_turn_has_come_is_charged_as_one_without_a_response() {
    let limiter = limiter(Quota::per_day(2).queue(2 * 86_400 * SECOND));
    let layer = RateLimitLayer::new(limiter.clone(), Global)
        .cost_by_response(|_| 1)
        .cost_without_response(Costs::new(3));
    let _ = limiter.acquire("global").await.unwrap();
    // Called without being ready, which a test may do.
    let waiting = tokio::spawn(layer.layer(NeverReady).call(request()));
    sleep(43_200 * SECOND + SECOND).await;
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    // 1 of it is there again after half a day.
    let next = limiter.reserve("global", 1).await.unwrap();
    assert_eq!(next.delay(), 3 * 43_200 * SECOND - SECOND);
}

/// The script decides this, and the process learns the result.
#[tokio::test]
async fn on_redis_a_place_that_others_queued_behind_goes_to_the_next_caller_of_the_process() {
    const LONGEST: Duration = Duration::from_secs(100 * 86_400);
    let server = Server::start().await;
    // The value of a bucket without a queue has the short form.
    for (quota, max_wait, prefix) in [
        (Quota::per_day(1).queue(LONGEST), SECOND, "queue"),
        (Quota::per_day(1), LONGEST, "bucket"),
    ] {
        let [limiter, other] = [(); 2].map(|()| {
            let store = RedisStore::open(server.url()).unwrap().key_prefix(prefix);
            let builder = test_limiter_builder(store, quota).max_wait(max_wait);
            builder.cache_denials(Duration::ZERO).build().unwrap()
        });
        let reserve = async |limiter: &Limiter| limiter.reserve("key", 1).await.unwrap();
        let days = |reservation: &Reservation| reservation.delay().as_secs().div_ceil(86_400);
        let (first, second) = (reserve(&limiter).await, reserve(&limiter).await);
        let third = reserve(&other).await;
        assert_eq!([days(&first), days(&second), days(&third)], [0, 1, 2], "{quota}");
        second.cancel().await.unwrap();
        let calls = server.command_stats().await;
        let fourth = reserve(&limiter).await;
        assert_eq!((days(&fourth), days(&third)), (1, 2), "{quota}: the place of the second");
        assert_eq!(server.command_stats().await, calls, "the place is known in the process");
        let fifth = reserve(&other).await;
        assert_eq!(days(&fifth), 3, "{quota}");
        fifth.cancel().await.unwrap();
        assert_eq!(days(&reserve(&limiter).await), 3, "{quota}: the last place is free again");
    }
}
