//! The view of a node of a cluster: what it says about the slots, parsed.
//!
//! NULL as a host comes from nodes behind NAT. Redis documents it as the host that was asked, which is wrong
//! if the nodes have different hosts. So that guess is used only if no better address is known, and only if
//! all replies lead to the same guess. `connection/node` has the rules for other unknown hosts.

use std::collections::HashMap;
use std::sync::Arc;

use redis::Value;

use crate::store::redis::connection::Node;

/// An ID has 40 characters. A longer text is none.
const MAX_ID: usize = 64;

/// The slots as one node sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// The node that said this.
    pub(super) from: Node,
    /// True if it reaches most primaries. A node that is cut off does not learn what they decide.
    pub(super) has_majority: bool,
    pub(super) claims: Vec<Claim>,
}

/// A range of slots and its primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) first: u16,
    pub(super) last: u16,
    /// The ID of the primary.
    pub(super) id: Arc<str>,
    pub(super) endpoint: PrimaryAddress,
    /// The configuration epoch of the primary: a newer owner of a slot has a greater one. It is 0
    /// if the node may not be asked for it.
    pub(super) epoch: u64,
}

/// The address of a primary, as far as the node that was asked knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PrimaryAddress {
    Known(Node),
    /// The nodes do not know their addresses (NULL). Redis documents that clients then use the host
    /// that they asked. It is wrong if the nodes have different hosts.
    Guess(Node),
    Unknown,
}

impl View {
    /// Parses the replies to `CLUSTER SLOTS` and, if it is permitted, `CLUSTER NODES`.
    pub(super) fn parse(from: &Node, slots: &Value, nodes: Option<&str>) -> Option<Self> {
        let Value::Array(ranges) = slots else { return None };
        let peers = nodes.map(Peers::parse).unwrap_or_default();
        let claims = ranges.iter().map(|range| Claim::parse(from, range, &peers));
        Some(Self {
            from: from.clone(),
            has_majority: nodes.is_none() || peers.has_majority(),
            claims: claims.collect::<Option<_>>()?,
        })
    }

    /// Returns the number of slots that are claimed, by any node.
    pub(super) fn claimed(&self) -> usize {
        self.claims
            .iter()
            .map(|claim| usize::from(claim.last.saturating_sub(claim.first)) + 1)
            .sum()
    }
}

impl Claim {
    fn parse(from: &Node, range: &Value, peers: &Peers<'_>) -> Option<Self> {
        let Value::Array(range) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = range.as_slice()
        else {
            return None;
        };
        let [host, Value::Int(port), rest @ ..] = primary.as_slice() else { return None };
        let port = u16::try_from(*port).ok()?;
        let host = text(host);
        let named = host.and_then(|host| Node::named(host, port));
        let id: Arc<str> = match rest.first().and_then(text).filter(|id| id.len() <= MAX_ID) {
            Some(id) => id.into(),
            None => named.as_ref().map_or_else(|| format!(":{port}"), Node::to_string).into(),
        };
        let at_from = || Node { host: from.host.clone(), port };
        let endpoint = match (named, host) {
            (Some(node), _) => PrimaryAddress::Known(node),
            // The node that answered has the address at which it was asked.
            _ if peers.myself == Some(&*id) => PrimaryAddress::Known(from.clone()),
            (None, Some("")) => PrimaryAddress::Known(at_from()),
            (None, Some(_)) => PrimaryAddress::Unknown,
            (None, None) => PrimaryAddress::Guess(at_from()),
        };
        let epoch = peers.epochs.get(&*id).copied().unwrap_or(0);
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        Some(Self { first, last, id, endpoint, epoch })
    }
}

/// The parts of `CLUSTER NODES` that `CLUSTER SLOTS` lacks.
#[derive(Debug, Default)]
struct Peers<'a> {
    myself: Option<&'a str>,
    epochs: HashMap<&'a str, u64>,
    /// The primaries with slots, and how many of them the node reaches.
    primaries: usize,
    reached: usize,
}

impl<'a> Peers<'a> {
    fn parse(nodes: &'a str) -> Self {
        let mut peers = Self::default();
        for line in nodes.lines() {
            let fields: Vec<_> = line.split_ascii_whitespace().collect();
            let [id, _, flags, _, _, _, epoch, _, slots @ ..] = fields.as_slice() else { continue };
            let has = |flag: &str| flags.split(',').any(|other| other == flag);
            if has("myself") {
                peers.myself = Some(id);
            }
            peers.epochs.insert(id, epoch.parse().unwrap_or(0));
            // A slot in brackets is one that is migrating.
            if has("master") && slots.iter().any(|slots| !slots.starts_with('[')) {
                peers.primaries += 1;
                peers.reached += usize::from(!has("fail") && !has("fail?"));
            }
        }
        peers
    }

    fn has_majority(&self) -> bool {
        2 * self.reached > self.primaries
    }
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(text) => std::str::from_utf8(text).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IDS: [&str; 3] = ["a1", "b2", "c3"];

    fn asked() -> Node {
        Node::new("10.0.0.1", 7000)
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn range(first: i64, last: i64, host: Value, port: i64, id: &str) -> Value {
        let primary = Value::Array(vec![host, Value::Int(port), bulk(id)]);
        Value::Array(vec![Value::Int(first), Value::Int(last), primary])
    }

    fn endpoint(host: Value, nodes: Option<&str>) -> PrimaryAddress {
        let slots = Value::Array(vec![range(0, 5, host, 7001, "b2")]);
        View::parse(&asked(), &slots, nodes).unwrap().claims.remove(0).endpoint
    }

    fn nodes(flags: [&str; 3]) -> String {
        let line = |(n, flags): (usize, &str)| {
            format!(
                "{} 10.0.0.{n}:7000@17000,h {flags} - 0 0 {} connected {n} [7->-x]\n",
                IDS[n],
                n + 4
            )
        };
        flags.into_iter().enumerate().map(line).collect()
    }

    #[test]
    fn a_host_that_is_empty_is_the_one_that_was_asked() {
        assert_eq!(endpoint(bulk(""), None), PrimaryAddress::Known(Node::new("10.0.0.1", 7001)));
    }

    #[test]
    fn a_question_mark_is_no_host() {
        assert_eq!(endpoint(bulk("?"), None), PrimaryAddress::Unknown);
    }

    /// An ID may be the label of metrics, and in each line of the log.
    #[test]
    fn a_host_or_an_id_of_a_megabyte_is_not_kept() {
        let long = "x".repeat(1_000_000);
        assert_eq!(endpoint(bulk(&long), None), PrimaryAddress::Unknown);
        for host in ["10.0.0.2", &long] {
            let slots = Value::Array(vec![range(0, 5, bulk(host), 7001, &long)]);
            let claim = View::parse(&asked(), &slots, None).unwrap().claims.remove(0);
            assert!(claim.id.len() <= "10.0.0.2:7001".len(), "{} bytes", claim.id.len());
        }
    }

    #[test]
    fn null_is_at_most_a_guess() {
        assert_eq!(endpoint(Value::Nil, None), PrimaryAddress::Guess(Node::new("10.0.0.1", 7001)));
    }

    #[test]
    fn a_node_that_does_not_know_its_host_has_the_address_at_which_it_was_asked() {
        let nodes = nodes(["master", "myself,master", "master"]);
        for host in [bulk(""), bulk("?"), Value::Nil] {
            assert_eq!(endpoint(host, Some(&nodes)), PrimaryAddress::Known(asked()));
        }
        let named = PrimaryAddress::Known(Node::new("b", 7001));
        assert_eq!(endpoint(bulk("b"), Some(&nodes)), named);
    }

    #[test]
    fn a_view_has_the_epochs_and_whether_most_primaries_are_reached() {
        let slots = Value::Array(vec![range(0, 5, bulk("b"), 7001, "b2")]);
        let view = |flags| View::parse(&asked(), &slots, Some(&nodes(flags))).unwrap();
        let all = view(["myself,master", "master", "master"]);
        assert_eq!((all.claims[0].epoch, all.has_majority), (5, true));
        assert!(view(["myself,master", "master", "master,fail"]).has_majority);
        assert!(!view(["myself,master", "master,fail?", "master,fail"]).has_majority);
        // Replicas have no vote.
        assert!(!view(["myself,slave", "master,fail?", "master"]).has_majority);
        let without = View::parse(&asked(), &slots, None).unwrap();
        assert_eq!((without.claims[0].epoch, without.has_majority), (0, true));
    }

    #[test]
    fn slots_that_are_claimed_several_times_count_each_time() {
        let ranges = |n| Value::Array(vec![range(0, 16_383, bulk("10.0.0.2"), 7001, "b2"); n]);
        let claimed = |n| View::parse(&asked(), &ranges(n), None).unwrap().claimed();
        assert_eq!((claimed(1), claimed(3)), (16_384, 3 * 16_384));
    }

    proptest! {
        #[test]
        fn no_text_panics(nodes: String, host: Vec<u8>, port: i64, slot: i64) {
            let slots = Value::Array(vec![range(slot, port, Value::BulkString(host), port, "a1")]);
            let _ = View::parse(&asked(), &slots, Some(&nodes));
        }
    }
}
