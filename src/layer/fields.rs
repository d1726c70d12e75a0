//! The header fields that tell a client where it stands.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::decision::Source;
use crate::{Decision, Limiter};

/// Which header fields tell a client where it stands.
///
/// Seconds are whole and rounded up, so that a client that waits as told is never early.
///
/// ```
/// use tollgate::layer::HeaderStyle;
/// use tollgate::resolve::PeerIp;
/// use tollgate::{Limiter, MemoryStore, Quota, RateLimitLayer};
///
/// # fn main() -> Result<(), tollgate::ConfigError> {
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
static DRAFT_03: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
static X_RATELIMIT: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];

/// What the fields of one limiter have in common.
#[derive(Debug)]
pub(super) struct Fields {
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
        Self { policy, standing: format!("\"{name}\";r=").into_bytes().into() }
    }

    /// The fields for a decision: none where the store was down, for then nothing is known.
    pub(super) fn tell(&self, style: HeaderStyle, decision: &Decision) -> Told {
        let three = |names, since| {
            let reset = seconds(since + decision.reset_after);
            Told::Three { names, limit: decision.limit, remaining: decision.remaining, reset }
        };
        match style {
            _ if decision.source == Source::FailureMode => Told::Nothing,
            HeaderStyle::Draft11 => {
                Told::Draft11 { standing: self.standing(decision), policy: self.policy.clone() }
            }
            HeaderStyle::Draft03 => three(&DRAFT_03, 0),
            HeaderStyle::XRateLimit => three(&X_RATELIMIT, 0),
            HeaderStyle::XRateLimitEpoch => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                three(&X_RATELIMIT, now.as_micros() as u64 + 1)
            }
            HeaderStyle::None => Told::Nothing,
        }
    }

    fn standing(&self, decision: &Decision) -> HeaderValue {
        let (mut remaining, mut wait) = (itoa::Buffer::new(), itoa::Buffer::new());
        let remaining = remaining.format(decision.remaining).as_bytes();
        // In one piece of the right size, which becomes `Bytes` as it is.
        let value = match seconds(decision.refill_after) {
            0 => [&self.standing, remaining].concat(),
            seconds => {
                [&self.standing, remaining, b";t=", wait.format(seconds).as_bytes()].concat()
            }
        };
        HeaderValue::from_maybe_shared(Bytes::from(value))
            .unwrap_or(const { HeaderValue::from_static("") })
    }
}

/// The fields for one decision, until there is a response that they can be added to.
pub(super) enum Told {
    Nothing,
    Draft11 { standing: HeaderValue, policy: HeaderValue },
    Three { names: &'static [HeaderName; 3], limit: u32, remaining: u32, reset: u64 },
}

impl Told {
    pub(super) fn write(self, headers: &mut HeaderMap) {
        match self {
            Self::Nothing => {}
            Self::Draft11 { standing, policy } => {
                headers.append(RATELIMIT, standing);
                headers.append(RATELIMIT_POLICY, policy);
            }
            Self::Three { names, limit, remaining, reset } => {
                if !headers.contains_key(&names[0]) {
                    let values = [limit.into(), remaining.into(), reset.into()];
                    headers.extend(names.iter().cloned().zip(values));
                }
            }
        }
    }
}

/// Adds `Retry-After` to a denial, unless it is for good.
pub(super) fn write_wait(decision: &Decision, headers: &mut HeaderMap) {
    if !decision.is_over_limit() {
        headers.insert(RETRY_AFTER, seconds(decision.retry_after).into());
    }
}

fn seconds(micros: u64) -> u64 {
    micros.div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
        Fields::new(&limiter).tell(style, &decision).write(&mut headers);
        if !decision.is_allowed() {
            write_wait(&decision, &mut headers);
        }
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
