use fleetlimit::{ConfigError, Error, Limiter, Policy, Quota, Store};

/// 30 permits per minute, and up to 16 at once.
pub fn limiter(store: impl Store) -> Result<Limiter, ConfigError> {
    Limiter::new(store, Policy::new("user").quota("requests", Quota::per_minute(30).burst(16)))
}

pub async fn action(limiter: &Limiter, user: u64, cost: u64) -> Result<(), Error> {
    limiter.check_cost(user, cost).await?.ensure_allowed()?;
    // Do the work.
    Ok(())
}
