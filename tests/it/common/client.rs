use std::collections::BTreeMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, FromRedisValue, IntoConnectionInfo, RedisResult, ToRedisArgs,
    Value,
};

use super::server::Server;

/// A connection that sends nothing by itself, so that only what a test asks for is counted.
///
/// It is not retried, and gives up long after any limiter would have.
pub(crate) async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    let info = url.into_connection_info()?;
    let silent = info.redis_settings().clone().set_skip_set_lib_name();
    let info = info.set_redis_settings(silent);
    let patient = Some(Duration::from_secs(10));
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(patient).set_response_timeout(patient);
    Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await
}

/// What a test asks of a server, each on a connection of its own.
impl Server {
    /// Sends one command.
    ///
    /// # Panics
    /// When the answer is an error, or none.
    pub(crate) async fn command<A: ToRedisArgs>(&self, words: &[A]) -> Value {
        self.query(words).await
    }

    /// [`command`](Self::command) with the answer as a `T`.
    pub(crate) async fn query<T: FromRedisValue>(&self, words: &[impl ToRedisArgs]) -> T {
        match self.try_query(words).await {
            Ok(answer) => answer,
            Err(error) => panic!("port {}: {error}", self.port()),
        }
    }

    /// [`query`](Self::query) with the error as a value.
    pub(crate) async fn try_query<T: FromRedisValue>(
        &self,
        words: &[impl ToRedisArgs],
    ) -> RedisResult<T> {
        let mut connection = connect(&self.url()).await?;
        redis::Cmd::new().arg(words).query_async(&mut connection).await
    }

    /// The commands that the documentation of `RedisStore` says are needed on one server.
    pub(crate) const NEEDED: [&str; 7] =
        ["+evalsha", "+eval", "+time", "+get", "+set", "+pttl", "+del"];

    /// Makes `tollgate`, with the password `secret`, a user of these commands and no others, on the
    /// keys and channels that the documentation of `RedisStore` names.
    pub(crate) async fn grant(&self, commands: &[&str]) {
        let user = ["ACL", "SETUSER", "tollgate", "reset", "on", ">secret", "resetkeys"];
        let rights = ["~tollgate:*", "resetchannels", "-@all"];
        self.command(&[user.as_slice(), &rights, commands].concat()).await;
    }

    /// The fields of a section of `INFO`.
    pub(crate) async fn info(&self, section: &str) -> BTreeMap<String, String> {
        fields(&self.query::<String>(&["INFO", section]).await)
    }

    /// How often each command was called, in lower case, and since Redis 7 each subcommand by
    /// itself (`config|set`). Without `info`, which is how this is known.
    pub(crate) async fn command_stats(&self) -> BTreeMap<String, u64> {
        let stats = self.info("commandstats").await;
        let calls = stats.iter().map(|(name, stat)| {
            let name = name.strip_prefix("cmdstat_").expect("a name of a command");
            let calls = stat.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
            (name.to_owned(), calls.and_then(|calls| calls.parse().ok()).expect("a count"))
        });
        calls.filter(|(name, _)| name != "info").collect()
    }

    /// The server's clock.
    pub(crate) async fn time_micros(&self) -> u64 {
        let (seconds, micros) = self.query::<(u64, u64)>(&["TIME"]).await;
        seconds * 1_000_000 + micros
    }
}

/// The `name:value` lines of a reply.
pub(super) fn fields(reply: &str) -> BTreeMap<String, String> {
    let pairs = reply.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
