//! Several servers behind one address: a cluster that refuses calls for several slots, and a proxy that
//! routes a call by its first key.

use std::net::Ipv4Addr;
use std::time::Duration;

use deadpool_redis::{Config, Runtime};
use fleetlimit::{BlockList, FailureMode, Key, Limiter, Policy, Quota, RedisStore, Source};
use futures_util::future::join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::common::{BOUND, Cluster, Server, wait_until};
use crate::exact::{test_limiter, test_limiter_builder, uncached};
use crate::local::sends_nothing;
use crate::log::Log;

const KEYS: u32 = 100;

/// Returns how many calls the server has refused because of their slots.
async fn refused(server: &Server) -> u64 {
    let errors = server.info("errorstats").await;
    let count = errors.get("errorstat_CROSSSLOT").map(|count| count.replace("count=", ""));
    count.map_or(0, |count| count.parse().unwrap())
}

/// Returns a limiter that decides locally in an outage, with a timeout for a busy machine.
fn local_limiter(store: RedisStore, policy: impl Into<Policy>) -> Limiter {
    let builder = test_limiter_builder(store, policy).timeout(Duration::from_secs(2));
    builder.failure_mode(FailureMode::Local).cache_denials(Duration::ZERO).build().unwrap()
}

/// Checks all keys at once. Asserts that Redis allows each.
async fn check_all(limiter: &Limiter) {
    for decision in join_all((0..KEYS).map(|key| limiter.check(key))).await {
        let decision = decision.unwrap();
        assert!(decision.is_allowed() && decision.source() == Source::Store, "{decision:?}");
    }
}

/// A smoke test passes, because a check that is sent alone has its own call.
#[tokio::test]
async fn a_cluster_behind_one_endpoint_decides_checks_of_all_slots() {
    let server = Server::with_all_slots().await;
    let open = || RedisStore::open(server.url()).unwrap();
    let pool = || {
        let pool = Config::from_url(server.url()).create_pool(Some(Runtime::Tokio1));
        RedisStore::from_pool(pool.unwrap())
    };
    let stores = [open(), pool(), open().connections(3.try_into().unwrap())];
    for (number, store) in stores.into_iter().enumerate() {
        let store = store.key_prefix(format!("prefix{number}"));
        let (log, _guard) = Log::capture();
        let limiter = test_limiter(store, Quota::per_hour(3));
        let before = refused(&server).await;
        check_all(&limiter).await;
        let after = refused(&server).await;
        assert!((before + 1..=before + 2).contains(&after), "two batches can be in flight");
        check_all(&limiter).await;
        check_all(&limiter).await;
        assert_eq!(refused(&server).await, after, "the server is remembered");
        assert!(limiter.check(7).await.unwrap().is_denied(), "each check was charged once");
        let lines = log.events();
        let names = lines.iter().filter(|line| line.contains("a cluster behind one address"));
        assert_eq!(names.count(), 1, "{lines:#?}");
    }
}

#[tokio::test]
async fn a_cluster_behind_one_endpoint_that_was_announced_refuses_no_call() {
    let server = Server::with_all_slots().await;
    let store = RedisStore::open(server.url()).unwrap().one_key_per_call();
    let stores = [store.clone(), store.connections(3.try_into().unwrap()).key_prefix("other")];
    for store in stores {
        check_all(&test_limiter(store, Quota::per_hour(3))).await;
    }
    assert_eq!(refused(&server).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_processes_on_a_cluster_behind_one_endpoint_share_exactly_the_limit() {
    let server = Server::with_all_slots().await;
    let limiters: Vec<Limiter> = (0..3)
        .map(|_| uncached(RedisStore::open(server.url()).unwrap(), Quota::per_day(20)))
        .collect();
    let admitted = join_all((0..20).map(async |key: u32| {
        let checks = (0..10).flat_map(|_| &limiters).map(|limiter| limiter.check(key));
        let decisions = join_all(checks).await.into_iter().map(Result::unwrap);
        decisions.filter(|decision| decision.is_allowed()).count()
    }));
    assert_eq!(admitted.await, [20; 20]);
}

/// Several policies share a call, which has another script than the calls that it is split into.
#[tokio::test]
async fn charges_and_checks_of_several_policies_are_all_made_on_a_cluster_behind_one_endpoint() {
    let server = Server::with_all_slots().await;
    let store = RedisStore::open(server.url()).unwrap();
    let policy = |name| Policy::new(name).quota("permits", Quota::per_day(100));
    let limiter = |name| test_limiter(store.clone(), policy(name));
    let [one, two] = ["one", "two"].map(limiter);
    for limiter in [&one, &two] {
        let _ = limiter.peek("warm").await.unwrap();
    }
    let of_key = async |key: u32| {
        let charges = tokio::join!(one.charge(key, 3), two.charge(key, 4));
        charges.0.unwrap();
        charges.1.unwrap();
        let checks = tokio::join!(one.check_cost(key, 7), two.check_cost(key, 8));
        [checks.0, checks.1].map(|check| check.unwrap().remaining())
    };
    let remaining = join_all((0..50).map(of_key)).await;
    assert_eq!(remaining, [[90, 88]; 50]);
    assert!(refused(&server).await > 0, "the calls were for several slots");
}

/// The fleet, the block list, a reset, and the charges after an outage.
#[tokio::test]
async fn everything_else_works_on_a_cluster_behind_one_endpoint() {
    let server = Server::with_all_slots().await;
    let store = RedisStore::open(server.url()).unwrap();
    let blocks = BlockList::new(&store);
    blocks.block("api", &Key::from("a"), Duration::from_secs(60)).await.unwrap();
    blocks.refresh().await.unwrap();
    assert_eq!(blocks.list().len(), 1);

    let quota = Quota::per_day(10);
    let limiter = local_limiter(store, quota);
    let is_decided = async || limiter.check("warm").await.unwrap().source() == Source::Store;
    wait_until("Redis decides", BOUND, is_decided).await;
    wait_until("the instance is registered", BOUND, async || {
        let fields = server.query::<Vec<String>>(&["HKEYS", "fleetlimit:{fleet}"]).await;
        fields.iter().any(|field| field.parse::<u64>().is_ok())
    })
    .await;

    server.pause();
    wait_until("it decides locally", BOUND, async || sends_nothing(&limiter).await).await;
    for key in 0..KEYS {
        let decision = limiter.check_cost(key, 3).await.unwrap();
        assert!(decision.is_allowed() && decision.source() == Source::Local, "{decision:?}");
    }
    server.resume();
    let other = uncached(RedisStore::open(server.url()).unwrap(), quota);
    wait_until("all is charged", BOUND, async || {
        let standings = join_all((0..KEYS).map(|key| other.peek(key))).await;
        standings.into_iter().all(|standing| standing.unwrap().remaining() == 7)
    })
    .await;
    other.reset(0).await.unwrap();
    assert_eq!(other.peek(0).await.unwrap().remaining(), 10);
}

/// `open` reaches one node of a cluster, which has a part of the slots.
#[tokio::test]
async fn a_node_of_a_cluster_that_is_opened_alone_says_what_to_do() {
    let cluster = Cluster::start().await;
    let limiter = test_limiter(RedisStore::open(&*cluster.urls()[0]).unwrap(), Quota::per_day(10));
    let errors = join_all((0..KEYS).map(|key| limiter.check(key))).await;
    let errors: Vec<_> = errors.into_iter().filter_map(Result::err).collect();
    assert!(!errors.is_empty());
    for error in errors {
        assert!(error.to_string().contains("`RedisStore::open_cluster`"), "{error:?}");
        assert!(!error.is_transient());
    }
}

/// Two servers decide about a key if the call of a check is routed by the key of another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proxy_that_routes_by_the_first_key_does_not_double_the_limit() {
    const LIMIT: u64 = 10;
    let servers = [Server::start().await, Server::start().await];
    let url = route(servers.each_ref().map(Server::port)).await;
    let store = RedisStore::open(url).unwrap().one_key_per_call();
    let limiter = uncached(store.clone(), Quota::per_day(LIMIT));
    let mut admitted = [0; 20];
    for round in 0..30 {
        // The first key of a batch is another one in each round.
        let keys = (0..admitted.len()).map(|n| (n + round) % 20);
        for (key, decision) in
            join_all(keys.map(async |key| (key, limiter.check(key as u32).await.unwrap()))).await
        {
            admitted[key] += u64::from(decision.is_allowed());
        }
    }
    assert_eq!(admitted, [LIMIT; 20]);
    for server in &servers {
        assert!(server.query::<u64>(&["DBSIZE"]).await > 0, "the keys are on both servers");
    }
    everything_else_works_behind_a_proxy(store, &servers).await;
}

async fn everything_else_works_behind_a_proxy(store: RedisStore, servers: &[Server]) {
    let policy = Policy::new("local").quota("permits", Quota::per_day(10));
    let limiter = local_limiter(store.clone(), policy);
    limiter.charge("key", 4).await.unwrap();
    assert_eq!(limiter.peek("key").await.unwrap().remaining(), 6);
    limiter.reset("key").await.unwrap();
    assert_eq!(limiter.peek("key").await.unwrap().remaining(), 10);
    wait_until("the instance is registered", BOUND, async || {
        let mut registered = 0;
        for server in servers {
            registered += server.query::<u64>(&["EXISTS", "fleetlimit:{fleet}"]).await;
        }
        registered == 1
    })
    .await;
    let blocks = BlockList::new(&store);
    blocks.block("local", &Key::from("a"), Duration::from_secs(60)).await.unwrap();
    blocks.refresh().await.unwrap();
    assert_eq!(blocks.list().len(), 1);
}

/// Starts a proxy that divides keys among two servers, and routes each command by its first key. It does not look
/// at the others, like twemproxy. Returns its URL.
async fn route(ports: [u16; 2]) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(serve(client, ports));
        }
    });
    url
}

/// Serves one connection: a command at a time.
async fn serve(mut client: TcpStream, ports: [u16; 2]) {
    let mut servers = Vec::new();
    for port in ports {
        servers.push(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap());
    }
    let mut received = Vec::new();
    while let Ok(1..) = client.read_buf(&mut received).await {
        while let Some((command, length)) = parse(&received) {
            let sent: Vec<u8> = received.drain(..length).collect();
            let key = match command[0].to_ascii_uppercase().as_slice() {
                b"EVAL" | b"EVALSHA" => Some(&command[3]),
                b"DEL" => Some(&command[1]),
                // Such as HELLO: both have to know.
                _ => None,
            };
            let sum = key.map(|key| key.iter().map(|&byte| usize::from(byte)).sum::<usize>());
            let chosen = match sum {
                Some(sum) => &mut servers[sum % 2..=sum % 2],
                None => &mut servers[..],
            };
            let mut reply = Vec::new();
            for server in chosen {
                reply.clear();
                server.write_all(&sent).await.unwrap();
                while redis::parse_redis_value(&reply).is_err() {
                    assert!(server.read_buf(&mut reply).await.unwrap() > 0);
                }
            }
            if client.write_all(&reply).await.is_err() {
                return;
            }
        }
    }
}

/// Parses the first command of what was received. Returns its arguments, and its length in bytes.
pub(crate) fn parse(received: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let line = |at: usize| {
        let length = received.get(at..)?.windows(2).position(|end| end == b"\r\n")?;
        let number = str::from_utf8(&received[at + 1..at + length]).unwrap().parse().unwrap();
        Some((number, at + length + 2))
    };
    let (count, mut at): (usize, _) = line(0)?;
    let mut arguments = Vec::new();
    for _ in 0..count {
        let (length, start): (usize, _) = line(at)?;
        arguments.push(received.get(start..start + length)?.to_vec());
        at = start + length + 2;
    }
    (at <= received.len()).then_some((arguments, at))
}
