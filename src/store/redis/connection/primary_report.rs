//! The reports of sentinels about the primary of a service, and the one that counts. It does no I/O.

use std::collections::HashMap;

use redis::Value;

use super::node::Node;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) primary: Node,
    /// The configuration epoch, which grows with each failover. It is 0 if the sentinel may not be
    /// asked for it.
    epoch: u64,
}

impl Report {
    /// Parses the replies to `SENTINEL GET-MASTER-ADDR-BY-NAME` and `SENTINEL MASTER`. `None` if
    /// the sentinel does not know the service.
    pub(super) fn parse(address: Value, service: Value) -> Option<Self> {
        let (host, port) = redis::from_redis_value::<(String, u16)>(address).ok()?;
        let fields = service.extract_error().ok();
        let fields = fields.and_then(|fields| redis::from_redis_value(fields).ok());
        let fields: HashMap<String, String> = fields.unwrap_or_default();
        let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        Some(Self { primary: Node::named(&host, port)?, epoch })
    }

    /// Returns true if the sentinels now report another primary than this report, which one of them made.
    pub(super) fn is_outdated(&self, reports: &[Option<Self>]) -> bool {
        let known = || reports.iter().flatten();
        newest(known()).is_some_and(|newest| {
            // Epochs start again if the sentinels are set up again.
            let votes = known().filter(|report| report.primary == newest.primary).count();
            newest.primary != self.primary
                && (newest.epoch > self.epoch || is_majority(votes, reports.len()))
        })
    }
}

/// The report that counts: the one with the greatest epoch, and among those the most frequent.
pub(super) fn newest<'a>(reports: impl Iterator<Item = &'a Report> + Clone) -> Option<&'a Report> {
    let votes = |report: &Report| reports.clone().filter(|&other| other == report).count();
    reports.clone().max_by_key(|report| (report.epoch, votes(report), &report.primary))
}

pub(super) fn is_majority(count: usize, all: usize) -> bool {
    2 * count > all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(port: u16, epoch: u64) -> Report {
        Report { primary: Node::new("10.0.0.1", port), epoch }
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn a_greater_epoch_counts_even_if_one_sentinel_reports_it() {
        let reports = [report(1, 3), report(2, 4), report(1, 3)];
        assert_eq!(newest(reports.iter()), Some(&reports[1]));
    }

    #[test]
    fn in_one_epoch_the_majority_counts() {
        for reports in
            [[report(1, 0), report(2, 0), report(2, 0)], [report(2, 0), report(2, 0), report(1, 0)]]
        {
            assert_eq!(newest(reports.iter()), Some(&report(2, 0)));
        }
        assert_eq!(newest([].iter()), None);
    }

    #[test]
    fn a_connection_is_outdated_from_the_first_report_of_a_greater_epoch() {
        let outdated = |reports: &[_]| report(1, 3).is_outdated(reports);
        assert!(!outdated(&[None, None, None]));
        assert!(!outdated(&[Some(report(1, 3)), None, None]));
        assert!(outdated(&[Some(report(1, 3)), Some(report(2, 4)), Some(report(1, 3))]));
        // The same primary was confirmed.
        assert!(!outdated(&[Some(report(1, 4)), None, None]));
    }

    #[test]
    fn sentinels_that_lag_behind_do_not_make_a_connection_outdated() {
        let lagging = [Some(report(1, 3)), Some(report(2, 4)), Some(report(1, 3))];
        assert!(!report(2, 4).is_outdated(&lagging));
    }

    #[test]
    fn a_connection_is_outdated_if_the_majority_starts_again_with_a_smaller_epoch() {
        let again = Some(report(2, 0));
        assert!(report(1, 3).is_outdated(&[again.clone(), again.clone(), None]));
        assert!(!report(1, 3).is_outdated(&[again, None, None]));
    }

    #[test]
    fn a_report_has_the_epoch_if_it_is_permitted() {
        let address = || Value::Array(vec![bulk("10.0.0.1"), bulk("7")]);
        let service = ["name", "x", "config-epoch", "4"].map(bulk);
        let service = Value::Array(service.into());
        assert_eq!(Report::parse(address(), service), Some(report(7, 4)));
        assert_eq!(Report::parse(address(), Value::Nil), Some(report(7, 0)));
        assert_eq!(Report::parse(Value::Nil, Value::Nil), None);
        let long = Value::Array(vec![bulk(&"x".repeat(1_000_000)), bulk("7")]);
        assert_eq!(Report::parse(long, Value::Nil), None, "it is no host");
    }
}
