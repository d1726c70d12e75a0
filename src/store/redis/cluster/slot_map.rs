//! The map of the slots of a cluster to the nodes that serve them, merged from what its nodes say. It does no
//! I/O and reads no clock. A cluster divides its keys into 16,384 slots; the configuration epoch of an owner
//! grows with each failover.
//!
//! Nodes disagree while slots move and while the network of the cluster is divided. A node that is cut off on
//! the cluster bus still answers clients, and says for as long as that lasts that it owns its slots, or that
//! a dead primary does. So a refresh asks several nodes, different ones each time. What is newer wins:
//!
//! - A node that reaches most primaries is believed before one that does not. One without a majority is not
//!   asked again for a while, unless it is the only one.
//! - The owner with the greatest configuration epoch is the newest, which is the rule of the cluster itself.
//!   `CLUSTER SLOTS` has the addresses that clients should use, but no epochs, and `CLUSTER SHARDS` does not
//!   exist before Redis 7, so a refresh also calls `CLUSTER NODES`.
//! - Among equal epochs, or if `CLUSTER NODES` is not permitted, an owner to which a call has just failed
//!   loses, and then the majority of the nodes decides.
//! - A redirection (MOVED) is newer than every refresh that began before it, and older than the next one.
//!
//! A greater epoch applies when it arrives, everything else when the refresh ends. So a silent node does not
//! delay the discovery of a promotion, and epochs may start again at 0 when a cluster is set up again.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use indexmap::IndexSet;

use super::view::{PrimaryAddress, View};
use crate::store::redis::connection::Node;
use crate::store::redis::script::SLOTS;

/// The number of nodes that are asked in a round. One would be believed whatever it says.
const ASKED_PER_ROUND: usize = 3;

/// The time for which a node that is cut off from the others is not asked.
const ISOLATED_FOR: Duration = Duration::from_secs(10);

/// The time for which a node that did not reply, or could not, is not asked.
const FAILED_FOR: Duration = Duration::from_secs(1);

/// The time for which a node that a redirection named exists, even if it serves no slots.
const REDIRECTED_FOR: Duration = Duration::from_secs(60);

pub(super) struct SlotMap {
    slots: Vec<Slot>,
    seeds: Vec<Node>,
    /// The nodes that are not asked until a time while there are others: those that are cut off from most
    /// primaries, and those that failed.
    isolated: HashMap<Node, Instant>,
    failed: HashMap<Node, Instant>,
    redirected: HashMap<Node, Instant>,
    /// The addresses of nodes by their IDs, for replies without an address.
    addresses: HashMap<Arc<str>, Node>,
    /// Counts the rounds of questions.
    round: u64,
    /// The replies of this round.
    views: Vec<View>,
    /// The greatest epoch of an owner.
    epoch: u64,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    owner: Option<Node>,
    rank: Rank,
    /// The last round that had begun when a redirection named the owner.
    moved_in: u64,
}

/// The rank of a claim, which makes it newer than another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    has_majority: bool,
    epoch: u64,
}

impl SlotMap {
    pub(super) fn new(seeds: Vec<Node>) -> Self {
        Self {
            slots: vec![Slot::default(); SLOTS.into()],
            seeds,
            isolated: HashMap::new(),
            failed: HashMap::new(),
            redirected: HashMap::new(),
            addresses: HashMap::new(),
            round: 0,
            views: Vec::new(),
            epoch: 0,
        }
    }

    pub(super) fn owner(&self, slot: u16) -> Option<&Node> {
        self.slots.get(usize::from(slot))?.owner.as_ref()
    }

    /// The owner of each range of slots.
    fn owners(&self) -> impl Iterator<Item = &Node> {
        let mut last = None;
        let owners = self.slots.iter().filter_map(|slot| slot.owner.as_ref());
        owners.filter(move |&owner| last.replace(owner) != Some(owner))
    }

    /// The nodes that exist, those to ask first at the front.
    pub(super) fn nodes(&self, now: Instant) -> Vec<Node> {
        let all = self.seeds.iter().chain(self.owners());
        let redirected = self.redirected.iter().filter(|&(_, &until)| until > now);
        let all = all.chain(redirected.map(|(node, _)| node));
        let all: IndexSet<_> = all.collect();
        let mut nodes: Vec<_> = all.into_iter().cloned().collect();
        nodes.sort_by_key(|node| self.is_avoided(node, now));
        nodes
    }

    /// Begins a round of questions. Returns whom to ask, and prefers nodes that are connected.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        is_connected: impl Fn(&Node) -> bool,
    ) -> Vec<Node> {
        self.round += 1;
        self.views.clear();
        for nodes in [&mut self.isolated, &mut self.failed, &mut self.redirected] {
            nodes.retain(|_, until| *until > now);
        }
        let mut nodes = self.nodes(now);
        let trusted = nodes.iter().filter(|node| !self.is_avoided(node, now)).count();
        if trusted > 0 {
            nodes.truncate(trusted);
        }
        // Another round asks others, so none is believed for long because it is connected.
        let shift = usize::try_from(self.round).unwrap_or(0) % nodes.len().max(1);
        nodes.rotate_left(shift);
        nodes.sort_by_key(|node| !is_connected(node));
        nodes.truncate(ASKED_PER_ROUND);
        nodes
    }

    /// Adds a reply of this round. What is newer than the map applies immediately. Returns whether
    /// an owner has changed.
    pub(super) fn add(&mut self, view: View, now: Instant) -> bool {
        if view.has_majority {
            self.isolated.remove(&view.from);
        } else {
            self.isolated.insert(view.from.clone(), now + ISOLATED_FOR);
        }
        for claim in &view.claims {
            if let PrimaryAddress::Known(node) = &claim.endpoint
                && (view.has_majority || !self.addresses.contains_key(&claim.id))
            {
                self.addresses.insert(claim.id.clone(), node.clone());
            }
        }
        self.views.push(view);
        self.merge(false, now)
    }

    /// Ends the round: its result replaces what is older. Returns whether an owner has changed.
    pub(super) fn end(&mut self, now: Instant) -> bool {
        if self.views.is_empty() {
            return false;
        }
        let changed = self.merge(true, now);
        let claims = self.views.iter().flat_map(|view| &view.claims);
        let ids: HashSet<_> = claims.map(|claim| &claim.id).collect();
        self.addresses.retain(|id, _| ids.contains(id));
        self.views.clear();
        self.epoch = self.slots.iter().map(|slot| slot.rank.epoch).max().unwrap_or(0);
        changed
    }

    /// Follows a redirection by the node that `answered`. Returns whether the owner has changed.
    pub(super) fn moved(&mut self, slot: u16, to: &Node, answered: &Node, now: Instant) -> bool {
        self.exists(to, now);
        let epoch = self.epoch;
        let is_isolated = is_in(&self.isolated, answered, now);
        let Some(slot) = self.slots.get_mut(usize::from(slot)) else { return false };
        if is_isolated && slot.owner.is_some() {
            return false;
        }
        slot.moved_in = self.round;
        slot.rank = Rank { has_majority: true, epoch: slot.rank.epoch.max(epoch) };
        let changed = slot.owner.as_ref() != Some(to);
        slot.owner = Some(to.clone());
        changed
    }

    /// A redirection named this node.
    pub(super) fn exists(&mut self, node: &Node, now: Instant) {
        self.redirected.insert(node.clone(), now + REDIRECTED_FOR);
    }

    /// A node did not reply, or replied that the cluster is down, so it is not asked for a while.
    pub(super) fn failed(&mut self, node: &Node, now: Instant) {
        self.failed.insert(node.clone(), now + FAILED_FOR);
    }

    fn is_avoided(&self, node: &Node, now: Instant) -> bool {
        is_in(&self.isolated, node, now) || is_in(&self.failed, node, now)
    }

    fn merge(&mut self, is_final: bool, now: Instant) -> bool {
        let has_failed = |node: &Node| is_in(&self.failed, node, now);
        let result = merge(&self.views, &self.slots, &self.addresses, has_failed);
        let has_majority = self.views.iter().any(|view| view.has_majority);
        let mut changed = false;
        for (slot, (owner, rank)) in self.slots.iter_mut().zip(result) {
            let replaces = if is_final {
                has_majority >= slot.rank.has_majority
            } else {
                owner.is_some() && (slot.owner.is_none() || rank > slot.rank)
            };
            if replaces && slot.moved_in < self.round {
                slot.rank = rank;
                if slot.owner != owner {
                    slot.owner = owner;
                    changed = true;
                }
            }
        }
        changed
    }
}

fn is_in(nodes: &HashMap<Node, Instant>, node: &Node, now: Instant) -> bool {
    nodes.get(node).is_some_and(|&until| until > now)
}

/// The owner of each slot according to these views.
fn merge(
    views: &[View],
    current: &[Slot],
    addresses: &HashMap<Arc<str>, Node>,
    has_failed: impl Fn(&Node) -> bool,
) -> Vec<(Option<Node>, Rank)> {
    // In each view, the rank and the index of the owner of each slot.
    let mut indices: HashMap<Arc<str>, usize> = HashMap::new();
    let mut endpoints: Vec<Vec<&PrimaryAddress>> = Vec::new();
    let mut claims = vec![[None::<(Rank, usize)>; ASKED_PER_ROUND]; SLOTS.into()];
    for (number, view) in views.iter().enumerate().take(ASKED_PER_ROUND) {
        for claim in &view.claims {
            let index = *indices.entry(claim.id.clone()).or_insert(endpoints.len());
            if index == endpoints.len() {
                endpoints.push(Vec::new());
            }
            endpoints[index].push(&claim.endpoint);
            let rank = Rank { has_majority: view.has_majority, epoch: claim.epoch };
            let slots = usize::from(claim.first)..=usize::from(claim.last);
            for slot in claims.get_mut(slots).into_iter().flatten() {
                slot[number] = Some((rank, index));
            }
        }
    }
    let mut owners = vec![None; endpoints.len()];
    for (id, &index) in &indices {
        owners[index] = addresses.get(id).or_else(|| agreed_guess(&endpoints[index]));
    }
    let is_up: Vec<_> =
        owners.iter().map(|owner| owner.is_some_and(|owner| !has_failed(owner))).collect();
    let newest = |claims: &[_; ASKED_PER_ROUND], current: &Option<Node>| {
        let newest = claims.iter().flatten().max_by_key(|&claim: &&(Rank, usize)| {
            let (rank, index) = *claim;
            let votes = claims.iter().flatten().filter(|&other| other == claim).count();
            let is_current = owners[index].is_some() && owners[index] == current.as_ref();
            (rank, is_up[index], votes, is_current, owners[index])
        });
        newest.map_or((None, Rank::default()), |&(rank, index)| (owners[index].cloned(), rank))
    };
    // Neighbors nearly always have the same result, and checks that are redirected wait for this.
    let mut merged: Vec<(Option<Node>, Rank)> = Vec::with_capacity(claims.len());
    let mut before = None;
    for (claims, Slot { owner, .. }) in claims.iter().zip(current) {
        let result = match merged.last() {
            Some(result) if before == Some((claims, owner)) => result.clone(),
            _ => newest(claims, owner),
        };
        before = Some((claims, owner));
        merged.push(result);
    }
    merged
}

/// The guessed address of a node, if all views guess the same.
fn agreed_guess<'a>(endpoints: &[&'a PrimaryAddress]) -> Option<&'a Node> {
    let mut guesses = endpoints.iter().filter_map(|endpoint| match endpoint {
        PrimaryAddress::Guess(node) => Some(node),
        _ => None,
    });
    let guess = guesses.next()?;
    guesses.all(|other| other == guess).then_some(guess)
}

#[cfg(test)]
mod tests {
    use super::super::view::Claim;
    use super::*;
    use proptest::prelude::*;

    fn node(n: u16) -> Node {
        Node::new("10.0.0.1", n)
    }

    /// What node `from` says: slots 0 to 9 belong to `owner` since `epoch`.
    fn view(from: u16, owner: u16, epoch: u64) -> View {
        view_with(from, owner, epoch, PrimaryAddress::Known(node(owner)))
    }

    fn view_with(from: u16, owner: u16, epoch: u64, endpoint: PrimaryAddress) -> View {
        let id = owner.to_string().into();
        let claims = vec![Claim { first: 0, last: 9, id, endpoint, epoch }];
        View { from: node(from), has_majority: true, claims }
    }

    fn isolated(view: View) -> View {
        View { has_majority: false, ..view }
    }

    struct Fixture {
        map: SlotMap,
        now: Instant,
    }

    impl Fixture {
        fn new() -> Self {
            Self { map: SlotMap::new([1, 2, 3, 4].map(node).into()), now: Instant::now() }
        }

        fn begin(&mut self) -> Vec<Node> {
            self.map.begin(self.now, |_| false)
        }

        fn round(&mut self, views: impl IntoIterator<Item = View>) -> Option<u16> {
            self.begin();
            for view in views {
                self.map.add(view, self.now);
            }
            self.map.end(self.now);
            self.owner()
        }

        fn owner(&self) -> Option<u16> {
            self.map.owner(9).map(|node| node.port)
        }

        /// Whether a node is asked in one of the next rounds.
        fn asks(&mut self, n: u16) -> bool {
            (0..10).any(|_| self.begin().contains(&node(n)))
        }
    }

    #[test]
    fn neighbors_with_different_owners_are_told_apart() {
        let mut fixture = Fixture::new();
        let other = view(1, 2, 5).claims.into_iter().map(|claim| Claim { first: 5, ..claim });
        let mut both = view(1, 1, 5);
        both.claims.iter_mut().for_each(|claim| claim.last = 4);
        both.claims.extend(other);
        fixture.round([both]);
        let owner = |slot| fixture.map.owner(slot).map(|node| node.port);
        assert_eq!([4, 5, 9, 10].map(owner), [Some(1), Some(2), Some(2), None]);
    }

    #[test]
    fn among_equal_claims_each_slot_keeps_its_owner() {
        let mut fixture = Fixture::new();
        let mut all = view(1, 1, 5);
        let other =
            view(1, 2, 5).claims.into_iter().map(|claim| Claim { first: 4, last: 4, ..claim });
        all.claims.extend(other);
        fixture.round([all]);
        fixture.round([view(1, 1, 5), view(2, 2, 5)]);
        let owner = |slot| fixture.map.owner(slot).map(|node| node.port);
        assert_eq!([3, 4, 5].map(owner), [Some(1), Some(2), Some(1)]);
    }

    #[test]
    fn a_greater_epoch_wins_in_any_order() {
        for views in [[view(1, 1, 1), view(2, 4, 7)], [view(2, 4, 7), view(1, 1, 1)]] {
            assert_eq!(Fixture::new().round(views), Some(4));
        }
    }

    #[test]
    fn a_greater_epoch_applies_before_the_round_ends_and_a_smaller_one_does_not() {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.round([view(2, 1, 3)]), Some(1));
        fixture.begin();
        assert!(fixture.map.add(view(2, 4, 7), fixture.now));
        assert_eq!(fixture.owner(), Some(4));
        fixture.map.end(fixture.now);
        fixture.begin();
        assert!(!fixture.map.add(view(1, 1, 3), fixture.now));
        assert_eq!(fixture.owner(), Some(4));
    }

    #[test]
    fn epochs_may_start_again() {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.round([view(1, 1, 90)]), Some(1));
        assert_eq!(fixture.round([view(1, 2, 1), view(2, 2, 1)]), Some(2));
    }

    #[test]
    fn an_isolated_node_is_believed_only_if_no_other_has_been_heard() {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.round([isolated(view(1, 1, 9))]), Some(1));
        assert_eq!(fixture.round([isolated(view(1, 1, 9)), view(2, 4, 2)]), Some(4));
        assert_eq!(fixture.round([isolated(view(1, 1, 9))]), Some(4));
    }

    #[test]
    fn an_isolated_node_is_not_asked_again_soon_unless_it_is_the_only_one() {
        let mut fixture = Fixture::new();
        assert!(fixture.asks(1));
        fixture.round([isolated(view(1, 1, 1)), view(2, 4, 2)]);
        fixture.now += ISOLATED_FOR - Duration::from_millis(1);
        assert!(!fixture.asks(1));
        for n in 2..=4 {
            fixture.map.failed(&node(n), fixture.now);
        }
        assert!(fixture.asks(1));
        fixture.now += FAILED_FOR;
        assert!(fixture.asks(1));
    }

    #[test]
    fn a_node_that_failed_is_not_asked_for_a_second() {
        let mut fixture = Fixture::new();
        fixture.map.failed(&node(1), fixture.now);
        assert!(!fixture.asks(1));
        fixture.now += FAILED_FOR;
        assert!(fixture.asks(1));
    }

    #[test]
    fn connected_nodes_are_asked_first_and_several_of_them() {
        let mut fixture = Fixture::new();
        for _ in 0..10 {
            let asked = fixture.map.begin(fixture.now, |other| *other == node(3));
            assert_eq!((asked.len(), &asked[0]), (ASKED_PER_ROUND, &node(3)));
        }
    }

    #[test]
    fn without_epochs_the_majority_of_the_nodes_decides() {
        for views in [
            [view(1, 1, 0), view(2, 4, 0), view(3, 4, 0)],
            [view(2, 4, 0), view(3, 4, 0), view(1, 1, 0)],
        ] {
            let mut fixture = Fixture::new();
            fixture.round([view(1, 1, 0)]);
            assert_eq!(fixture.round(views), Some(4));
        }
    }

    #[test]
    fn without_epochs_an_owner_that_failed_loses() {
        let mut fixture = Fixture::new();
        fixture.round([view(1, 1, 0)]);
        assert_eq!(fixture.round([view(3, 1, 0), view(2, 4, 0)]), Some(1));
        fixture.map.failed(&node(1), fixture.now);
        assert_eq!(fixture.round([view(3, 1, 0), view(2, 4, 0)]), Some(4));
    }

    #[test]
    fn a_redirection_is_newer_than_a_round_that_began_before_it() {
        let mut fixture = Fixture::new();
        fixture.round([view(1, 1, 3)]);
        fixture.begin();
        assert!(fixture.map.moved(9, &node(2), &node(1), fixture.now));
        fixture.map.add(view(1, 1, 3), fixture.now);
        fixture.map.end(fixture.now);
        assert_eq!(fixture.owner(), Some(2));
        assert_eq!(fixture.round([view(3, 3, 3)]), Some(3));
    }

    #[test]
    fn a_redirection_by_an_isolated_node_is_not_kept() {
        let mut fixture = Fixture::new();
        fixture.round([isolated(view(1, 1, 3)), view(2, 2, 3)]);
        assert!(!fixture.map.moved(9, &node(1), &node(1), fixture.now));
        assert_eq!(fixture.owner(), Some(2));
    }

    #[test]
    fn an_unknown_address_is_taken_from_another_view() {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.round([view_with(1, 2, 3, PrimaryAddress::Unknown)]), None);
        let unknown = view_with(1, 2, 3, PrimaryAddress::Unknown);
        assert_eq!(fixture.round([unknown, view(2, 2, 3)]), Some(2));
    }

    #[test]
    fn an_address_is_kept_while_the_nodes_asked_do_not_know_it() {
        let mut fixture = Fixture::new();
        fixture.round([view(2, 2, 3)]);
        assert_eq!(fixture.round([view_with(1, 2, 3, PrimaryAddress::Unknown)]), Some(2));
        fixture.round([view(1, 1, 4)]);
        assert_eq!(fixture.round([view_with(1, 2, 5, PrimaryAddress::Unknown)]), None);
    }

    #[test]
    fn a_guessed_address_counts_if_nobody_contradicts() {
        let guess = |from, port| view_with(from, 2, 3, PrimaryAddress::Guess(node(port)));
        let mut fixture = Fixture::new();
        assert_eq!(fixture.round([guess(1, 7), guess(2, 7)]), Some(7));
        assert_eq!(fixture.round([guess(1, 7), guess(2, 8)]), None);
        assert_eq!(fixture.round([guess(1, 7), view(2, 2, 3)]), Some(2));
        assert_eq!(fixture.round([guess(1, 7)]), Some(2));
    }

    #[test]
    fn a_round_without_a_reply_changes_nothing() {
        let mut fixture = Fixture::new();
        fixture.round([view(1, 1, 3)]);
        assert_eq!(fixture.round([]), Some(1));
    }

    #[test]
    fn a_node_that_a_redirection_named_exists_for_a_minute() {
        let mut fixture = Fixture::new();
        fixture.map.exists(&node(9), fixture.now);
        assert!(fixture.map.nodes(fixture.now).contains(&node(9)));
        assert!(!fixture.map.nodes(fixture.now + REDIRECTED_FOR).contains(&node(9)));
    }

    #[test]
    fn slots_out_of_range_are_ignored() {
        let mut fixture = Fixture::new();
        let mut view = view(1, 1, 3);
        view.claims[0].last = u16::MAX;
        assert_eq!(fixture.round([view.clone()]), None);
        (view.claims[0].first, view.claims[0].last) = (9, 3);
        assert_eq!(fixture.round([view]), None);
        assert!(!fixture.map.moved(u16::MAX, &node(1), &node(1), fixture.now));
    }

    /// One step of a cluster and its client.
    #[derive(Clone, Debug)]
    enum Step {
        /// Another node owns the slot.
        Promote,
        /// A node learns the owner.
        Learn(u16),
        /// The client asks these nodes.
        Round(Vec<u16>),
        /// The client asks a node for the slot.
        Call(u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Promote),
            (1..5u16).prop_map(Step::Learn),
            prop::sample::subsequence(vec![1, 2, 3, 4], 1..=ASKED_PER_ROUND)
                .prop_shuffle()
                .prop_map(Step::Round),
            (1..5u16).prop_map(Step::Call),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn the_newest_knowledge_of_the_nodes_asked_wins(steps in prop::collection::vec(step(), 0..30)) {
            let mut fixture = Fixture::new();
            // The owner is a node by its epoch. Each node knows an epoch.
            let (mut newest, mut known) = (1u64, [1u64; 5]);
            let owner = |epoch: u64| 100 + epoch as u16;
            let mut client = None;
            for step in steps {
                match step {
                    Step::Promote => newest += 1,
                    Step::Learn(n) => known[usize::from(n)] = newest,
                    Step::Round(asked) => {
                        let heard = asked.iter().map(|&n| known[usize::from(n)]).max();
                        let views = asked.iter().map(|&n| {
                            let epoch = known[usize::from(n)];
                            view(n, owner(epoch), epoch)
                        });
                        fixture.round(views.collect::<Vec<_>>());
                        client = heard;
                    }
                    Step::Call(n) => {
                        let epoch = known[usize::from(n)];
                        fixture.map.moved(9, &node(owner(epoch)), &node(n), fixture.now);
                        client = Some(epoch);
                    }
                }
                prop_assert_eq!(fixture.owner(), client.map(owner));
            }
        }
    }
}
