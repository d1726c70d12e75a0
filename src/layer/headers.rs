//! The rate limit headers.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use super::grpc;
use super::interned::interned;
use crate::verdict::QuotaInfo;
use crate::{Decision, Source};

/// The rate limit headers to send.
///
/// Seconds are whole and rounded up, so a client that honors them is never early. If a policy has
/// several quotas, styles other than `Ietf` and `IetfPolicyOnDenial` report the one that restricts
/// the client most: see [`Decision::limit`].
///
/// With several layers around one service:
///
/// - `Ietf` and `IetfPolicyOnDenial`: each layer adds its own item. On a denial, `Retry-After` is the
///   longest wait: an outer layer whose quota is used up raises it to its own `t`. An outer layer
///   whose quota still has permits omits a `t` that is larger than `Retry-After`, so that the two
///   never contradict each other.
/// - Other styles have room for one limit and report the strictest: the one with the fewest permits
///   left or, if those are equal, the later reset. On a denial, `Retry-After` is the longest wait, as
///   above, and the reset is the same wait.
///
/// ```
/// use fleetlimit::layer::HeaderStyle;
/// use fleetlimit::resolve::PeerIp;
/// use fleetlimit::{Limiter, MemoryStore, Quota, RateLimitLayer};
///
/// # fn main() -> Result<(), fleetlimit::ConfigError> {
/// let limiter = Limiter::new(MemoryStore::new(), Quota::per_second(10))?;
/// let layer = RateLimitLayer::new(limiter, PeerIp::new()).headers(HeaderStyle::XRateLimit);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// `RateLimit: "name";r=5;t=1` and `RateLimit-Policy: "name";q=10;w=2`, as in
    /// draft-ietf-httpapi-ratelimit-headers-08 to -11.
    ///
    /// `r` is the number of remaining permits. `t` is the seconds until there are more; it is omitted
    /// if no permit is in use, and on a denial also if it would be later than `Retry-After`. `q` is
    /// the capacity. `w` is the refill time of an empty bucket, or the length of the window, in
    /// seconds; it is omitted unless it is whole. A policy
    /// of several quotas has one item per quota. The draft's optional unit, `qu`, is `"concurrent-requests"` for
    /// a [concurrent quota](crate::Quota::concurrent), and otherwise not sent. A client then counts requests, so
    /// give a quota of bytes or points a name that says so.
    #[default]
    Ietf,
    /// Like [`Ietf`](Self::Ietf), but with `RateLimit-Policy` only on the layer's own denials.
    /// Allowed responses are shorter and take less time. A client that should know the quota before
    /// it is denied needs `Ietf`.
    IetfPolicyOnDenial,
    /// `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset` in seconds from now, as in
    /// draft-ietf-httpapi-ratelimit-headers-03.
    ///
    /// The reset is the time until all permits are available again, if none are taken meanwhile. On a
    /// denial, and on any other response with `Retry-After`, it is that, because clients wait for the reset.
    IetfDraft03,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` in seconds from now. The
    /// reset is that of [`IetfDraft03`](Self::IetfDraft03).
    XRateLimit,
    /// Like [`XRateLimit`](Self::XRateLimit), with the reset in seconds since the Unix epoch. Because
    /// that is rounded up, it may be up to a second later than `Retry-After`.
    XRateLimitEpoch,
    /// None, except `Retry-After` on a denial.
    None,
}

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
static IETF_DRAFT_03: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
static X_RATELIMIT: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// Between the items of a list. Names have no commas.
const SEPARATOR: &str = ", ";

/// The parts of the headers that are the same for every decision.
#[derive(Clone, Debug)]
pub(super) struct QuotaFields {
    policy: HeaderValue,
    /// The items of the `RateLimit` field up to the number of remaining permits.
    prefixes: SmallVec<[Box<[u8]>; 1]>,
}

impl QuotaFields {
    pub(super) fn of(decision: &Decision) -> Self {
        let quotas = || decision.quotas().map(|quota| quota.info());
        Self { policy: value(policy_field(quotas())), prefixes: quotas().map(prefix).collect() }
    }

    /// Makes the fields for many responses.
    pub(super) fn interned(quotas: &[QuotaInfo]) -> Self {
        let policy = value(interned(policy_field(quotas)));
        Self { policy, prefixes: quotas.iter().map(prefix).collect() }
    }
}

/// The headers for one decision, until there is a response to add them to.
pub(super) enum RateLimitHeaders {
    None,
    Policy { policy_field: HeaderValue },
    Ietf { field: HeaderValue, policy_field: Option<HeaderValue> },
    Three(Three),
}

/// The headers of a legacy style. Times are in microseconds.
pub(super) struct Three {
    names: &'static [HeaderName; 3],
    limit: u64,
    remaining: u64,
    refill_after: u64,
    reset_after: u64,
    /// The time from which the reset is counted: 0, or the time since the Unix epoch.
    since: u64,
}

impl RateLimitHeaders {
    /// Makes the headers for a decision.
    ///
    /// If the cost exceeds the capacity, the bucket was not read, so there is only the policy, and
    /// nothing in the legacy styles. If the failure mode decided, or the key is blocked, there are no
    /// headers, because it was not the policy that decided.
    pub(super) fn new(
        style: HeaderStyle,
        decision: &Decision,
        fields: &QuotaFields,
    ) -> RateLimitHeaders {
        let numbers = &decision.numbers;
        let three = |names, since| {
            let (limit, remaining) = (decision.limit(), numbers.remaining);
            let (refill_after, reset_after) = (numbers.refill_after, numbers.reset_after);
            let mut three = Three { names, limit, remaining, refill_after, reset_after, since };
            if decision.retry_after().is_some() {
                three.reset_with(seconds(numbers.retry_after));
            }
            Self::Three(three)
        };
        match style {
            _ if matches!(decision.source, Source::FailureMode | Source::Blocked) => Self::None,
            HeaderStyle::Ietf | HeaderStyle::IetfPolicyOnDenial
                if decision.source == Source::Quota =>
            {
                Self::Policy { policy_field: fields.policy.clone() }
            }
            _ if decision.source == Source::Quota => Self::None,
            HeaderStyle::Ietf | HeaderStyle::IetfPolicyOnDenial => {
                let has_policy = style == HeaderStyle::Ietf || decision.is_denied();
                let policy_field = has_policy.then(|| fields.policy.clone());
                Self::Ietf { field: field(&fields.prefixes, decision), policy_field }
            }
            HeaderStyle::IetfDraft03 => three(&IETF_DRAFT_03, 0),
            HeaderStyle::XRateLimit => three(&X_RATELIMIT, 0),
            HeaderStyle::XRateLimitEpoch => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                three(&X_RATELIMIT, now.as_micros() as u64 + 1)
            }
            HeaderStyle::None => Self::None,
        }
    }

    /// Adds the headers to the response of the service, which may be the denial of an inner layer.
    pub(super) fn insert_into(mut self, headers: &mut HeaderMap) {
        if let Some(wait) = integer(headers, &RETRY_AFTER) {
            let longer = self.longest_refill().max(wait);
            if longer > wait {
                headers.insert(RETRY_AFTER, number(longer));
                if let Some(millis) = headers.get_mut(grpc::RETRY_PUSHBACK_MS) {
                    *millis = longer.saturating_mul(1_000).into();
                }
            }
            match &mut self {
                Self::None | Self::Policy { .. } => {}
                Self::Ietf { field, .. } => *field = without_longer_refills(field, longer),
                Self::Three(three) => three.reset_with(longer),
            }
        }
        self.append_to(headers);
    }

    /// The longest time until a quota that is used up has a permit, in seconds.
    fn longest_refill(&self) -> u64 {
        match self {
            Self::Ietf { field, .. } => longest_refill(field),
            Self::Three(Three { remaining: 0, refill_after, .. }) => seconds(*refill_after),
            _ => 0,
        }
    }

    /// Adds the headers to a response that has no `Retry-After`.
    pub(super) fn append_to(self, headers: &mut HeaderMap) {
        match self {
            Self::None => {}
            Self::Policy { policy_field } => {
                headers.append(RATELIMIT_POLICY, policy_field);
            }
            Self::Ietf { field, policy_field, .. } => {
                headers.append(RATELIMIT, field);
                if let Some(policy_field) = policy_field {
                    headers.append(RATELIMIT_POLICY, policy_field);
                }
            }
            Self::Three(three) => three.insert_unless_stricter(headers),
        }
    }
}

impl Three {
    /// Sets the reset to a wait, in seconds. Clients wait for the reset, so it must not be later than
    /// `Retry-After`, and whole seconds make it the same in all layers.
    fn reset_with(&mut self, wait: u64) {
        self.reset_after = wait.saturating_mul(1_000_000);
    }

    fn insert_unless_stricter(self, headers: &mut HeaderMap) {
        let Self { names, limit, remaining, reset_after, since, .. } = self;
        let [_, remaining_name, reset_name] = names;
        let reset = seconds(reset_after.saturating_add(since));
        let is_stricter = |theirs: u64| {
            let their_reset = integer(headers, reset_name).unwrap_or(0);
            remaining < theirs || remaining == theirs && reset > their_reset
        };
        if integer(headers, remaining_name).is_none_or(is_stricter) {
            for (name, value) in names.iter().zip([limit, remaining, reset]) {
                headers.insert(name, number(value));
            }
        }
    }
}

/// Adds `Retry-After` to a denial, unless the cost exceeds the capacity, so that waiting cannot help.
pub(super) fn insert_retry_after(decision: &Decision, headers: &mut HeaderMap) {
    if decision.retry_after().is_some() {
        headers.insert(RETRY_AFTER, number(seconds(decision.numbers.retry_after)));
    }
}

/// `"name";q=10;w=2, "other";q=100`
fn policy_field<'a>(quotas: impl IntoIterator<Item = &'a QuotaInfo>) -> Vec<u8> {
    let (mut field, mut digits) = (Vec::new(), itoa::Buffer::new());
    for quota in quotas {
        let separator = if field.is_empty() { "" } else { SEPARATOR };
        let limit = digits.format(quota.limit);
        for part in [separator, "\"", quota.name(), "\";q=", limit] {
            field.extend_from_slice(part.as_bytes());
        }
        if quota.is_held() {
            field.extend_from_slice(b";qu=\"concurrent-requests\"");
        } else if quota.window > 0 {
            field.extend_from_slice(b";w=");
            field.extend_from_slice(digits.format(quota.window).as_bytes());
        }
    }
    field
}

/// `"name";r=`
fn prefix(quota: &QuotaInfo) -> Box<[u8]> {
    ["\"", quota.name(), "\";r="].concat().into_bytes().into()
}

/// `"name";r=5;t=1, "other";r=0;t=30`
fn field(prefixes: &[Box<[u8]>], decision: &Decision) -> HeaderValue {
    if let ([prefix], Decision { numbers, several: None, .. }) = (prefixes, decision) {
        return value(item(prefix, numbers.remaining, numbers.refill_after));
    }
    // `Retry-After` is not before any `t`, so a quota that has permits left omits a later one.
    let denied_for = decision.retry_after().map(|_| seconds(decision.numbers.retry_after));
    let items = prefixes.iter().zip(decision.quotas()).map(|(prefix, quota)| {
        let refill_after = quota.refill_micros();
        let is_later = denied_for.is_some_and(|wait| seconds(refill_after) > wait);
        item(prefix, quota.remaining(), if is_later { 0 } else { refill_after })
    });
    value(items.collect::<Vec<_>>().join(SEPARATOR.as_bytes()))
}

/// `"name";r=5;t=1`
fn item(prefix: &[u8], remaining: u64, refill_after: u64) -> Vec<u8> {
    let (mut remaining_digits, mut refill_digits) = (itoa::Buffer::new(), itoa::Buffer::new());
    let remaining = remaining_digits.format(remaining).as_bytes();
    let (name, refill): (&[u8], &[u8]) = match seconds(refill_after) {
        0 => (b"", b""),
        seconds => (b";t=", refill_digits.format(seconds).as_bytes()),
    };
    let parts = [prefix, remaining, name, refill];
    // One allocation of the right size, which becomes `Bytes` without a copy. `concat` takes 60
    // instructions more.
    let mut item = Vec::with_capacity(parts.iter().map(|part| part.len()).sum());
    for part in parts {
        item.extend_from_slice(part);
    }
    item
}

/// The longest `t` of the quotas in a field that are used up.
fn longest_refill(field: &HeaderValue) -> u64 {
    let used_up = items(field).filter(|(item, _)| item.ends_with(";r=0"));
    used_up.filter_map(|(_, refill)| refill?.parse().ok()).max().unwrap_or(0)
}

/// The field with no `t` above this one.
fn without_longer_refills(field: &HeaderValue, longest: u64) -> HeaderValue {
    let items = items(field).map(|(item, refill)| match refill {
        Some(refill) if refill.parse().is_ok_and(|refill: u64| refill <= longest) => {
            format!("{item};t={refill}")
        }
        _ => item.to_owned(),
    });
    value(items.collect::<Vec<_>>().join(SEPARATOR))
}

/// The items of a field, each without its `t`, and that.
fn items(field: &HeaderValue) -> impl Iterator<Item = (&str, Option<&str>)> {
    let items = field.to_str().unwrap_or_default().split(SEPARATOR);
    items.map(|item| match item.split_once(";t=") {
        Some((item, refill)) => (item, Some(refill)),
        None => (item, None),
    })
}

/// Names are validated to be plain ASCII. If one were not, the empty field would be ignored.
fn value(field: impl Into<Bytes>) -> HeaderValue {
    HeaderValue::from_maybe_shared(field.into()).unwrap_or(const { HeaderValue::from_static("") })
}

/// The numbers below 1,000, with three digits each. Nearly all of those in headers are among them, and
/// need no allocation.
static SMALL_NUMBERS: &str = {
    static DIGITS: [u8; 3_000] = {
        let mut digits = [0; 3_000];
        let mut number = 0;
        while number < 1_000 {
            digits[3 * number] = b'0' + (number / 100) as u8;
            digits[3 * number + 1] = b'0' + (number / 10 % 10) as u8;
            digits[3 * number + 2] = b'0' + (number % 10) as u8;
            number += 1;
        }
        digits
    };
    match str::from_utf8(&DIGITS) {
        Ok(digits) => digits,
        Err(_) => "",
    }
};

fn number(number: u64) -> HeaderValue {
    let len = match number {
        0..10 => 1,
        10..100 => 2,
        100..1_000 => 3,
        _ => return number.into(),
    };
    let end = 3 * number as usize + 3;
    HeaderValue::from_static(SMALL_NUMBERS.get(end - len..end).unwrap_or_default())
}

fn integer(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

fn seconds(micros: u64) -> u64 {
    micros.div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::{Limit, Limits, TokenBucket};
    use crate::{Costs, Policy, Quota};

    fn decision(quota: Quota, taken: u32) -> Decision {
        let bucket = TokenBucket::new(&quota).unwrap();
        let mut debt = bucket.rate().debt(0);
        let mut verdict = bucket.check(&mut debt, 0);
        for _ in 0..taken {
            verdict = bucket.check(&mut debt, 1);
        }
        Decision::new(verdict, Source::Store, true, Limit::TokenBucket(bucket).info("burst"))
    }

    fn headers(style: HeaderStyle, quota: Quota, taken: u32) -> HeaderMap {
        decision(quota, taken).headers(style)
    }

    #[test]
    fn every_number_is_written_in_full() {
        for expected in (0..=1_100).chain([9_999, u64::MAX / 3, u64::MAX - 1, u64::MAX]) {
            assert_eq!(number(expected), expected.to_string());
        }
    }

    #[test]
    fn the_fields_are_those_of_the_draft() {
        let quota = Quota::per_second(5).burst(10);
        let full = headers(HeaderStyle::Ietf, quota, 0);
        assert_eq!(full["ratelimit"], r#""burst";r=10"#);
        assert_eq!(full["ratelimit-policy"], r#""burst";q=10;w=2"#);
        assert_eq!(headers(HeaderStyle::Ietf, quota, 4)["ratelimit"], r#""burst";r=6;t=1"#);
        assert!(!full.contains_key("retry-after"));
        let denied = headers(HeaderStyle::Ietf, Quota::per_minute(1), 2);
        assert_eq!(denied["ratelimit"], r#""burst";r=0;t=60"#);
        assert_eq!(denied["retry-after"], "60");
        // 1.5 seconds to refill is not a whole number, so the window is left out.
        let fraction = headers(HeaderStyle::Ietf, Quota::per_second(2).burst(3), 0);
        assert_eq!(fraction["ratelimit-policy"], r#""burst";q=3"#);
    }

    fn of_several(taken: u64, then: u64) -> Decision {
        let policy = Policy::new("search")
            .quota("burst", Quota::per_second(5))
            .quota("daily", Quota::per_day(100))
            .quota("kb", Quota::per_hour(1).fixed_window());
        let limits = Limits::new(&policy, 0).unwrap();
        let mut standing = limits.standing(&[], 1 << 50);
        let of_kb = |cost| limits.charge(&Costs::new(cost).with("kb", 0)).unwrap();
        let _ = limits.check(&mut standing, &of_kb(taken));
        let verdict = limits.check(&mut standing, &of_kb(then));
        let tightest = verdict.several.as_ref().unwrap().tightest;
        let quota = limits.infos()[tightest].clone();
        Decision::new(verdict, Source::Store, true, quota)
    }

    #[test]
    fn all_quotas_of_a_policy_are_listed() {
        let allowed = of_several(2, 1).headers(HeaderStyle::Ietf);
        assert_eq!(allowed["ratelimit"], r#""burst";r=2;t=1, "daily";r=97;t=864, "kb";r=1"#);
        assert_eq!(
            allowed["ratelimit-policy"],
            r#""burst";q=5;w=1, "daily";q=100;w=86400, "kb";q=1;w=3600"#
        );
        // The legacy styles have room for one.
        let strictest = of_several(2, 1).headers(HeaderStyle::XRateLimit);
        assert_eq!(strictest["x-ratelimit-limit"], "1");
    }

    #[test]
    fn a_denial_lists_no_refill_after_retry_after() {
        let denied = of_several(5, 1);
        let headers = denied.headers(HeaderStyle::Ietf);
        assert_eq!(headers["retry-after"], "1");
        assert_eq!(headers["ratelimit"], r#""burst";r=0;t=1, "daily";r=95, "kb";r=1"#);
        let body = denied.response().into_body();
        assert!(body.ends_with(br#""violated-policies":["burst"]}"#), "{body:?}");
    }

    /// As if a layer outside of one that denied added its items.
    #[test]
    fn a_quota_that_is_used_up_raises_retry_after_and_others_leave_it() {
        for (inner, outer, wait, field) in [
            ("1", (5, 0), "1", r#""burst";r=0;t=1, "daily";r=95, "kb";r=1"#),
            ("900", (5, 0), "900", r#""burst";r=0;t=1, "daily";r=95;t=864, "kb";r=1"#),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static(inner));
            let decision = of_several(outer.0, outer.1);
            let fields = QuotaFields::of(&decision);
            RateLimitHeaders::new(HeaderStyle::Ietf, &decision, &fields).insert_into(&mut headers);
            assert_eq!(
                (&headers[RETRY_AFTER], &headers["ratelimit"]),
                (&wait.parse().unwrap(), &field.parse().unwrap())
            );
        }
    }

    /// The integers of a structured field have at most 15 digits (RFC 9651).
    #[test]
    fn the_largest_quota_has_15_digits() {
        let largest = |permits| Quota::new(permits, Duration::from_micros(permits));
        assert!(TokenBucket::new(&largest(409_418_147_942_773)).is_err());
        let full = headers(HeaderStyle::Ietf, largest(409_418_147_942_772), 0);
        assert_eq!(full["ratelimit"], r#""burst";r=409418147942772"#);
        assert!(
            full["ratelimit-policy"].to_str().unwrap().starts_with(r#""burst";q=409418147942772"#)
        );
    }

    #[test]
    fn a_wait_is_rounded_up_and_never_zero() {
        let denied = headers(HeaderStyle::None, Quota::per_second(1_000).burst(1), 2);
        assert_eq!(denied["retry-after"], "1");
        let denied = headers(HeaderStyle::None, Quota::new(1, Duration::from_micros(1_000_001)), 2);
        assert_eq!(denied["retry-after"], "2");
        assert_eq!(denied["cache-control"], "no-store");
        assert_eq!(denied.len(), 2);
    }

    /// Clients wait for the reset. An empty bucket takes 1,000 seconds to fill, or an hour.
    #[test]
    fn the_reset_of_a_denial_is_not_later_than_retry_after_in_any_legacy_style() {
        let all_used = decision(Quota::per_second(1).burst(1_000), 1_001);
        let slow = decision(Quota::per_hour(60).burst(60), 61);
        for (denied, wait) in [(all_used, "1"), (slow, "60")] {
            assert!(denied.reset_after() >= Duration::from_secs(1_000));
            let draft = denied.headers(HeaderStyle::IetfDraft03);
            assert_eq!([&draft["ratelimit-reset"], &draft["retry-after"]], [wait, wait]);
            let legacy = denied.headers(HeaderStyle::XRateLimit);
            assert_eq!([&legacy["x-ratelimit-reset"], &legacy["retry-after"]], [wait, wait]);
            let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            let epoch = denied.headers(HeaderStyle::XRateLimitEpoch);
            let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            assert_eq!(epoch["retry-after"], wait);
            let wait: u64 = wait.parse().unwrap();
            let reset: u64 = epoch["x-ratelimit-reset"].to_str().unwrap().parse().unwrap();
            let bounds = before.as_secs() + wait..=after.as_secs() + 1 + wait;
            assert!(bounds.contains(&reset), "{reset}");
        }
    }

    /// As if a layer outside of one that denied for 2 seconds, with 3 permits left, added its headers.
    #[test]
    fn a_reset_of_an_outer_layer_agrees_with_retry_after() {
        let per_second = Quota::per_second(1).burst(1_000);
        for (outer, taken, [limit, remaining, reset], retry_after) in [
            // Its permits are used up, and there is one in time.
            (per_second, 1_000, ["1000", "0", "2"], "2"),
            // There is one only later.
            (Quota::per_minute(1), 1, ["1", "0", "60"], "60"),
            // It has some left, although fewer.
            (per_second, 998, ["1000", "2", "2"], "2"),
            // It has more left.
            (per_second, 900, ["9", "3", "2"], "2"),
        ] {
            let names = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"];
            let mut headers = HeaderMap::new();
            for (name, value) in names.into_iter().zip(["9", "3", "2"]) {
                headers.insert(name, HeaderValue::from_static(value));
            }
            headers.insert(RETRY_AFTER, HeaderValue::from_static("2"));
            let decision = decision(outer, taken);
            let fields = QuotaFields::of(&decision);
            RateLimitHeaders::new(HeaderStyle::XRateLimit, &decision, &fields)
                .insert_into(&mut headers);
            assert_eq!(names.map(|name| &headers[name]), [limit, remaining, reset]);
            assert_eq!(headers[RETRY_AFTER], retry_after);
        }
    }

    #[test]
    fn legacy_styles_use_their_own_header_names() {
        let quota = Quota::per_second(5).burst(10);
        let draft = headers(HeaderStyle::IetfDraft03, quota, 6);
        assert_eq!(
            (&draft["ratelimit-limit"], &draft["ratelimit-remaining"]),
            (&10.into(), &4.into())
        );
        assert_eq!(draft["ratelimit-reset"], "2");
        assert_eq!(headers(HeaderStyle::XRateLimit, quota, 6)["x-ratelimit-reset"], "2");
        let epoch = headers(HeaderStyle::XRateLimitEpoch, quota, 6)["x-ratelimit-reset"].clone();
        assert!(epoch.to_str().unwrap().parse::<u64>().unwrap() > 1_700_000_000);
    }
}
