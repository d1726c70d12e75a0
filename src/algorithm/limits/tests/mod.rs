//! The algorithms behind a policy: as properties of random ones (`drawn`), and what others rely on (`contract`).

mod adjustments;
mod bounds;
#[cfg(feature = "redis")]
mod contract;
mod denials;
mod drawn;
mod fleet;
mod quotas;
mod waiting;
mod windows;
