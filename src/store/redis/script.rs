//! The scripts: one for each combination of algorithms.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use super::assembly::{PARAMS, assemble};
use super::fragment::Fragment;
use super::{packed, short};
use crate::algorithm::Limits;

const ONE_POLICY: &str = include_str!("../../../lua/one_policy.lua");
const MANY_POLICIES: &str = include_str!("../../../lua/many_policies.lua");
const SHORT: &str = include_str!("../../../lua/short.lua");
const PACKED: &str = include_str!("../../../lua/packed.lua");

/// The scripts for all policies with the same algorithms.
#[derive(Debug)]
pub(super) struct Scripts {
    /// For keys of one policy.
    pub(super) one: Script,
    /// For keys of several, which takes the server longer.
    pub(super) many: Script,
}

#[derive(Debug)]
pub(super) struct Script {
    pub(super) source: String,
    pub(super) sha: String,
}

/// What a script needs to know about a policy, as arguments.
pub(super) type Params = [Vec<u8>; PARAMS];

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Shape {
    form: &'static str,
    quotas: Vec<&'static Fragment>,
}

/// There are as many as shapes of policies in the program, so they are never dropped.
static SCRIPTS: LazyLock<Mutex<HashMap<Shape, &'static Scripts>>> = LazyLock::new(Mutex::default);

impl Scripts {
    /// The scripts that decide about these quotas, and their arguments.
    pub(super) fn of(limits: &Limits) -> (&'static Self, Params) {
        let quotas = limits.iter().map(|(_, limit)| Fragment::of(limit)).collect();
        let (form, params) = match short::params(limits) {
            Some(params) => (SHORT, params),
            None => (PACKED, [packed::header(limits), packed::numbers(limits)]),
        };
        let shape = Shape { form, quotas };
        let mut scripts = SCRIPTS.lock().unwrap_or_else(PoisonError::into_inner);
        let scripts = scripts.entry(shape.clone()).or_insert_with(|| {
            let script = |policies| Script::new(policies, &shape);
            Box::leak(Self { one: script(ONE_POLICY), many: script(MANY_POLICIES) }.into())
        });
        (*scripts, params)
    }
}

impl Script {
    fn new(policies: &str, shape: &Shape) -> Self {
        let source = assemble(&[policies, shape.form], &shape.quotas);
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { source, sha }
    }
}

#[cfg(test)]
mod dump {
    #[test]
    fn dump() {
        let m = |list: &[&str]| {
            let p = crate::Policy::new("default");
            list.iter()
                .zip(["a", "b", "c", "d"])
                .fold(p, |p, (q, n)| p.quota(n, q.parse().unwrap()))
        };
        for (name, list) in [
            ("one", &["10/s"][..]),
            ("packed", &["7/s"]),
            ("three", &["10/s", "100/min", "1000/day"]),
            ("borrow", &["10/s borrow 5"]),
            ("interval", &["10/s interval"]),
            ("fixed", &["10/s fixed"]),
            ("calendar", &["10/s calendar"]),
            ("sliding", &["10/s sliding"]),
            ("blocks12", &["10/1200ms sliding 12"]),
            ("blocks60", &["10/s300ms sliding 60"]),
            ("slow60", &["600/min sliding 60"]),
            ("slow12", &["600/min sliding 12"]),
            ("slowfixed", &["600/min fixed"]),
            ("slowsliding", &["600/min sliding"]),
            ("slowinterval", &["600/min interval"]),
            ("slowborrow", &["10/s burst 600 borrow 5"]),
            ("slowone", &["10/s burst 600"]),
            ("slowthree", &["10/s burst 600", "100/min burst 600", "1000/day burst 800"]),
        ] {
            let list: Vec<_> = list.iter().map(|t| t.replace("s300ms", "1200ms")).collect();
            let list: Vec<_> = list.iter().map(|t| &**t).collect();
            let limits = crate::algorithm::Limits::new(&m(&list)).unwrap();
            let (scripts, params) = super::Scripts::of(&limits);
            std::fs::write(format!("/tmp/proto/{name}.lua"), &scripts.one.source).unwrap();
            for n in 0..2 {
                std::fs::write(format!("/tmp/proto/{name}.{n}"), &params[n]).unwrap();
            }
        }
    }
}
