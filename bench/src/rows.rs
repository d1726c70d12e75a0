//! The rows of the table: which load, and which subjects under it.

use std::pin::Pin;

use ::tollgate::MemoryStore;

use crate::load::{self, Load, Slice};
use crate::stage::Stage;
use crate::subjects::{
    ClusterReturnOne, Fault, Floor, Hello, OnCluster, Pooled, Shared, Subject, Through, TwoKeys,
    governor, tollgate, tower_rate_limit_redis,
};

pub(crate) mod names {
    pub(crate) const BARE: &str = "the service alone";
    pub(crate) const PING: &str = "PING";
    pub(crate) const FLOOR: &str = "EVALSHA `return 1`";
    pub(crate) const REDIS: &str = "**tollgate, Redis**";
    pub(crate) const REDIS_ALONE: &str = "tollgate, Redis, no layer";
    pub(crate) const MEMORY: &str = "**tollgate, memory**";
    pub(crate) const MEMORY_ALONE: &str = "tollgate, memory, no layer";
    pub(crate) const GOVERNOR: &str = "tower_governor";
    pub(crate) const TOWER_RATE_LIMIT_REDIS: &str = "tower-rate-limit-redis";
    pub(crate) const POOLED: &str = "script per check, deadpool";
    pub(crate) const SHARED: &str = "script per check, shared";
    pub(crate) const TWO_KEYS: &str = "two-key script per check";
}

pub(crate) const ONE_TASK: &str = "1 task, 10,000 keys";
pub(crate) const KEYS: &str = "256 tasks, 10,000 keys";
pub(crate) const ONE_KEY: &str = "256 tasks, 1 key";
pub(crate) const DENIED: &str = "256 tasks, 1 denied key";
pub(crate) const CLUSTER_ONE_KEY: &str = "cluster of 3, 256 tasks, 1 key";
pub(crate) const CLUSTER_KEYS: &str = "cluster of 3, 256 tasks, 10,000 keys";

/// A subject, ready to be run under loads.
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    pub(crate) uses_redis: bool,
    /// Whether it decides, so that its verdicts must be those of the row.
    pub(crate) limits: bool,
    run: Box<dyn Fn(Load) -> Turn + Sync>,
}

type Turn = Pin<Box<dyn Future<Output = Result<Slice, Fault>>>>;

impl Contestant {
    pub(crate) fn new(name: &'static str, subject: impl Subject + Sync) -> Self {
        use names::*;
        Self {
            name,
            uses_redis: ![BARE, MEMORY, MEMORY_ALONE, GOVERNOR].contains(&name),
            limits: ![BARE, PING, FLOOR, POOLED, SHARED].contains(&name),
            run: Box::new(move |load| Box::pin(load::run(subject.clone(), load))),
        }
    }

    pub(crate) async fn run(&self, load: Load) -> Result<Slice, Fault> {
        (self.run)(load).await.map_err(|fault| format!("{}: {fault}", self.name).into())
    }
}

pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) tasks: u64,
    pub(crate) keys: u64,
    pub(crate) is_open: bool,
    pub(crate) on_cluster: bool,
}

impl Row {
    pub(crate) const ALL: [Self; 6] = [
        Self { name: ONE_TASK, tasks: 1, keys: 10_000, is_open: true, on_cluster: false },
        Self { name: KEYS, tasks: 256, keys: 10_000, is_open: true, on_cluster: false },
        Self { name: ONE_KEY, tasks: 256, keys: 1, is_open: true, on_cluster: false },
        Self { name: DENIED, tasks: 256, keys: 1, is_open: false, on_cluster: false },
        Self { name: CLUSTER_ONE_KEY, tasks: 256, keys: 1, is_open: true, on_cluster: true },
        Self { name: CLUSTER_KEYS, tasks: 256, keys: 10_000, is_open: true, on_cluster: true },
    ];

    pub(crate) async fn contestants(&self, stage: &Stage) -> Result<Vec<Contestant>, Fault> {
        if self.on_cluster { on_cluster(stage).await } else { self.on_one_server(stage).await }
    }

    async fn on_one_server(&self, stage: &Stage) -> Result<Vec<Contestant>, Fault> {
        let policy = if self.is_open { tollgate::open } else { tollgate::shut };
        let call = if self.is_open { &stage.open } else { &stage.shut };
        let redis = tollgate::limiter(tollgate::on(&stage.server)?, policy())?;
        let memory = tollgate::limiter(MemoryStore::new(), policy())?;
        let mut all = vec![
            Contestant::new(names::PING, Floor::ping(stage).await?),
            Contestant::new(names::FLOOR, Floor::return_one(stage).await?),
            Contestant::new(names::REDIS, tollgate::layered(redis.clone())),
            Contestant::new(names::REDIS_ALONE, tollgate::Alone(redis)),
            Contestant::new(
                names::TOWER_RATE_LIMIT_REDIS,
                tower_rate_limit_redis(stage, self).await?,
            ),
            Contestant::new(names::POOLED, Pooled::new(stage, call)?),
        ];
        if self.is_open {
            all.push(Contestant::new(names::SHARED, Shared::new(stage).await?));
            all.push(Contestant::new(names::TWO_KEYS, TwoKeys::new(stage).await?));
        }
        all.extend([
            Contestant::new(names::BARE, Through(Hello)),
            Contestant::new(names::MEMORY, tollgate::layered(memory.clone())),
            Contestant::new(names::MEMORY_ALONE, tollgate::Alone(memory)),
            Contestant::new(names::GOVERNOR, governor(self.is_open)?),
        ]);
        Ok(all)
    }
}

async fn on_cluster(stage: &Stage) -> Result<Vec<Contestant>, Fault> {
    let limiter = tollgate::limiter(tollgate::on_cluster(&stage.cluster)?, tollgate::open())?;
    Ok(vec![
        Contestant::new(names::FLOOR, ClusterReturnOne::new(stage).await?),
        Contestant::new(names::REDIS, tollgate::layered(limiter.clone())),
        Contestant::new(names::REDIS_ALONE, tollgate::Alone(limiter)),
        Contestant::new(names::SHARED, OnCluster::new(stage).await?),
    ])
}
