//! Combinations of resolvers: `or`, `or_skip`, `skip`, and tuples.

use smallvec::SmallVec;

use super::{KeyResolver, Resolution};
use crate::Key;

/// Tries a second resolver if the first finds no key: see [`KeyResolver::or`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Or<A, B> {
    first: A,
    second: B,
}

impl<A, B> Or<A, B> {
    pub(super) fn new(first: A, second: B) -> Self {
        Self { first, second }
    }
}

impl<R, A: KeyResolver<R>, B: KeyResolver<R>> KeyResolver<R> for Or<A, B> {
    fn resolve(&self, request: &R) -> Resolution {
        match self.first.resolve(request) {
            Resolution::Missing(_) => self.second.resolve(request),
            resolution => resolution,
        }
    }
}

/// Skips requests without a key: see [`KeyResolver::or_skip`].
#[derive(Clone, Debug)]
#[must_use]
pub struct OrSkip<A> {
    resolver: A,
}

impl<A> OrSkip<A> {
    pub(super) fn new(resolver: A) -> Self {
        Self { resolver }
    }
}

impl<R, A: KeyResolver<R>> KeyResolver<R> for OrSkip<A> {
    fn resolve(&self, request: &R) -> Resolution {
        match self.resolver.resolve(request) {
            Resolution::Missing(_) => Resolution::Skip,
            resolution => resolution,
        }
    }
}

/// Skips requests for which a predicate holds: see [`KeyResolver::skip`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Skip<A, F> {
    resolver: A,
    predicate: F,
}

impl<A, F> Skip<A, F> {
    pub(super) fn new(resolver: A, predicate: F) -> Self {
        Self { resolver, predicate }
    }
}

impl<R, A, F> KeyResolver<R> for Skip<A, F>
where
    A: KeyResolver<R>,
    F: Fn(&R) -> bool + Send + Sync,
{
    fn resolve(&self, request: &R) -> Resolution {
        if (self.predicate)(request) { Resolution::Skip } else { self.resolver.resolve(request) }
    }
}

// All parts are resolved, so that a skip by one cannot hide a rejection by another.
fn join<const N: usize>(parts: [Resolution; N]) -> Resolution {
    let mut keys = SmallVec::<[Key; 6]>::new();
    let mut missing = None;
    let mut skip = false;
    for part in parts {
        match part {
            Resolution::Key(key) => keys.push(key),
            Resolution::Skip => skip = true,
            Resolution::Missing(rejection) => missing = missing.or(Some(rejection)),
            Resolution::Reject(rejection) => return Resolution::Reject(rejection),
        }
    }
    match missing {
        _ if skip => Resolution::Skip,
        Some(rejection) => Resolution::Missing(rejection),
        None => Resolution::Key(Key::join(&keys)),
    }
}

macro_rules! tuples {
    ($(($($part:ident)*))*) => {$(
        /// Joins the keys of all parts: see [`resolve`](super).
        impl<R, $($part: KeyResolver<R>),*> KeyResolver<R> for ($($part,)*) {
            #[allow(non_snake_case)]
            fn resolve(&self, request: &R) -> Resolution {
                let ($($part,)*) = self;
                join([$($part.resolve(request)),*])
            }
        }
    )*};
}

tuples!((A B) (A B C) (A B C D) (A B C D E) (A B C D E F));

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rejection;
    use proptest::prelude::*;

    // A resolver for requests that are their own resolutions.
    fn part<const I: usize>(request: &[Resolution; 3]) -> Resolution {
        request[I].clone()
    }

    fn whole(request: [Resolution; 3]) -> Resolution {
        (part::<0>, part::<1>, part::<2>).resolve(&request)
    }

    fn key(text: &str) -> Resolution {
        Resolution::Key(text.into())
    }

    fn missing(message: &'static str) -> Resolution {
        Resolution::Missing(Rejection::bad_request(message))
    }

    fn rejected() -> Resolution {
        Rejection::forbidden("banned").into()
    }

    fn orders(parts: [Resolution; 3]) -> impl Iterator<Item = [Resolution; 3]> {
        [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]
            .into_iter()
            .map(move |order| order.map(|index: usize| parts[index].clone()))
    }

    #[test]
    fn a_skip_cannot_let_through_what_another_part_rejects() {
        for parts in orders([Resolution::Skip, rejected(), key("a")]) {
            assert_eq!(whole(parts), rejected());
        }
        for parts in orders([missing("a"), rejected(), Resolution::Skip]) {
            assert_eq!(whole(parts), rejected());
        }
    }

    #[test]
    fn a_missing_part_never_leaves_a_key_of_the_others() {
        for parts in orders([missing("a"), key("b"), key("c")]) {
            assert_eq!(whole(parts), missing("a"));
        }
        let parts = [key("a"), missing("b"), missing("c")];
        assert_eq!(whole(parts), missing("b"));
    }

    #[test]
    fn a_part_that_skips_skips_the_request() {
        for parts in orders([Resolution::Skip, missing("a"), key("b")]) {
            assert_eq!(whole(parts), Resolution::Skip);
        }
    }

    #[test]
    fn a_rejection_is_final() {
        let request = [rejected(), key("b"), Resolution::Skip];
        assert_eq!(part::<0>.or(part::<1>).resolve(&request), rejected());
        assert_eq!(part::<0>.or_skip().resolve(&request), rejected());
        assert_eq!(part::<2>.or(part::<1>).resolve(&request), Resolution::Skip);
    }

    #[test]
    fn only_a_missing_key_is_resolved_again() {
        let request = [missing("a"), key("b"), key("c")];
        assert_eq!(part::<0>.or(part::<1>).resolve(&request), key("b"));
        assert_eq!(part::<1>.or(part::<2>).resolve(&request), key("b"));
        assert_eq!(part::<0>.or_skip().resolve(&request), Resolution::Skip);
        assert_eq!(part::<0>.or(part::<0>).or_skip().resolve(&request), Resolution::Skip);
    }

    #[test]
    fn a_skipped_request_is_not_resolved() {
        let request = [rejected(), missing("b"), key("c")];
        let always = |_: &[Resolution; 3]| true;
        assert_eq!(part::<0>.skip(always).resolve(&request), Resolution::Skip);
        let never = |_: &[Resolution; 3]| false;
        assert_eq!(part::<0>.skip(never).resolve(&request), rejected());
    }

    fn texts() -> impl Strategy<Value = [String; 3]> {
        prop::array::uniform3("[|\\\\a]{0,3}")
    }

    proptest! {
        #[test]
        fn different_parts_never_share_a_key(one in texts(), other in texts()) {
            let same = one == other;
            let [one, other] = [one, other].map(|parts| whole(parts.map(|part| key(&part))));
            prop_assert_eq!(same, one == other);
        }
    }
}
