//! The units of limits: their names in files, their numbers in the protocol, and their quotas.

use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit;
use fleetlimit::Quota;

/// As in `envoy.service.ratelimit.v3`. Windows are aligned to the clock, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    /// A calendar month.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    pub(crate) const ALL: [(&str, Self); 7] = [
        ("second", Self::Second),
        ("minute", Self::Minute),
        ("hour", Self::Hour),
        ("day", Self::Day),
        ("week", Self::Week),
        ("month", Self::Month),
        ("year", Self::Year),
    ];

    pub(crate) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, unit)| *unit == self).map_or("", |(name, _)| name)
    }

    /// Parses a unit name, ignoring case.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_same = |(name, _): &&(&str, Self)| name.eq_ignore_ascii_case(text);
        Self::ALL.iter().find(is_same).map(|(_, unit)| *unit)
    }

    /// A fixed window of this length.
    pub(crate) fn quota(self, permits: u64) -> Quota {
        const DAY: u64 = 24 * 60 * 60;
        let seconds = match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 60 * 60,
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => return Quota::per_month(permits).calendar(),
            Self::Year => 365 * DAY,
        };
        Quota::new(permits, Duration::from_secs(seconds)).calendar()
    }

    /// The unit of a quota's period, if it is one.
    pub(crate) fn of(quota: &Quota) -> Option<Self> {
        let mut units = Self::ALL.iter().map(|(_, unit)| *unit);
        units.find(|unit| unit.quota(quota.permits()).period() == quota.period())
    }

    /// Converts from protobuf. `RateLimitUnit`, the type in requests, has the same numbers.
    pub(crate) fn from_proto(unit: i32) -> Option<Self> {
        let is_same = |(_, this): &&(&str, Self)| i32::from(this.to_proto()) == unit;
        Self::ALL.iter().find(is_same).map(|(_, unit)| *unit)
    }

    pub(crate) fn to_proto(self) -> rate_limit::Unit {
        match self {
            Self::Second => rate_limit::Unit::Second,
            Self::Minute => rate_limit::Unit::Minute,
            Self::Hour => rate_limit::Unit::Hour,
            Self::Day => rate_limit::Unit::Day,
            Self::Week => rate_limit::Unit::Week,
            Self::Month => rate_limit::Unit::Month,
            Self::Year => rate_limit::Unit::Year,
        }
    }
}
