//! The window of a queue: how much may be in flight, and which checks would be answered too late. It does no
//! I/O and reads no clock.
//!
//! Two batches may always be in flight. Another one starts only if the window has room for half of its keys,
//! and if it is full or some time has passed since the last start (`spacing`). Small batches take the server
//! longer per check. So while batches wait at the server, the spacing includes half of that wait: without it,
//! queues that shared a server at 94% of its capacity kept it busy with small batches in some runs of the
//! simulation, and lost up to 6% of their checks.
//!
//! The window follows from Little's law. If the reply to a batch took `t`, and `n` was in flight when it was
//! sent, the server completes at least `n` per `t`. So `n × T / t` may be in flight if a reply should take at
//! most `T` (`RoundTrip::longest_useful`). More would only wait at the server, where the calls of other
//! processes wait too. For `n` the formula uses a little more: a constant, so that a queue with little in
//! flight grows faster than one with much, and a tenth, because round trips vary, and those that happen to be
//! long kept windows small over long distances. A window that grew and shrank in steps was always a round
//! trip late, and alternated between an idle server and late replies.
//!
//! A late reply lowers the window, but only a second one in a row lowers it to less than two of the largest
//! batches: the first may have been read late by a blocked worker. A reply in time raises it only if the one
//! before was in time, too. Otherwise queues that share a server, and so see the same delay, would all grow
//! at the first short round trip, and be late together again.
//!
//! The window counts keys, and `CALL` for each batch, because the server's time goes into these. When it
//! counted batches, those of several queues were small while replies were fast, so the windows grew. Then
//! batches filled up, and the same windows were many times the work: in the worst simulated runs a server at
//! twice its capacity decided three quarters of what it could. A window of less than two of the largest
//! batches makes batches smaller, not fewer, so that one is on the network while the server works on the
//! other. A batch that is about to be sent counts as full, because the checks that would be late are left out
//! only then. → `queue/sim`, `make bench-delay`

use std::time::{Duration, Instant};

use super::batch::Batch;
use super::round_trip::RoundTrip;
use crate::store::redis::connection::Silence;

/// The number of batches that may always be in flight: one is on the network while the server works on the
/// other. More would only make batches smaller, unless they are full.
const ANY_SIZE: usize = 2;

/// The most batches in flight.
const MOST: usize = 64;

/// The load of a call without keys: the server decides about this number of keys in the time that such a
/// call takes. The load of a batch is the number of its keys, and this.
const CALL: usize = 8;

/// The load of the largest batch.
const LARGEST: usize = Batch::MAX_KEYS + CALL;

/// The load of a full batch in the smallest window.
const SMALLEST: usize = 16 + CALL;

/// The smallest window.
const LEAST: usize = ANY_SIZE * SMALLEST;

/// The most that is in flight in the smallest window. The last batch may exceed it by half of its keys.
const DRAINED: usize = LEAST + SMALLEST / 2;

/// The window of a queue without replies.
const INITIAL: usize = 16 * LARGEST;

/// The load by which a window grows while round trips are as long as they should be. A queue with little in flight
/// grows faster than one with much, so queues that share a server tend to equal shares.
const GROWTH: usize = 24;

/// The divisor of the load in flight by which a window grows in addition, because round trips vary: otherwise those that
/// happen to be long would keep the window small.
const GROWTH_DIVISOR: usize = 10;

/// While [`ANY_SIZE`] or more are in flight, a batch that is not full starts this long after the
/// last one, even if no reply has arrived.
const SPACING: Duration = Duration::from_millis(5);

/// The round trip from which on waiting for another batch to return would take noticeably long.
const LONG_ROUND_TRIP: Duration = Duration::from_millis(4);

/// The number of batches that are not full and start per round trip, if it is long and nothing waits at
/// the server.
const STARTS_PER_ROUND_TRIP: u32 = 16;

/// The divisor of the timeout for checks that are always sent, however slow the replies were: those that
/// have waited for less.
const ALWAYS_SENT_DIVISOR: u32 = 32;

/// The load of a queue that is in flight, and its limit.
#[derive(Debug)]
pub(super) struct InFlightWindow {
    timeout: Duration,
    /// The number of batches in flight or about to be sent, without a lone call.
    in_flight: usize,
    /// The load in flight: keys, and [`CALL`] for each batch.
    load: usize,
    /// True if a lone call is in flight. It depends on a check that may not be polled, so it takes no place from others, and hardly
    /// any room.
    has_lone_call: bool,
    /// The load that should not be exceeded.
    limit: usize,
    silence: Silence,
    last_start: Option<Instant>,
    /// The time before which a batch that is not full does not start while [`ANY_SIZE`] or more are in
    /// flight. It settles most cases without the arithmetic.
    not_before: Option<Instant>,
    round_trip: Option<RoundTrip>,
    /// The time at which the newest connection was made that has been used.
    connected: Option<Instant>,
    /// The time at which the last reply was read.
    last_reply: Option<Instant>,
    /// The time at which the latest batch was sent whose reply has been read.
    latest_replied: Option<Instant>,
    /// The load in flight at that time.
    latest_load: usize,
    /// True if all checks of a batch were given up, and no reply has arrived since.
    has_given_up: bool,
}

/// A batch that was sent, or a lone call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentBatch {
    at: Instant,
    load: usize,
    /// The load in flight then, including its own.
    in_flight: usize,
    /// True if hardly anything else was in flight.
    is_drained: bool,
}

impl SentBatch {
    pub(super) fn at(&self) -> Instant {
        self.at
    }

    pub(super) fn elapsed(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.at)
    }
}

impl InFlightWindow {
    /// The window of a queue whose checks have this timeout.
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            in_flight: 0,
            load: 0,
            has_lone_call: false,
            limit: INITIAL,
            silence: Silence::default(),
            last_start: None,
            not_before: None,
            round_trip: None,
            connected: None,
            last_reply: None,
            latest_replied: None,
            latest_load: 0,
            has_given_up: false,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.all_in_flight() == 0
    }

    pub(super) fn all_in_flight(&self) -> usize {
        self.in_flight + usize::from(self.has_lone_call)
    }

    #[cfg(test)]
    pub(super) fn load(&self) -> usize {
        self.load
    }

    /// Returns the most keys that a batch may have.
    pub(super) fn room(&self) -> usize {
        (self.limit / ANY_SIZE).saturating_sub(CALL).min(Batch::MAX_KEYS)
    }

    /// Returns true if another batch of this number of keys, or fewer, may start. `is_full` is true if it
    /// has no room for more.
    pub(super) fn may_start(&self, now: Instant, keys: usize, is_full: bool) -> bool {
        if self.in_flight < ANY_SIZE {
            return true;
        }
        if !is_full && self.not_before.is_some_and(|earliest| now < earliest) {
            return false;
        }
        let has_passed = |time| self.last_start.is_none_or(|start| start + time <= now);
        if has_passed(self.timeout) {
            // Those in flight may be held up by blocked workers.
            return self.in_flight < MOST;
        }
        self.has_room(keys) && !self.is_silent(now) && (is_full || has_passed(self.spacing()))
    }

    /// Returns the earliest result of [`next_start`](Self::next_start), if nothing changes.
    pub(super) fn not_before(&self) -> Option<Instant> {
        self.not_before
    }

    /// Returns the time at which a batch of this number of keys may start, even if it is not full and none
    /// returns.
    pub(super) fn next_start(&self, now: Instant, keys: usize) -> Option<Instant> {
        let is_stuck = self.is_silent(now) || !self.has_room(keys);
        let spacing = if is_stuck { self.timeout } else { self.spacing() };
        self.last_start.map(|start| start + spacing)
    }

    /// Reserves a place in the window for a batch that is about to be sent.
    pub(super) fn reserve(&mut self, now: Instant) {
        self.in_flight += 1;
        self.started(now);
    }

    /// Returns a place.
    pub(super) fn release(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Records that a lone call starts, or ends.
    pub(super) fn set_lone_call(&mut self, is_in_flight: bool) {
        self.has_lone_call = is_in_flight;
    }

    /// Records that this number of keys of a batch, or of a lone call, are sent on a connection that was made
    /// at `connected`.
    pub(super) fn sent(&mut self, keys: usize, connected: Instant, now: Instant) -> SentBatch {
        if self.connected.is_none_or(|newest| newest < connected) {
            // It may lead elsewhere, or on another way.
            self.connected = Some(connected);
            self.round_trip = None;
        }
        self.started(now);
        self.silence.sent(now);
        let load = keys + CALL;
        self.load += load;
        SentBatch { at: now, load, in_flight: self.load, is_drained: self.is_drained() }
    }

    /// Records that a reply has arrived. Returns true if it was late, as far as the server is concerned.
    pub(super) fn replied(&mut self, sent: SentBatch, now: Instant) -> bool {
        self.silence.received(now);
        self.last_reply = Some(now);
        self.load = self.load.saturating_sub(sent.load);
        self.has_given_up = false;
        if self.latest_replied.is_some_and(|latest| sent.at < latest) {
            // Replies arrive in order, so this one was only read late, by a worker that was
            // blocked.
            return false;
        }
        self.latest_replied = Some(sent.at);
        self.latest_load = sent.in_flight;
        let taken = now.saturating_duration_since(sent.at);
        let round_trip = self.round_trip.get_or_insert(RoundTrip::new(taken));
        round_trip.add(sent.is_drained, taken, self.timeout, now);
        // Without a wait at the server and without growth, a window keeps a busy server just busy. One that
        // only seems to be too large shrinks to the smallest.
        let (most, longest) = match round_trip.is_outdated() {
            true => (sent.in_flight, round_trip.shortest()),
            false => {
                let grown = sent.in_flight + sent.in_flight / GROWTH_DIVISOR + GROWTH;
                (grown, round_trip.longest_useful(self.timeout))
            }
        };
        let [_, before] = round_trip.latest();
        if let Some(start) = self.last_start {
            self.started(start);
        }
        let limit = most_in_flight(most, taken, longest);
        self.limit = match (taken <= longest, before <= longest) {
            (true, true) => self.limit.max(limit),
            // Queues that share a server see the same delay. If all of them grew with the first short
            // round trip, their calls would be late together again.
            (true, false) => self.limit,
            // It may have been read late by a worker that was blocked, so the batches stay large.
            (false, true) => self.limit.min(limit.max(ANY_SIZE * LARGEST)),
            (false, false) => self.limit.min(limit),
        };
        taken > self.timeout
    }

    /// Returns true if a batch of this number of keys may be added to the load. Half of them may exceed the limit, so
    /// that large batches reach it on average. A place whose batch has not been sent yet counts as a full
    /// one.
    fn has_room(&self, keys: usize) -> bool {
        let about_to_start = self.in_flight.saturating_sub(self.silence.outstanding());
        let starting = about_to_start * (self.room() + CALL) + keys / 2 + CALL;
        self.in_flight < MOST && self.load + starting <= self.limit
    }

    fn started(&mut self, at: Instant) {
        self.last_start = Some(at);
        self.not_before = Some(at + self.spacing().min(self.timeout));
    }

    /// Records that a batch was sent whose reply will not be noticed.
    pub(super) fn abandoned(&mut self, sent: SentBatch) {
        self.silence.abandoned();
        self.load = self.load.saturating_sub(sent.load);
    }

    /// Records that a batch was not sent, because its replies would have been too late, or nobody waits for
    /// them.
    pub(super) fn given_up(&mut self) {
        self.has_given_up = true;
    }

    /// Returns the time between batches that are not full. Small batches take the server longer per check. So while batches wait at the server, one that is
    /// not full waits half as long for more checks, which leaves [`ANY_SIZE`] at the server. This is
    /// limited to a small part of the timeout.
    fn spacing(&self) -> Duration {
        match &self.round_trip {
            Some(round_trip) if round_trip.shortest() >= LONG_ROUND_TRIP => {
                let longest = round_trip.spare(self.timeout) / 4;
                let filling = (round_trip.queueing() / ANY_SIZE as u32).min(longest);
                round_trip.shortest() / STARTS_PER_ROUND_TRIP + filling
            }
            _ => SPACING,
        }
    }

    /// Returns the time that a batch that is sent now is expected to take. A third of the time that remains after
    /// one round trip is left for the wait before: checks that have waited for less are always sent,
    /// so an outdated estimate corrects itself.
    fn expected(&self) -> Duration {
        self.round_trip.as_ref().map_or(Duration::ZERO, |round_trip| {
            let [latest, earlier] = round_trip.latest();
            let wait = round_trip.spare(self.timeout).max(self.timeout / ALWAYS_SENT_DIVISOR);
            latest.min(earlier).min(self.timeout - wait)
        })
    }

    /// Returns the deadline below which a check that is sent now would be decided too late. If all were
    /// given up, because each had waited for longer than an outdated estimate allows, the next batch is
    /// sent all the same.
    pub(super) fn earliest_deadline(&self, now: Instant) -> Instant {
        if self.has_given_up { now } else { now + self.expected() }
    }

    /// Returns true if a check that joins behind this number of full batches would wait for too long: for more
    /// than a third of the timeout that remains after one round trip.
    pub(super) fn is_overloaded(&self, batches: usize, keys: usize) -> bool {
        if batches == 0 || self.is_idle() {
            return false;
        }
        let expected = self.expected();
        let load = keys + batches * CALL;
        // If the limit has just shrunk, the round trips are still those of the load before.
        let in_a_round_trip = self.limit.max(self.latest_load);
        let wait = expected.as_nanos() * load as u128 / in_a_round_trip as u128;
        wait > (self.timeout.saturating_sub(expected) / 3).as_nanos()
    }

    /// Returns true if no reply has been read for so long that more calls would probably run too late. But
    /// the reason may be a blocked worker that does not read it, so a few still start.
    pub(super) fn is_silent(&self, now: Instant) -> bool {
        self.silence.duration(now).is_some_and(|silence| silence >= self.timeout)
    }

    /// Returns true if a reply has been read lately. Then checks that are not sent in time are too many for a server
    /// that works.
    pub(super) fn is_answering(&self, now: Instant) -> bool {
        self.last_reply.is_some_and(|last| now.saturating_duration_since(last) < self.timeout)
    }

    /// Returns the round trip without a wait at the server, if it is known.
    pub(super) fn shortest_round_trip(&self) -> Option<Duration> {
        self.round_trip.as_ref().map(RoundTrip::shortest)
    }

    /// Returns true if at most one batch, or hardly anything, is in flight.
    pub(super) fn is_drained(&self) -> bool {
        self.in_flight <= 1 || self.load <= DRAINED
    }

    /// Returns the time from which on the server is silent, if a reply is outstanding and none arrives until
    /// then.
    pub(super) fn silent_at(&self, now: Instant) -> Option<Instant> {
        self.silence.duration(now).map(|silence| now - silence + self.timeout)
    }

    /// Returns the timeout of a probe, which is less than that of a check if the server is silent.
    pub(super) fn probe_timeout(&self, now: Instant) -> Duration {
        match &self.round_trip {
            Some(round_trip) if self.is_silent(now) => {
                (self.timeout / 2).max(round_trip.shortest() * 2).min(self.timeout)
            }
            _ => self.timeout,
        }
    }
}

/// Returns the load that may be in flight so that no call takes longer than `longest`, after one in a load of
/// `in_flight` took `taken`. A server that is always busy takes in proportion to the load (Little's
/// law); one that is not takes less.
fn most_in_flight(in_flight: usize, taken: Duration, longest: Duration) -> usize {
    let limit = in_flight as u128 * longest.as_nanos() / taken.as_nanos().max(1);
    let most = MOST * LARGEST;
    usize::try_from(limit).unwrap_or(most).clamp(LEAST, most)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::slice;

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);
    const BASE: Duration = Duration::from_millis(28);
    const SERVICE_PER_CALL: Duration = Duration::from_micros(40);
    const SERVICE_PER_KEY: Duration = Duration::from_micros(20);

    /// Sends a full batch.
    fn send(window: &mut InFlightWindow, now: Instant) -> SentBatch {
        window.reserve(now);
        window.sent(window.room(), window.connected.unwrap_or(now), now)
    }

    fn may_start_full(window: &InFlightWindow, now: Instant) -> bool {
        window.may_start(now, window.room(), true)
    }

    /// A reply is read, and its place in the window returned.
    fn reply(window: &mut InFlightWindow, sent: SentBatch, now: Instant) {
        window.replied(sent, now);
        window.release();
    }

    struct Reply {
        at: Instant,
        taken: Duration,
        keys: usize,
    }

    fn overload(windows: &mut [InFlightWindow], start: Instant, time: Duration) -> Vec<Reply> {
        overload_by_and_by(windows, Duration::ZERO, start, time)
    }

    /// Full batches always wait for a server that takes them one after another. A window is used when so much
    /// time has passed since the one before.
    fn overload_by_and_by(
        windows: &mut [InFlightWindow],
        interval: Duration,
        start: Instant,
        time: Duration,
    ) -> Vec<Reply> {
        let (mut now, mut idle_at, mut replies) = (start, start, Vec::new());
        let mut in_flight = VecDeque::new();
        while now < start + time {
            for (number, window) in windows.iter_mut().enumerate() {
                let is_used = now >= start + interval * number as u32;
                while is_used && may_start_full(window, now) {
                    let sent = send(window, now);
                    let keys = sent.load - CALL;
                    let service = SERVICE_PER_CALL + SERVICE_PER_KEY * keys as u32;
                    idle_at = idle_at.max(now + BASE / 2) + service;
                    in_flight.push_back((number, sent, idle_at + BASE / 2));
                }
            }
            let (number, sent, at) = in_flight.pop_front().expect("something may be in flight");
            now = at;
            reply(&mut windows[number], sent, now);
            replies.push(Reply { at, taken: at - sent.at, keys: sent.load - CALL });
        }
        for (number, sent, at) in in_flight {
            reply(&mut windows[number], sent, at);
        }
        replies
    }

    /// How long the server works on the keys of these batches.
    fn busy(replies: &[&Reply]) -> Duration {
        SERVICE_PER_KEY * replies.iter().map(|reply| reply.keys as u32).sum()
    }

    /// Otherwise a short stall of the process would make it refuse checks for which there is time.
    #[test]
    fn a_window_that_has_just_shrunk_does_not_make_the_wait_seem_longer() {
        let (mut window, start) = (InFlightWindow::new(SECOND), Instant::now());
        let quick = send(&mut window, start);
        reply(&mut window, quick, start + MS);
        let sent: Vec<_> = (0..16).map(|_| send(&mut window, start + MS)).collect();
        for (number, sent) in (0..).zip(sent) {
            reply(&mut window, sent, start + 90 * MS + number * MS);
        }
        let _in_flight = send(&mut window, start + 110 * MS);
        assert!(window.limit < INITIAL / 4, "{}", window.limit);
        assert!(!window.is_overloaded(40, 40 * Batch::MAX_KEYS));
        assert!(window.is_overloaded(400, 400 * Batch::MAX_KEYS));
    }

    #[test]
    fn under_lasting_overload_the_server_is_busy_and_answers_in_time() {
        let (window, start) = (InFlightWindow::new(55 * MS), Instant::now());
        let replies = overload(&mut [window], start, 30 * SECOND);
        let settled: Vec<_> = replies.iter().filter(|reply| reply.at > start + 300 * MS).collect();
        let longest = settled.iter().map(|reply| reply.taken).max().unwrap();
        assert!(longest <= 45 * MS, "a reply takes {longest:?} of 55 ms");
        let busy = busy(&settled);
        assert!(busy >= (30 * SECOND - 300 * MS) * 95 / 100, "busy for {busy:?}");
    }

    #[test]
    fn queues_that_share_an_overloaded_server_do_not_all_grow_at_once() {
        let (mut windows, start) = ([(); 9].map(|()| InFlightWindow::new(55 * MS)), Instant::now());
        let replies = overload(&mut windows, start, 30 * SECOND);
        let settled: Vec<_> = replies.iter().filter(|reply| reply.at > start + SECOND).collect();
        let late = settled.iter().filter(|reply| reply.taken > 55 * MS).count();
        let busy = busy(&settled);
        assert!(late * 50 <= settled.len(), "{late} of {} replies are late", settled.len());
        assert!(busy >= 29 * SECOND * 95 / 100, "busy for {busy:?}");
    }

    fn shortest(window: &InFlightWindow) -> Duration {
        window.round_trip.unwrap().shortest()
    }

    /// If each drained at a time of its own, it would take the wait behind the others for distance, and the
    /// windows would grow until replies are late.
    #[test]
    fn queues_that_come_to_an_overloaded_server_learn_the_round_trip_without_the_wait() {
        let (mut windows, start) = ([(); 9].map(|()| InFlightWindow::new(55 * MS)), Instant::now());
        overload_by_and_by(&mut windows, 170 * MS, start, 20 * SECOND);
        let longest = windows.iter().map(shortest).max().unwrap();
        assert!(longest < BASE + 5 * MS, "{longest:?}");
    }

    /// As after a failover to another zone. The windows follow within two seconds.
    #[test]
    fn a_round_trip_that_changes_under_load_is_learned() {
        for (before, after) in [(MS, 10), (MS, 40), (10 * MS, 30), (40 * MS, 1)] {
            let (mut window, mut now) = (InFlightWindow::new(55 * MS), Instant::now());
            round_trips(&mut window, 20, before, now);
            now += 20 * before;
            let after = after * MS;
            let count = (2 * SECOND).as_nanos() / after.as_nanos();
            round_trips(&mut window, count as u32, after, now);
            assert_eq!(shortest(&window), after);
            assert!(window.limit >= 8 * LARGEST, "{before:?} to {after:?}: {}", window.limit);
        }
    }

    #[test]
    fn the_round_trip_is_forgotten_with_the_connection() {
        let (mut window, start) = (InFlightWindow::new(55 * MS), Instant::now());
        let sent = send(&mut window, start);
        reply(&mut window, sent, start + MS);
        let now = start + 10 * MS;
        let sent: Vec<_> = (0..8)
            .map(|_| {
                window.reserve(now);
                window.sent(window.room(), now, now)
            })
            .collect();
        sent.into_iter().for_each(|sent| reply(&mut window, sent, now + BASE));
        assert_eq!((shortest(&window), window.limit), (BASE, INITIAL));
    }

    #[test]
    fn batches_that_are_not_full_do_not_start_beyond_the_window() {
        let (mut window, start) = (InFlightWindow::new(55 * MS), Instant::now());
        overload(slice::from_mut(&mut window), start, 500 * MS);
        let service = SERVICE_PER_KEY * window.limit as u32;
        assert!(service < 50 * MS, "the window takes longer than the timeout: {service:?}");
        // It is full before the server counts as silent.
        window.limit /= 2;
        let mut now = start + 600 * MS;
        for _ in 0..100 {
            if window.may_start(now, Batch::MAX_KEYS, false) {
                send(&mut window, now);
            }
            now += MS / 2;
        }
        let InFlightWindow { load, limit, .. } = window;
        assert!(load.abs_diff(limit) <= LARGEST / 2 + CALL, "{load} of {limit}");
    }

    /// Each small batch takes the server nearly as long as a larger one.
    #[test]
    fn fewer_small_batches_start_while_others_wait_at_the_server() {
        let (mut window, start) = (InFlightWindow::new(100 * MS), Instant::now());
        let starts = |window: &mut InFlightWindow, from: Instant| {
            let times = (0..280).map(|tenths| from + tenths * MS / 10);
            let started = times.filter(|&now| {
                let starts = window.may_start(now, 1, false);
                if starts {
                    window.reserve(now);
                    window.sent(1, start, now);
                }
                starts
            });
            started.count()
        };
        let sent = send(&mut window, start);
        reply(&mut window, sent, start + BASE);
        let mut now = start + BASE;
        assert!(starts(&mut window, now) >= 14, "nothing waits");
        for _ in 0..30 {
            let sent = send(&mut window, now);
            now += BASE + 8 * MS;
            reply(&mut window, sent, now);
        }
        (window.in_flight, window.load) = (0, 0);
        let starts = starts(&mut window, now);
        assert!((4..=6).contains(&starts), "{starts} start in one round trip");
    }

    #[test]
    fn after_a_stall_an_outdated_estimate_holds_nobody_up() {
        let (mut window, start) = (InFlightWindow::new(55 * MS), Instant::now());
        reply(
            &mut window,
            SentBatch { at: start, load: 0, in_flight: 1, is_drained: true },
            start + BASE,
        );
        let sent: Vec<_> = (0..16).map(|_| send(&mut window, start + BASE)).collect();
        for sent in &sent[..14] {
            reply(&mut window, *sent, start + 300 * MS);
        }
        let now = start + 300 * MS;
        assert!(window.earliest_deadline(now) < now + 55 * MS, "all checks would be given up");
    }

    #[test]
    fn a_first_reply_that_is_late_does_not_stop_all_checks() {
        let (mut window, start) = (InFlightWindow::new(50 * MS), Instant::now());
        let sent = send(&mut window, start);
        let now = start + 3 * SECOND;
        assert!(window.replied(sent, now));
        window.release();
        let deadline = now + 50 * MS;
        assert!(window.earliest_deadline(now + MS) < deadline);
        // Whose worker was busy for a while.
        window.reserve(now + 5 * MS);
        assert!(window.earliest_deadline(now + 5 * MS) > deadline);
        window.given_up();
        window.release();
        let sent = send(&mut window, now + 5 * MS);
        assert!(window.earliest_deadline(now + 5 * MS) < deadline);
        // The reply corrects the estimate.
        assert!(!window.replied(sent, now + 6 * MS));
        assert!(window.earliest_deadline(now + 11 * MS) < deadline);
    }

    /// As many full batches are always in flight as may be, at a server that is not busy.
    fn round_trips(
        window: &mut InFlightWindow,
        count: u32,
        round_trip: Duration,
        mut now: Instant,
    ) {
        for _ in 0..count {
            let mut sent = Vec::new();
            while may_start_full(window, now) {
                sent.push(send(window, now));
            }
            now += round_trip;
            sent.into_iter().for_each(|sent| reply(window, sent, now));
        }
    }

    #[test]
    fn a_small_window_grows_again_within_a_few_round_trips() {
        let (mut window, mut now) = (InFlightWindow::new(55 * MS), Instant::now());
        for taken in [BASE, 300 * MS] {
            let sent = send(&mut window, now);
            now += taken;
            reply(&mut window, sent, now);
        }
        assert_eq!(window.limit, ANY_SIZE * LARGEST);
        round_trips(&mut window, 5, BASE, now);
        assert!(window.limit >= 12 * LARGEST, "{}", window.limit);
    }

    #[test]
    fn a_reply_that_a_blocked_worker_read_late_is_no_round_trip() {
        let (mut window, start) = (InFlightWindow::new(55 * MS), Instant::now());
        let [blocked, other] = [0, 1].map(|ms| send(&mut window, start + ms * MS));
        reply(&mut window, other, start + BASE);
        let (expected, limit) = (window.expected(), window.limit);
        reply(&mut window, blocked, start + 300 * MS);
        assert_eq!((window.expected(), window.limit), (expected, limit));
    }

    #[test]
    fn a_batch_held_up_by_a_blocked_worker_does_not_fill_a_small_window_for_ever() {
        let (mut window, mut now) = (InFlightWindow::new(55 * MS), Instant::now());
        for taken in [BASE, 300 * MS] {
            let sent = send(&mut window, now);
            now += taken;
            reply(&mut window, sent, now);
        }
        window.reserve(now);
        assert!(window.may_start(now + 6 * MS, 1, false), "a single one may be held up");
        window.reserve(now);
        assert!(!may_start_full(&window, now + 54 * MS));
        assert!(window.may_start(now + 55 * MS, 1, false));
    }
}
