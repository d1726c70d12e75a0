//! The header fields that tell a client where it stands.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::decision::Source;
use crate::{Decision, Limiter};

/// Which header fields tell a client where it stands.
///
/// Seconds are whole and rounded up, so that a client that waits as told is never early.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// `RateLimit: "name";r=5;t=1` and `RateLimit-Policy: "name";q=10;w=2`, as in
    /// draft-ietf-httpapi-ratelimit-headers-08 to -11.
    ///
    /// `r` is what remains, and `t` the seconds until there is more (left out when the bucket is
    /// full); `q` is the burst and `w` the seconds in which it refills (left out where they are
    /// not whole). With several layers around each other, each adds its own.
    #[default]
    Draft11,
    /// `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset` in seconds from now, as in
    /// draft-ietf-httpapi-ratelimit-headers-03. Of several layers around each other, the innermost tells.
    Draft03,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` in seconds from now. Of
    /// several layers around each other, the innermost tells.
    XRateLimit,
    /// As [`XRateLimit`](Self::XRateLimit), with the reset in seconds since the Unix epoch.
    XRateLimitEpoch,
    /// None, except `Retry-After` on a denial.
    None,
}

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const DRAFT_03: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
const X_RATELIMIT: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// What the fields of one policy have in common, written once.
#[derive(Debug)]
pub(super) struct Fields {
    name: Box<str>,
    policy: HeaderValue,
    /// `"name";r=`
    standing: Box<[u8]>,
}

impl Fields {
    pub(super) fn new(limiter: &Limiter) -> Self {
        let (name, bucket) = (limiter.quota_name(), limiter.bucket());
        let mut policy = format!("\"{name}\";q={}", bucket.limit());
        if let Some(seconds) = bucket.window_seconds() {
            policy.push_str(&format!(";w={seconds}"));
        }
        // The name is checked to be plain ASCII; were it not, an empty field would be ignored.
        let policy =
            HeaderValue::try_from(policy).unwrap_or(const { HeaderValue::from_static("") });
        Self { name: name.into(), policy, standing: format!("\"{name}\";r=").into_bytes().into() }
    }

    /// The name that the fields give the quota.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Adds the fields of a style, and `Retry-After` to a denial.
    pub(super) fn write(&self, style: HeaderStyle, decision: &Decision, headers: &mut HeaderMap) {
        if decision.source == Source::FailureMode {
            return;
        }
        match style {
            HeaderStyle::Draft11 => {
                headers.append(RATELIMIT, self.standing(decision));
                headers.append(RATELIMIT_POLICY, self.policy.clone());
            }
            HeaderStyle::Draft03 => {
                write_three(headers, DRAFT_03, decision, seconds(decision.reset_after))
            }
            HeaderStyle::XRateLimit => {
                write_three(headers, X_RATELIMIT, decision, seconds(decision.reset_after))
            }
            HeaderStyle::XRateLimitEpoch => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                write_three(headers, X_RATELIMIT, decision, seconds(now + decision.reset_after));
            }
            HeaderStyle::None => {}
        }
        if !decision.is_allowed() && !decision.is_over_limit() {
            headers.insert(RETRY_AFTER, seconds(decision.retry_after).into());
        }
    }

    fn standing(&self, decision: &Decision) -> HeaderValue {
        let mut number = itoa::Buffer::new();
        let mut value = Vec::with_capacity(self.standing.len() + 24);
        value.extend_from_slice(&self.standing);
        value.extend_from_slice(number.format(decision.remaining).as_bytes());
        if !decision.refill_after.is_zero() {
            value.extend_from_slice(b";t=");
            value.extend_from_slice(number.format(seconds(decision.refill_after)).as_bytes());
        }
        HeaderValue::from_maybe_shared(Bytes::from(value))
            .unwrap_or(const { HeaderValue::from_static("") })
    }
}

fn write_three(headers: &mut HeaderMap, names: [HeaderName; 3], decision: &Decision, reset: u64) {
    if headers.contains_key(&names[0]) {
        return;
    }
    let values = [decision.limit.into(), decision.remaining.into(), reset.into()];
    headers.extend(names.into_iter().zip(values));
}

fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryStore, Policy, Quota};

    fn written(style: HeaderStyle, quota: Quota, taken: u32) -> HeaderMap {
        let policy = Policy::new("policy").quota("burst", quota);
        let limiter = Limiter::new(MemoryStore::new(), policy).unwrap();
        let mut debt = 0;
        let mut decision = limiter.bucket().check(&mut debt, 0);
        for _ in 0..taken {
            decision = limiter.bucket().check(&mut debt, 1);
        }
        let mut headers = HeaderMap::new();
        Fields::new(&limiter).write(style, &decision, &mut headers);
        headers
    }

    #[test]
    fn the_fields_are_those_of_the_draft() {
        let quota = Quota::per_second(5).burst(10);
        let full = written(HeaderStyle::Draft11, quota, 0);
        assert_eq!(full["ratelimit"], r#""burst";r=10"#);
        assert_eq!(full["ratelimit-policy"], r#""burst";q=10;w=2"#);
        assert_eq!(written(HeaderStyle::Draft11, quota, 4)["ratelimit"], r#""burst";r=6;t=1"#);
        assert!(!full.contains_key("retry-after"));
        let denied = written(HeaderStyle::Draft11, Quota::per_minute(1), 2);
        assert_eq!(denied["ratelimit"], r#""burst";r=0;t=60"#);
        assert_eq!(denied["retry-after"], "60");
        // 1.5 seconds to refill is no whole number: the window is left out.
        let odd = written(HeaderStyle::Draft11, Quota::per_second(2).burst(3), 0);
        assert_eq!(odd["ratelimit-policy"], r#""burst";q=3"#);
    }

    #[test]
    fn a_wait_is_rounded_up_and_never_zero() {
        let denied = written(HeaderStyle::None, Quota::per_second(1_000).burst(1), 2);
        assert_eq!(denied["retry-after"], "1");
        let denied = written(HeaderStyle::None, Quota::new(1, Duration::from_micros(1_000_001)), 2);
        assert_eq!(denied["retry-after"], "2");
        assert_eq!(denied.len(), 1);
    }

    #[test]
    fn the_older_dialects_are_there_by_name() {
        let quota = Quota::per_second(5).burst(10);
        let draft = written(HeaderStyle::Draft03, quota, 6);
        assert_eq!(
            (&draft["ratelimit-limit"], &draft["ratelimit-remaining"]),
            (&10.into(), &4.into())
        );
        assert_eq!(draft["ratelimit-reset"], "2");
        assert_eq!(written(HeaderStyle::XRateLimit, quota, 6)["x-ratelimit-reset"], "2");
        let epoch = written(HeaderStyle::XRateLimitEpoch, quota, 6)["x-ratelimit-reset"].clone();
        assert!(epoch.to_str().unwrap().parse::<u64>().unwrap() > 1_700_000_000);
    }
}
