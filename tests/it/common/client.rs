//! Commands that a test sends to a server itself.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, FromRedisValue, IntoConnectionInfo, RedisResult, ToRedisArgs,
    Value,
};

use super::server::Server;

/// Opens a connection that sends no setup commands, so that the server counts only the commands of
/// a test. It is not retried. Its timeout is long, so that it does not fail on a busy machine.
pub(crate) async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    let info = url.into_connection_info()?;
    let settings = info.redis_settings().clone().set_skip_set_lib_name();
    let info = info.set_redis_settings(settings);
    let timeout = Some(Duration::from_secs(10));
    let config =
        AsyncConnectionConfig::new().set_connection_timeout(timeout).set_response_timeout(timeout);
    Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await
}

/// Commands. Each uses a new connection.
impl Server {
    /// Sends a command.
    ///
    /// # Panics
    /// If the command fails.
    pub(crate) async fn command<A: ToRedisArgs>(&self, args: &[A]) -> Value {
        self.query(args).await
    }

    /// Like [`command`](Self::command), with the reply as a `T`.
    pub(crate) async fn query<T: FromRedisValue>(&self, args: &[impl ToRedisArgs]) -> T {
        match self.try_query(args).await {
            Ok(reply) => reply,
            Err(error) => panic!("port {}: {error}", self.port()),
        }
    }

    /// Like [`query`](Self::query), but returns the error.
    pub(crate) async fn try_query<T: FromRedisValue>(
        &self,
        args: &[impl ToRedisArgs],
    ) -> RedisResult<T> {
        let mut connection = connect(&self.command_url()).await?;
        redis::Cmd::new().arg(args).query_async(&mut connection).await
    }

    /// The commands that `RedisStore` needs on a single server, according to its documentation.
    pub(crate) const REQUIRED_COMMANDS: [&str; 7] =
        ["+evalsha", "+eval", "+time", "+get", "+set", "+pttl", "+del"];

    /// Those that it needs in addition to register an instance.
    pub(crate) const FLEET_COMMANDS: [&str; 5] =
        ["+hmget", "+hset", "+hdel", "+hgetall", "+pexpire"];

    /// Creates or replaces the user `fleetlimit` with the password `secret`. It may run only these
    /// commands, on the keys and channels that the documentation of `RedisStore` names.
    pub(crate) async fn grant(&self, commands: &[&str]) {
        let user = ["ACL", "SETUSER", "fleetlimit", "reset", "on", ">secret", "resetkeys"];
        let rights = ["~fleetlimit:*", "resetchannels", "-@all"];
        self.command(&[user.as_slice(), &rights, commands].concat()).await;
    }

    /// Returns the fields of a section of `INFO`.
    pub(crate) async fn info(&self, section: &str) -> BTreeMap<String, String> {
        fields(&self.query::<String>(&["INFO", section]).await)
    }

    /// Returns the number of calls of each command, by its name in lower case. Redis 7 and later
    /// count subcommands separately (`config|set`). Leaves out `info`, which this method sends, and
    /// `config|get`, which Valkey 9 runs when it starts.
    pub(crate) async fn command_stats(&self) -> BTreeMap<String, u64> {
        let stats = self.info("commandstats").await;
        let calls = stats.iter().map(|(name, stat)| {
            let name = name.strip_prefix("cmdstat_").expect("the name of a command");
            let calls = stat.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
            (name.to_owned(), calls.and_then(|calls| calls.parse().ok()).expect("a count"))
        });
        calls.filter(|(name, _)| name != "info" && name != "config|get").collect()
    }

    /// Returns when a key expires, in milliseconds since 1970, or -1 or -2 as `PTTL` does.
    pub(crate) async fn expires_at(&self, key: &str) -> i64 {
        if let Ok(expires) = self.try_query(&["PEXPIRETIME", key]).await {
            return expires;
        }
        // Before Redis 7. A millisecond may end between the two calls.
        let script = "local ttl, time = redis.call('PTTL', KEYS[1]), redis.call('TIME')
            return ttl < 0 and ttl or time[1] * 1000 + math.floor(time[2] / 1000) + ttl";
        let mut last = None;
        loop {
            let expires: i64 = self.query(&["EVAL", script, "1", key]).await;
            if last.replace(expires) == Some(expires) {
                return expires;
            }
        }
    }

    /// Whether the server has a setting.
    pub(crate) async fn has_setting(&self, name: &str) -> bool {
        !self.query::<Vec<String>>(&["CONFIG", "GET", name]).await.is_empty()
    }

    /// Returns the server's clock.
    pub(crate) async fn time_micros(&self) -> u64 {
        let (seconds, micros) = self.query::<(u64, u64)>(&["TIME"]).await;
        seconds * 1_000_000 + micros
    }
}

/// Parses the `name:value` lines of a reply.
pub(super) fn fields(reply: &str) -> BTreeMap<String, String> {
    let pairs = reply.lines().filter_map(|line| line.split_once(':'));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}
