//! The common part of the quotas of all kinds of windows.

use crate::Quota;

/// The permits and the length in microseconds of a window. The error says what to change.
pub(super) fn window(quota: &Quota, most: u64, longest: u64) -> Result<(u64, u64), String> {
    const YEAR: u64 = 31_557_600_000_000;
    let (permits, period) = (quota.permits(), quota.period());
    if permits == 0 {
        return Err("0 permits per window would deny everything: use 1 or more".into());
    }
    if permits > most {
        return Err(format!("a window of this kind has at most {most} permits"));
    }
    if quota.capacity() != permits || quota.borrowed() > 0 {
        return Err("a window has no burst, because all its permits can be taken at once: remove \
                    `burst` and `borrow`"
            .into());
    }
    if period.subsec_nanos() % 1_000 != 0 || period.as_micros() < 1_000 {
        return Err("a window is a whole number of microseconds, and at least 1 ms long".into());
    }
    match u64::try_from(period.as_micros()) {
        Ok(micros) if micros <= longest => Ok((permits, micros)),
        _ => Err(format!("a window of this kind is at most {} years long", longest / YEAR)),
    }
}
