use super::fields::Fields;
use super::problem::Problems;
use crate::Limiter;

/// What the layer says for one limiter every time, written once and kept with it.
#[derive(Debug)]
pub struct Notes {
    pub(super) fields: Fields,
    pub(super) problems: Problems,
}

impl Notes {
    pub(super) fn of(limiter: &Limiter) -> &Self {
        limiter.notes(Self::new).unwrap_or_else(|| unreachable!("only the layer keeps notes"))
    }

    fn new(limiter: &Limiter) -> Self {
        Self { fields: Fields::new(limiter), problems: Problems::new(limiter.quota_name()) }
    }
}
