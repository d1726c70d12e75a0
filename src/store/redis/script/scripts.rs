//! The scripts: one for each combination of algorithms.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError};

use super::assembly::{Params, assemble};
use super::fragment::Fragment;
use super::packed;
use super::short;
use crate::algorithm::Limits;

const ONE_POLICY: &str = include_str!("../../../../lua/one_policy.lua");
const MANY_POLICIES: &str = include_str!("../../../../lua/many_policies.lua");
const SHORT: &str = include_str!("../../../../lua/short.lua");
const PACKED: &str = include_str!("../../../../lua/packed.lua");

/// The scripts for all policies with the same algorithms.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// The script for keys of one policy.
    pub(crate) one: Script,
    /// The script for keys of several policies, which takes the server longer.
    pub(crate) many: Script,
}

#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) source: String,
    pub(crate) sha: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Shape {
    form: &'static str,
    quotas: Vec<&'static Fragment>,
}

/// The scripts that were assembled, as many as shapes of policies in the program, so they are never dropped.
static SCRIPTS: LazyLock<Mutex<HashMap<Shape, &'static Scripts>>> = LazyLock::new(Mutex::default);

impl Scripts {
    /// The scripts that decide about these quotas, and their arguments.
    pub(super) fn of(limits: &Limits) -> (&'static Self, Params) {
        let quotas = limits.iter().map(|(_, limit)| Fragment::of(limit)).collect();
        let (form, params) = Self::params(limits);
        let shape = Shape { form, quotas };
        let mut scripts = SCRIPTS.lock().unwrap_or_else(PoisonError::into_inner);
        let scripts = scripts.entry(shape.clone()).or_insert_with(|| {
            let script = |policies| Script::new(policies, &shape);
            Box::leak(Self { one: script(ONE_POLICY), many: script(MANY_POLICIES) }.into())
        });
        (*scripts, params)
    }

    /// The form of the value, and the arguments of the scripts.
    pub(super) fn params(limits: &Limits) -> (&'static str, Params) {
        match short::params(limits) {
            Some(params) => (SHORT, params),
            None => (PACKED, [packed::header(limits), packed::numbers(limits)]),
        }
    }
}

impl Script {
    fn new(policies: &str, shape: &Shape) -> Self {
        let source = assemble(&[policies, shape.form], &shape.quotas);
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { source, sha }
    }
}
