//! The rows of the table: the load of each row, and the subjects that run under it.

use std::pin::Pin;

use ::fleetlimit::{MemoryStore, RedisStore};

use crate::load::{self, Load, Measurement};
use crate::setup::Setup;
use crate::subjects::{
    Baseline, BoxError, ClusterBaseline, DirectCheck, ManyPolicies, OkService, Operation, Pooled,
    ServiceCall, Shared, SharedCluster, TwoKeys, fleetlimit, governor, tower_rate_limit_redis,
};

pub(crate) mod names {
    pub(crate) const BARE: &str = "bare service";
    pub(crate) const PING: &str = "PING";
    pub(crate) const BASELINE: &str = "EVALSHA `return 1`";
    pub(crate) const REDIS: &str = "**fleetlimit, Redis**";
    pub(crate) const REDIS_POLICY_ON_DENIAL: &str = "fleetlimit, Redis, policy on denials only";
    pub(crate) const REDIS_NO_LAYER: &str = "fleetlimit, Redis, no layer";
    pub(crate) const REDIS_POLICIES: &str = "fleetlimit, Redis, no layer, 1,000 policies";
    pub(crate) const MEMORY: &str = "**fleetlimit, memory**";
    pub(crate) const MEMORY_NO_LAYER: &str = "fleetlimit, memory, no layer";
    pub(crate) const GOVERNOR: &str = "tower_governor";
    pub(crate) const TOWER_RATE_LIMIT_REDIS: &str = "tower-rate-limit-redis";
    pub(crate) const POOLED: &str = "script per check, deadpool";
    pub(crate) const SHARED: &str = "script per check, shared";
    pub(crate) const TWO_KEYS: &str = "two-key script per check";
}

pub(crate) const ONE_TASK: &str = "1 task, 10,000 keys";
pub(crate) const MANY_KEYS: &str = "256 tasks, 10,000 keys";
pub(crate) const ONE_KEY: &str = "256 tasks, 1 key";
pub(crate) const DENIED: &str = "256 tasks, 1 denied key";
pub(crate) const CLUSTER_ONE_KEY: &str = "cluster of 3, 256 tasks, 1 key";
pub(crate) const CLUSTER_MANY_KEYS: &str = "cluster of 3, 256 tasks, 10,000 keys";

/// A named operation that runs under any load.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) uses_redis: bool,
    /// Whether its decisions must be those that the row expects.
    pub(crate) is_verified: bool,
    run: Box<dyn Fn(Load) -> RunFuture + Sync>,
}

type RunFuture = Pin<Box<dyn Future<Output = Result<Measurement, BoxError>>>>;

impl Subject {
    pub(crate) fn new(name: &'static str, operation: impl Operation + Sync) -> Self {
        use names::*;
        Self {
            name,
            uses_redis: ![BARE, MEMORY, MEMORY_NO_LAYER, GOVERNOR].contains(&name),
            is_verified: ![BARE, PING, BASELINE, POOLED, SHARED].contains(&name),
            run: Box::new(move |load| Box::pin(load::run(operation.clone(), load))),
        }
    }

    pub(crate) async fn run(&self, load: Load) -> Result<Measurement, BoxError> {
        (self.run)(load).await.map_err(|error| format!("{}: {error}", self.name).into())
    }
}

pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) tasks: u64,
    pub(crate) keys: u64,
    /// Whether a limiter must allow all requests; otherwise it must deny all of them.
    pub(crate) allow_all: bool,
    pub(crate) on_cluster: bool,
}

impl Row {
    pub(crate) const ALL: [Self; 6] = [
        Self { name: ONE_TASK, tasks: 1, keys: 10_000, allow_all: true, on_cluster: false },
        Self { name: MANY_KEYS, tasks: 256, keys: 10_000, allow_all: true, on_cluster: false },
        Self { name: ONE_KEY, tasks: 256, keys: 1, allow_all: true, on_cluster: false },
        Self { name: DENIED, tasks: 256, keys: 1, allow_all: false, on_cluster: false },
        Self { name: CLUSTER_ONE_KEY, tasks: 256, keys: 1, allow_all: true, on_cluster: true },
        Self {
            name: CLUSTER_MANY_KEYS,
            tasks: 256,
            keys: 10_000,
            allow_all: true,
            on_cluster: true,
        },
    ];

    pub(crate) async fn subjects(&self, setup: &Setup) -> Result<Vec<Subject>, BoxError> {
        // The last reference, the baseline, runs just before the first subject that is compared with it.
        let mut subjects = match self.on_cluster {
            true => references_on_cluster(setup).await?,
            false => self.references(setup).await?,
        };
        subjects.extend(self.fleetlimit(setup)?);
        Ok(subjects)
    }

    /// The subjects of this crate.
    fn fleetlimit(&self, setup: &Setup) -> Result<Vec<Subject>, BoxError> {
        let policy =
            if self.allow_all { fleetlimit::allow_all } else { fleetlimit::deny_after_first };
        let store = match self.on_cluster {
            true => RedisStore::open_cluster(setup.cluster.urls())?,
            false => RedisStore::open(setup.server.url())?,
        };
        let redis = fleetlimit::limiter(store.clone(), policy())?;
        let mut subjects = vec![Subject::new(names::REDIS, fleetlimit::layered(redis.clone()))];
        if self.name == ONE_KEY {
            let layered = fleetlimit::layered_with_policy_on_denial(redis.clone());
            subjects.push(Subject::new(names::REDIS_POLICY_ON_DENIAL, layered));
        }
        subjects.push(Subject::new(names::REDIS_NO_LAYER, DirectCheck(redis)));
        if self.name == MANY_KEYS {
            let policies = ManyPolicies::new(&store, 1_000)?;
            subjects.push(Subject::new(names::REDIS_POLICIES, policies));
        }
        if !self.on_cluster {
            let memory = fleetlimit::limiter(MemoryStore::new(), policy())?;
            subjects.push(Subject::new(names::MEMORY, fleetlimit::layered(memory.clone())));
            subjects.push(Subject::new(names::MEMORY_NO_LAYER, DirectCheck(memory)));
        }
        Ok(subjects)
    }

    async fn references(&self, setup: &Setup) -> Result<Vec<Subject>, BoxError> {
        let call = if self.allow_all { &setup.allow_call } else { &setup.deny_call };
        let mut subjects = vec![
            Subject::new(names::GOVERNOR, governor(self.allow_all)?),
            Subject::new(names::BARE, ServiceCall(OkService)),
        ];
        if self.allow_all {
            subjects.push(Subject::new(names::TWO_KEYS, TwoKeys::new(setup).await?));
            subjects.push(Subject::new(names::SHARED, Shared::new(setup).await?));
        }
        subjects.extend([
            Subject::new(names::POOLED, Pooled::new(setup, call)?),
            Subject::new(names::TOWER_RATE_LIMIT_REDIS, tower_rate_limit_redis(setup, self).await?),
            Subject::new(names::PING, Baseline::ping(setup).await?),
            Subject::new(names::BASELINE, Baseline::return_one(setup).await?),
        ]);
        Ok(subjects)
    }
}

async fn references_on_cluster(setup: &Setup) -> Result<Vec<Subject>, BoxError> {
    Ok(vec![
        Subject::new(names::SHARED, SharedCluster::new(setup).await?),
        Subject::new(names::BASELINE, ClusterBaseline::new(setup).await?),
    ])
}
