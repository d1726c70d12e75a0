//! The rows of the table: the load of each row, and the subjects that run under it.

use std::pin::Pin;
use std::time::Duration;

use ::fleetlimit::{MemoryStore, Policy, RedisStore};

use crate::load::{self, Load, Measurement};
use crate::setup::{Place, Setup};
use crate::subjects::{
    Baseline, BoxError, Bucket, ClusterBaseline, DirectCheck, ManyPolicies, OkService, Operation,
    Pooled, RedisCell, ServiceCall, Shared, SharedCluster, Throttlecrab, Trypema, TrypemaHybrid,
    TwoKeys, fleetlimit, governor, tower_rate_limit_redis,
};

pub(crate) mod names {
    pub(crate) const BARE: &str = "bare service";
    pub(crate) const PING: &str = "PING";
    pub(crate) const BASELINE: &str = "EVALSHA `return 1`";
    pub(crate) const REDIS: &str = "**fleetlimit, Redis**";
    pub(crate) const REDIS_POLICY_ON_DENIAL: &str = "fleetlimit, Redis, policy on denials only";
    pub(crate) const REDIS_NO_LAYER: &str = "fleetlimit, Redis, no layer";
    pub(crate) const REDIS_POLICIES: &str = "fleetlimit, Redis, no layer, 1,000 policies";
    pub(crate) const LEASES: &str = "**fleetlimit with leases**";
    pub(crate) const LEASES_NO_LAYER: &str = "fleetlimit with leases, no layer";
    pub(crate) const MEMORY: &str = "**fleetlimit, memory**";
    pub(crate) const MEMORY_NO_LAYER: &str = "fleetlimit, memory, no layer";
    pub(crate) const GOVERNOR: &str = "tower_governor";
    pub(crate) const TOWER_RATE_LIMIT_REDIS: &str = "tower-rate-limit-redis";
    pub(crate) const TRYPEMA: &str = "trypema, Redis, no layer";
    pub(crate) const TRYPEMA_HYBRID: &str = "trypema, hybrid, no layer";
    pub(crate) const THROTTLECRAB: &str = "throttlecrab, memory, no layer";
    pub(crate) const REDIS_CELL: &str = "redis-cell, no layer";
    pub(crate) const POOLED: &str = "script per check, deadpool";
    pub(crate) const SHARED: &str = "script per check, shared";
    pub(crate) const TWO_KEYS: &str = "two-key script per check";
}

pub(crate) const ONE_TASK: &str = "1 task, 10,000 keys";
pub(crate) const MANY_KEYS: &str = "256 tasks, 10,000 keys";
pub(crate) const ONE_KEY: &str = "256 tasks, 1 key";
pub(crate) const DENIED: &str = "256 tasks, 1 denied key";
pub(crate) const DISTANT: &str = "round trip of 30 ms, 1 task, 1 key";
pub(crate) const CLUSTER_ONE_KEY: &str = "cluster of 3, 256 tasks, 1 key";
pub(crate) const CLUSTER_MANY_KEYS: &str = "cluster of 3, 256 tasks, 10,000 keys";

/// A tenth of the time in which the bursts of [`Row::bucket`] refill.
const LEASE: Duration = Duration::from_secs(1);

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
            uses_redis: ![BARE, MEMORY, MEMORY_NO_LAYER, GOVERNOR, THROTTLECRAB].contains(&name),
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
    pub(crate) place: Place,
}

impl Row {
    pub(crate) const ALL: [Self; 7] = [
        Self::new(ONE_TASK, 1, 10_000, Place::Local),
        Self::new(MANY_KEYS, 256, 10_000, Place::Local),
        Self::new(ONE_KEY, 256, 1, Place::Local),
        Self { allow_all: false, ..Self::new(DENIED, 256, 1, Place::Local) },
        Self::new(DISTANT, 1, 1, Place::Distant),
        Self::new(CLUSTER_ONE_KEY, 256, 1, Place::Cluster),
        Self::new(CLUSTER_MANY_KEYS, 256, 10_000, Place::Cluster),
    ];

    const fn new(name: &'static str, tasks: u64, keys: u64, place: Place) -> Self {
        Self { name, tasks, keys, allow_all: true, place }
    }

    pub(crate) async fn subjects(&self, setup: &Setup) -> Result<Vec<Subject>, BoxError> {
        // The last reference, the baseline, runs just before the first subject that is compared with it.
        let mut subjects = match self.place {
            Place::Local => self.references(setup).await?,
            Place::Distant => self.references_at_distance(setup).await?,
            Place::Cluster => references_on_cluster(setup).await?,
        };
        subjects.extend(self.fleetlimit(setup)?);
        Ok(subjects)
    }

    /// The subjects of this crate.
    fn fleetlimit(&self, setup: &Setup) -> Result<Vec<Subject>, BoxError> {
        let policy =
            if self.allow_all { fleetlimit::allow_all } else { fleetlimit::deny_after_first };
        let store = match self.place {
            Place::Cluster => RedisStore::open_cluster(setup.cluster.urls())?,
            place => RedisStore::open(setup.url(place))?,
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
        if self.allow_all {
            let policy = Policy::new("leased").quota("rate", self.bucket().quota());
            let leased = fleetlimit::limiter_with_lease(store, policy, LEASE)?;
            subjects.push(Subject::new(names::LEASES, fleetlimit::layered(leased.clone())));
            subjects.push(Subject::new(names::LEASES_NO_LAYER, DirectCheck(leased)));
        }
        if self.place == Place::Local {
            let memory = fleetlimit::limiter(MemoryStore::new(), policy())?;
            subjects.push(Subject::new(names::MEMORY, fleetlimit::layered(memory.clone())));
            subjects.push(Subject::new(names::MEMORY_NO_LAYER, DirectCheck(memory)));
        }
        Ok(subjects)
    }

    /// The quota of leases, and of the crates that can have any. No row exhausts it.
    fn bucket(&self) -> Bucket {
        let per_second = 10_000_000 / self.keys as u32;
        Bucket { per_second, burst: 10 * per_second }
    }

    async fn references(&self, setup: &Setup) -> Result<Vec<Subject>, BoxError> {
        let call = if self.allow_all { &setup.allow_call } else { &setup.deny_call };
        let mut subjects = vec![
            Subject::new(names::GOVERNOR, governor(self.allow_all)?),
            Subject::new(names::BARE, ServiceCall(OkService)),
        ];
        if self.allow_all {
            subjects
                .push(Subject::new(names::TWO_KEYS, TwoKeys::new(setup, TwoKeys::BUCKET).await?));
            subjects.push(Subject::new(names::SHARED, Shared::new(setup).await?));
            let (url, bucket) = (&setup.server.url(), self.bucket());
            subjects.extend(trypema(url, bucket).await?);
            subjects.push(Subject::new(names::THROTTLECRAB, Throttlecrab::new(bucket)));
            if setup.has_redis_cell {
                subjects.push(Subject::new(names::REDIS_CELL, RedisCell::new(url, bucket).await?));
            }
        }
        subjects.extend([
            Subject::new(names::POOLED, Pooled::new(setup, call)?),
            Subject::new(names::TOWER_RATE_LIMIT_REDIS, tower_rate_limit_redis(setup, self).await?),
            Subject::new(names::PING, Baseline::ping(setup).await?),
            Subject::new(names::BASELINE, Baseline::return_one(setup, self.place).await?),
        ]);
        Ok(subjects)
    }

    async fn references_at_distance(&self, setup: &Setup) -> Result<Vec<Subject>, BoxError> {
        let mut subjects = Vec::from(trypema(&setup.url(self.place), self.bucket()).await?);
        let baseline = Baseline::return_one(setup, self.place).await?;
        subjects.push(Subject::new(names::BASELINE, baseline));
        Ok(subjects)
    }
}

async fn trypema(url: &str, bucket: Bucket) -> Result<[Subject; 2], BoxError> {
    Ok([
        Subject::new(names::TRYPEMA, Trypema::new(url, bucket).await?),
        Subject::new(names::TRYPEMA_HYBRID, TrypemaHybrid::new(url, bucket).await?),
    ])
}

async fn references_on_cluster(setup: &Setup) -> Result<Vec<Subject>, BoxError> {
    Ok(vec![
        Subject::new(names::SHARED, SharedCluster::new(setup).await?),
        Subject::new(names::BASELINE, ClusterBaseline::new(setup).await?),
    ])
}
