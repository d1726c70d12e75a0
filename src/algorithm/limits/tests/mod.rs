//! The algorithms behind a policy, as properties of random ones.

mod adjustments;
mod bounds;
mod denials;
mod drawn;
mod fleet;
mod quotas;
mod waiting;
mod windows;
