use smallvec::SmallVec;

use super::{KeyResolver, Resolution};
use crate::Key;

/// Asks a second resolver about requests for which the first finds no key: see
/// [`KeyResolver::or`].
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
            answer => answer,
        }
    }
}

/// Lets requests without a key pass, uncounted: see [`KeyResolver::or_exempt`].
#[derive(Clone, Debug)]
#[must_use]
pub struct OrExempt<A> {
    resolver: A,
}

impl<A> OrExempt<A> {
    pub(super) fn new(resolver: A) -> Self {
        Self { resolver }
    }
}

impl<R, A: KeyResolver<R>> KeyResolver<R> for OrExempt<A> {
    fn resolve(&self, request: &R) -> Resolution {
        match self.resolver.resolve(request) {
            Resolution::Missing(_) => Resolution::Exempt,
            answer => answer,
        }
    }
}

// Every part is asked, so that an exemption by one cannot hide a refusal by another.
fn join<const N: usize>(parts: [Resolution; N]) -> Resolution {
    let mut keys = SmallVec::<[Key; 6]>::new();
    let mut missing = None;
    let mut exempt = false;
    for part in parts {
        match part {
            Resolution::Key(key) => keys.push(key),
            Resolution::Exempt => exempt = true,
            Resolution::Missing(refusal) => missing = missing.or(Some(refusal)),
            Resolution::Refused(refusal) => return Resolution::Refused(refusal),
        }
    }
    match missing {
        _ if exempt => Resolution::Exempt,
        Some(refusal) => Resolution::Missing(refusal),
        None => Resolution::Key(Key::join(&keys)),
    }
}

macro_rules! tuples {
    ($(($($part:ident)*))*) => {$(
        /// The keys of all parts, joined by [`Key::join`]: see [`resolve`](super).
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
    use http::StatusCode;
    use proptest::prelude::*;

    // A resolver for requests that are themselves the answer.
    fn part<const I: usize>(request: &[Resolution; 3]) -> Resolution {
        request[I].clone()
    }

    fn whole(request: [Resolution; 3]) -> Resolution {
        (part::<0>, part::<1>, part::<2>).resolve(&request)
    }

    fn key(text: &str) -> Resolution {
        Resolution::Key(text.into())
    }

    fn refused() -> Resolution {
        Resolution::refused(StatusCode::FORBIDDEN, "banned")
    }

    fn orders(parts: [Resolution; 3]) -> impl Iterator<Item = [Resolution; 3]> {
        [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]
            .into_iter()
            .map(move |order| order.map(|index: usize| parts[index].clone()))
    }

    #[test]
    fn an_exempt_part_cannot_pass_what_another_refuses() {
        for parts in orders([Resolution::Exempt, refused(), key("a")]) {
            assert_eq!(whole(parts), refused());
        }
        for parts in orders([Resolution::missing("a"), refused(), Resolution::Exempt]) {
            assert_eq!(whole(parts), refused());
        }
    }

    #[test]
    fn a_missing_part_makes_no_key_of_the_rest() {
        for parts in orders([Resolution::missing("a"), key("b"), key("c")]) {
            assert_eq!(whole(parts), Resolution::missing("a"));
        }
        let parts = [key("a"), Resolution::missing("b"), Resolution::missing("c")];
        assert_eq!(whole(parts), Resolution::missing("b"));
    }

    #[test]
    fn an_exempt_part_exempts_the_whole() {
        for parts in orders([Resolution::Exempt, Resolution::missing("a"), key("b")]) {
            assert_eq!(whole(parts), Resolution::Exempt);
        }
    }

    #[test]
    fn a_refusal_is_neither_asked_about_again_nor_exempted() {
        let request = [refused(), key("b"), Resolution::Exempt];
        assert_eq!(part::<0>.or(part::<1>).resolve(&request), refused());
        assert_eq!(part::<0>.or_exempt().resolve(&request), refused());
        assert_eq!(part::<2>.or(part::<1>).resolve(&request), Resolution::Exempt);
    }

    #[test]
    fn only_a_missing_key_is_asked_about_again() {
        let request = [Resolution::missing("a"), key("b"), key("c")];
        assert_eq!(part::<0>.or(part::<1>).resolve(&request), key("b"));
        assert_eq!(part::<1>.or(part::<2>).resolve(&request), key("b"));
        assert_eq!(part::<0>.or_exempt().resolve(&request), Resolution::Exempt);
        assert_eq!(part::<0>.or(part::<0>).or_exempt().resolve(&request), Resolution::Exempt);
    }

    fn texts() -> impl Strategy<Value = [String; 3]> {
        prop::array::uniform3("[|\\\\a]{0,3}")
    }

    proptest! {
        #[test]
        fn different_callers_never_meet_in_one_bucket(one in texts(), other in texts()) {
            let same = one == other;
            let [one, other] = [one, other].map(|parts| whole(parts.map(|part| key(&part))));
            prop_assert_eq!(same, one == other);
        }
    }
}
