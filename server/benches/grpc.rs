//! Checks per second over gRPC, against a bare service that answers OK, and against a naive one that
//! calls a script in Redis for each request. `make bench-server` runs it, with `redis-server`.
//!
//! Each subject is a process of its own. The client is this one, on the same machine, so all of them
//! share its processors. It writes and reads HTTP/2 without a gRPC library, because one takes longer
//! than the service does, and that time would hide the differences between the subjects.

use std::error::Error;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use h2::client::SendRequest;
use http::Uri;
use prost::Message;
use prost::bytes::{BufMut, Bytes, BytesMut};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const STREAMS: [usize; 3] = [1, 64, 512];
/// With most streams: the subject, the one it is compared with, and the least ratio of their rates.
const TARGETS: [(usize, usize, f64); 3] = [(1, 0, 0.8), (2, 0, 0.6), (2, 3, 2.0)];
/// As Envoy has one for each of its workers.
const CONNECTIONS: usize = 2;
const KEYS: u64 = 10_000;
const ROUNDS: usize = 5;
const SLICE: Duration = Duration::from_millis(1_500);
const WARM_UP: Duration = Duration::from_millis(300);

const SETTINGS: &str = "
policies: { api: { requests: 1000000/s } }
domains: [domain.yaml]
checks: { timeout: 1s }
";
const DOMAIN: &str = "domain: bench\ndescriptors: [{ key: user, policy: api }]\n";

/// That of fleetlimit-server, so that the subjects differ only in what they do.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["bare"] => serve(Bare).await,
        ["naive", url] => serve(Naive::new(url).await?).await,
        _ => compare().await,
    }
}

/// Answers OK.
struct Bare;

#[tonic::async_trait]
impl RateLimitService for Bare {
    async fn should_rate_limit(
        &self,
        _: Request<RateLimitRequest>,
    ) -> std::result::Result<Response<RateLimitResponse>, Status> {
        Ok(Response::new(ok()))
    }
}

fn ok() -> RateLimitResponse {
    let status = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    RateLimitResponse {
        overall_code: Code::Ok.into(),
        statuses: vec![status],
        ..RateLimitResponse::default()
    }
}

/// One script call for each request, on a connection of a pool.
struct Naive {
    pool: deadpool_redis::Pool,
    script: redis::Script,
}

impl Naive {
    async fn new(url: &str) -> Result<Self> {
        let config = deadpool_redis::Config::from_url(url);
        let pool = config.create_pool(Some(deadpool_redis::Runtime::Tokio1))?;
        let script = redis::Script::new(
            "local n = redis.call('INCRBY', KEYS[1], ARGV[1])
            if n == tonumber(ARGV[1]) then redis.call('PEXPIRE', KEYS[1], 1000) end
            return n",
        );
        Ok(Self { pool, script })
    }
}

#[tonic::async_trait]
impl RateLimitService for Naive {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> std::result::Result<Response<RateLimitResponse>, Status> {
        let unavailable = |error: &dyn Error| Status::unavailable(error.to_string());
        let mut connection = self.pool.get().await.map_err(|error| unavailable(&error))?;
        let key = &request.get_ref().descriptors[0].entries[0].value;
        let mut call = self.script.key(key);
        let count: u64 = call
            .arg(1)
            .invoke_async(&mut *connection)
            .await
            .map_err(|error| unavailable(&error))?;
        if count > 1_000_000 {
            return Err(Status::resource_exhausted("over the limit"));
        }
        Ok(Response::new(ok()))
    }
}

async fn serve(service: impl RateLimitService) -> Result<()> {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse()?)?.with_nodelay(Some(true));
    eprintln!(" listening grpc={} ", incoming.local_addr()?);
    Server::builder()
        .add_service(RateLimitServiceServer::new(service))
        .serve_with_incoming(incoming)
        .await?;
    Ok(())
}

/// A process that is killed at the end.
struct Process(Child);

impl Process {
    /// The processor time that it has used. The kernel counts in hundredths of a second.
    fn cpu(&self) -> Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id()))?;
        // The name of the program, in parentheses, may have spaces.
        let fields = stat.rsplit(')').next().unwrap_or_default().split(' ');
        let ticks: std::result::Result<u32, _> =
            fields.skip(12).take(2).map(str::parse::<u32>).sum();
        Ok(Duration::from_millis(10) * ticks?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Subject {
    name: &'static str,
    address: SocketAddr,
    process: Process,
}

impl Subject {
    async fn start(name: &'static str, command: &mut Command) -> Result<Self> {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let stderr = child.stderr.take().ok_or("no standard error")?;
        let process = Process(child);
        let mut lines = BufReader::new(stderr).lines();
        let listening = loop {
            let line = lines.next().ok_or("it has ended")??;
            if line.contains(" listening ") {
                break line;
            }
        };
        let address = listening.split(" grpc=").nth(1).and_then(|rest| rest.split(' ').next());
        let address: SocketAddr = address.ok_or("no address")?.parse()?;
        // The pipe has to stay open and empty.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self { name, address, process })
    }

    async fn measure(&self, streams: usize, redis: &Process) -> Result<Measured> {
        // New ones, because fleetlimit-server ends connections without requests.
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(Connection::open(self.address).await?);
        }
        let (cpu, redis_cpu) = (self.process.cpu()?, redis.cpu()?);
        let random = Arc::new(AtomicU64::new(1));
        let start = Instant::now();
        let tasks: Vec<_> = (0..streams)
            .map(|n| {
                let connection = connections[n % CONNECTIONS].clone();
                let random = random.clone();
                tokio::spawn(async move {
                    let mut times = Vec::new();
                    while start.elapsed() < WARM_UP + SLICE {
                        let key = random.fetch_add(7_919, Ordering::Relaxed) % KEYS;
                        let before = Instant::now();
                        connection.check(request(key)).await?;
                        if start.elapsed() > WARM_UP {
                            times.push(before.elapsed());
                        }
                    }
                    Ok::<_, CheckError>(times)
                })
            })
            .collect();
        let mut times = Vec::new();
        for task in tasks {
            times.extend(task.await?.map_err(|error| error.to_string())?);
        }
        times.sort_unstable();
        let quantile = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        let rate = times.len() as f64 / SLICE.as_secs_f64();
        let checks = rate * (WARM_UP + SLICE).as_secs_f64();
        let per_check = |before: Duration, now: Duration| (now - before).div_f64(checks);
        Ok(Measured {
            rate,
            p50: quantile(0.5),
            p99: quantile(0.99),
            cpu: per_check(cpu, self.process.cpu()?),
            redis_cpu: per_check(redis_cpu, redis.cpu()?),
        })
    }
}

#[derive(Clone)]
struct Connection {
    requests: SendRequest<Bytes>,
    uri: Uri,
}

type CheckError = Box<dyn Error + Send + Sync>;

impl Connection {
    async fn open(address: SocketAddr) -> Result<Self> {
        let socket = tokio::net::TcpStream::connect(address).await?;
        socket.set_nodelay(true)?;
        // With the default window, many small replies at once pass for an attack.
        let mut builder = h2::client::Builder::new();
        let builder = builder.initial_connection_window_size(1 << 20);
        let (requests, connection) = builder.handshake(socket).await?;
        tokio::spawn(connection);
        let path = "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
        Ok(Self { requests, uri: format!("http://{address}/{path}").parse()? })
    }

    /// Fails unless the check is allowed.
    async fn check(&self, message: Bytes) -> std::result::Result<(), CheckError> {
        let request = http::Request::post(self.uri.clone())
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        let mut requests = self.requests.clone().ready().await?;
        let (response, mut stream) = requests.send_request(request, false)?;
        stream.send_data(message, true)?;
        let mut body = response.await?.into_body();
        let mut reply = BytesMut::new();
        while let Some(data) = body.data().await.transpose()? {
            body.flow_control().release_capacity(data.len())?;
            reply.extend_from_slice(&data);
        }
        let trailers = body.trailers().await?.ok_or("no trailers")?;
        if trailers.get("grpc-status").is_none_or(|status| status != "0") {
            return Err(format!("{trailers:?}").into());
        }
        let code = RateLimitResponse::decode(&reply[PREFIX..])?.overall_code();
        if code == Code::Ok { Ok(()) } else { Err(format!("{code:?}").into()) }
    }
}

struct Measured {
    rate: f64,
    /// Processor time per check, of the server and of Redis.
    cpu: Duration,
    redis_cpu: Duration,
    p50: Duration,
    p99: Duration,
}

impl Measured {
    /// Without that of the client, which is the same for all subjects.
    fn all_cpu(&self) -> f64 {
        (self.cpu + self.redis_cpu).as_secs_f64()
    }
}

/// The bytes before a message of gRPC: whether it is compressed, and its length.
const PREFIX: usize = 5;

fn request(key: u64) -> Bytes {
    let entry = Entry { key: "user".into(), value: format!("user-{key}") };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    let request =
        RateLimitRequest { domain: "bench".into(), descriptors: vec![descriptor], hits_addend: 1 };
    let len = request.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + len);
    bytes.put_u8(0);
    bytes.put_u32(len as u32);
    bytes.extend_from_slice(&request.encode_to_vec());
    bytes.freeze()
}

async fn compare() -> Result<()> {
    let directory = tempfile::tempdir()?;
    std::fs::write(directory.path().join("settings.yaml"), SETTINGS)?;
    std::fs::write(directory.path().join("domain.yaml"), DOMAIN)?;
    let (redis, url) = redis(directory.path())?;
    let this = std::env::current_exe()?;
    let fleetlimit = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fleetlimit-server"));
        command.arg("--config").arg(directory.path().join("settings.yaml"));
        command.args(["--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        command.env_remove("REDIS_URL");
        command
    };
    let subjects = [
        Subject::start("bare tonic", Command::new(&this).arg("bare")).await?,
        Subject::start("fleetlimit-server, memory", &mut fleetlimit()).await?,
        Subject::start("fleetlimit-server, Redis", fleetlimit().env("REDIS_URL", &url)).await?,
        Subject::start("naive, Redis", Command::new(&this).args(["naive", &url])).await?,
    ];
    println!(
        "| streams | subject | checks/s | ratio to bare | to naive | p50 | p99 | CPU per check | of Redis | naive by CPU |"
    );
    println!("|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|");
    let mut missed = Vec::new();
    for streams in STREAMS {
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let mut round = Vec::new();
            for subject in &subjects {
                round.push(subject.measure(streams, &redis).await?);
            }
            rounds.push(round);
        }
        let median = |value: &dyn Fn(&[Measured]) -> f64| {
            let mut values: Vec<_> = rounds.iter().map(|round| value(round)).collect();
            values.sort_by(f64::total_cmp);
            values[ROUNDS / 2]
        };
        for (index, subject) in subjects.iter().enumerate() {
            println!(
                "| {streams} | {} | {:.0} | {:.2} | {:.2} | {:.2} ms | {:.2} ms | {:.1} us | {:.1} us | {:.2} |",
                subject.name,
                median(&|round| round[index].rate),
                median(&|round| round[index].rate / round[0].rate),
                median(&|round| round[index].rate / round[3].rate),
                median(&|round| 1e3 * round[index].p50.as_secs_f64()),
                median(&|round| 1e3 * round[index].p99.as_secs_f64()),
                median(&|round| 1e6 * round[index].cpu.as_secs_f64()),
                median(&|round| 1e6 * round[index].redis_cpu.as_secs_f64()),
                median(&|round| round[3].all_cpu() / round[index].all_cpu()),
            );
        }
        for (index, other, least) in TARGETS {
            let ratio = median(&|round| round[index].rate / round[other].rate);
            if Some(&streams) == STREAMS.last() && ratio < least {
                let [name, other] = [index, other].map(|index| subjects[index].name);
                missed.push(format!("{name} / {other}: {ratio:.3}, less than {least}"));
            }
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(missed.join("; ").into()) }
}

fn redis(directory: &std::path::Path) -> Result<(Process, String)> {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let child = Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--dir"])
        .arg(directory)
        .stdout(Stdio::null())
        .spawn()?;
    let process = Process(child);
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok((process, format!("redis://127.0.0.1:{port}")))
}
