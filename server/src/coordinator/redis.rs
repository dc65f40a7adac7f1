//! The books in Redis: one connection, one scripted call a tick.
//!
//! The script is a Redis function where the server takes it (Redis 7 and later, with permission),
//! so that it is there after a failover too; else `EVALSHA`. All keys share one hash tag, so the
//! books of one cluster lie on one node of a Redis Cluster, which any other node names.

use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, RedisError, Script, ServerErrorKind, Value, cmd,
};
use futures_util::future::{BoxFuture, FutureExt};

use super::address::Target;
use super::{Call, Coordinator, Member, Peer, Reply, Trouble, record};

const SCRIPT: &str = include_str!("tick.lua");

/// How the script is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Function,
    Evaluated,
}

/// The books of one cluster in Redis.
#[derive(Debug)]
pub struct Redis {
    target: Target,
    keys: [String; 4],
    function: String,
    evaluated: Script,
    connection: Option<(MultiplexedConnection, Way)>,
    /// Names for servers that do not tell theirs.
    unnamed: u64,
}

impl Redis {
    /// Not connected yet. Keys begin with `prefix`; `cluster` names the books.
    #[must_use]
    pub fn new(target: Target, prefix: &str, cluster: &str) -> Redis {
        // There is none by default, as only one of them is built in. A second call changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let keys =
            ["live", "state", "leases", "epoch"].map(|key| format!("{prefix}{{{cluster}}}:{key}"));
        let evaluated = Script::new(&format!("{SCRIPT}\nreturn tick(KEYS, ARGV)\n"));
        let function = format!("sluice_tick_{}", &evaluated.get_hash()[..12]);
        Redis { target, keys, function, evaluated, connection: None, unnamed: 0 }
    }

    async fn open(&mut self) -> Result<Peer, RedisError> {
        self.connection = None;
        let info = match &self.target {
            Target::Memory => ConnectionAddr::Tcp(String::new(), 0).into_connection_info()?,
            Target::Server(info) => info.clone(),
            Target::Sentinels { sentinels, service, primary } => {
                find_primary(sentinels, service, primary).await?
            }
        };
        let mut connection = connect_to_owner(info, &self.keys[3]).await?;
        // Who may not ask is asked to keep to what is held after each new connection.
        let facts: String = cmd("INFO").query_async(&mut connection).await.unwrap_or_default();
        let fact =
            |name: &str| facts.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        if fact("role") == Some("slave") {
            return Err((ErrorKind::Client, "this server is a replica, not the primary").into());
        }
        self.unnamed += 1;
        let server = fact("run_id").map_or(self.unnamed, |id| record::number(id.trim()));
        let may_evict = fact("maxmemory_policy").is_some_and(|policy| policy != "noeviction");
        let evicts = may_evict && fact("maxmemory") != Some("0");
        self.connection = Some((connection, Way::Function));
        Ok(Peer { server, evicts })
    }

    async fn call(&mut self, call: &Call) -> Result<Reply, RedisError> {
        let Some((connection, way)) = &mut self.connection else {
            return Err((ErrorKind::Io, "not connected").into());
        };
        if *way == Way::Function {
            let mut called = cmd("FCALL");
            called.arg(&self.function);
            let outcome = write(called, &self.keys, call).query_async(connection).await;
            match outcome {
                Err(error) if is_unknown(&error) => {
                    if !load(connection, &self.function).await {
                        *way = Way::Evaluated;
                    }
                }
                outcome => return outcome.and_then(|value| read(&value)),
            }
        }
        let with = |command: &str, script: &str| {
            let mut called = cmd(command);
            called.arg(script);
            write(called, &self.keys, call)
        };
        let value = match way {
            Way::Function => with("FCALL", &self.function).query_async(connection).await?,
            Way::Evaluated => {
                let hash = self.evaluated.get_hash();
                match with("EVALSHA", hash).query_async(connection).await {
                    Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                        let whole = format!("{SCRIPT}\nreturn tick(KEYS, ARGV)\n");
                        with("EVAL", &whole).query_async(connection).await?
                    }
                    outcome => outcome?,
                }
            }
        };
        read(&value)
    }

    fn trouble(&mut self, error: &RedisError) -> Trouble {
        self.connection = None;
        trouble(error)
    }
}

impl Coordinator for Redis {
    fn connect(&mut self) -> BoxFuture<'_, Result<Peer, Trouble>> {
        async move {
            let opened = self.open().await;
            opened.map_err(|error| trouble(&error))
        }
        .boxed()
    }

    fn tick<'a>(&'a mut self, call: &'a Call) -> BoxFuture<'a, Result<Reply, Trouble>> {
        async move {
            let answered = self.call(call).await;
            answered.map_err(|error| self.trouble(&error))
        }
        .boxed()
    }
}

/// One connection; who waits for it has a patience of its own.
async fn connect(info: ConnectionInfo) -> Result<MultiplexedConnection, RedisError> {
    const LONGEST: Duration = Duration::from_secs(5);
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(LONGEST))
        .set_response_timeout(Some(LONGEST));
    Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await
}

/// A connection to the node that has `key`, which others of a Redis Cluster name.
async fn connect_to_owner(
    mut info: ConnectionInfo,
    key: &str,
) -> Result<MultiplexedConnection, RedisError> {
    const HOPS: usize = 3;
    for _ in 0..HOPS {
        let mut connection = connect(info.clone()).await?;
        let asked: Result<Value, RedisError> =
            cmd("GET").arg(key).query_async(&mut connection).await;
        // Whatever else is wrong is told by the first call.
        let Some((host, port)) = asked.err().as_ref().and_then(owner) else {
            return Ok(connection);
        };
        info = elsewhere(&info, host, port);
    }
    Err((ErrorKind::Client, "the nodes of the cluster name each other as owners of a key").into())
}

/// Who has a key, by the answer of a node that has not. A node that does not know its own address
/// names the port alone.
fn owner(error: &RedisError) -> Option<(Option<String>, u16)> {
    if error.kind() != ErrorKind::Server(ServerErrorKind::Moved) {
        return None;
    }
    let (node, _slot) = error.redirect_node()?;
    let (host, port) = node.rsplit_once(':')?;
    let host = Some(host.to_owned()).filter(|host| !matches!(host.as_str(), "" | "?"));
    Some((host, port.parse().ok()?))
}

/// The same at another port, and another host if there is one.
fn elsewhere(info: &ConnectionInfo, host: Option<String>, port: u16) -> ConnectionInfo {
    let mut addr = info.addr().clone();
    match &mut addr {
        ConnectionAddr::Tcp(h, p) | ConnectionAddr::TcpTls { host: h, port: p, .. } => {
            *p = port;
            if let Some(host) = host {
                *h = host;
            }
        }
        _ => {}
    }
    info.clone().set_addr(addr)
}

/// Asks one sentinel after the other.
async fn find_primary(
    sentinels: &[ConnectionAddr],
    service: &str,
    primary: &ConnectionInfo,
) -> Result<ConnectionInfo, RedisError> {
    let mut last = RedisError::from((ErrorKind::EmptySentinelList, "no sentinel is named"));
    for sentinel in sentinels {
        let asked = async {
            let mut connection = connect(sentinel.clone().into_connection_info()?).await?;
            let mut question = cmd("SENTINEL");
            question.arg("GET-MASTER-ADDR-BY-NAME").arg(service);
            let found: Option<(String, u16)> = question.query_async(&mut connection).await?;
            found.ok_or_else(|| {
                let what = "the sentinels do not know this service";
                (ErrorKind::MasterNameNotFoundBySentinel, what).into()
            })
        };
        match asked.await {
            Ok((host, port)) => return Ok(elsewhere(primary, Some(host), port)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Whether the function is not there, or functions are unknown here or forbidden.
fn is_unknown(error: &RedisError) -> bool {
    let text = error.to_string().to_lowercase();
    ["function not found", "unknown command", "noperm", "no permission", "no permissions"]
        .iter()
        .any(|phrase| text.contains(phrase))
}

/// Brings the function to the server; whether it is there now.
async fn load(connection: &mut MultiplexedConnection, function: &str) -> bool {
    let library =
        format!("#!lua name={function}\n{SCRIPT}\nredis.register_function('{function}', tick)\n");
    let loaded: Result<Value, RedisError> =
        cmd("FUNCTION").arg("LOAD").arg(library).query_async(connection).await;
    // Somebody else may have been faster.
    loaded.map_or_else(|error| error.to_string().contains("already exists"), |_| true)
}

/// The arguments, in the order of `tick.lua`.
fn write(mut command: Cmd, keys: &[String; 4], call: &Call) -> Cmd {
    command.arg(keys.len()).arg(keys).arg(&*call.member).arg(call.seq).arg(call.epoch);
    command.arg(call.life_ms).arg(u8::from(call.leaves)).arg(&call.record);
    for claim in &call.claims {
        command.arg(&claim.tenant.to_be_bytes()[..]).arg(claim.cap).arg(claim.held);
        command.arg(claim.want).arg(claim.demand);
    }
    command
}

fn read(value: &Value) -> Result<Reply, RedisError> {
    let reply = || {
        let [now, epoch, steady, stale, grants, members] = array(value)? else { return None };
        let grants = array(grants)?.iter().map(|units| u32::try_from(number(units)?).ok());
        let member = |value: &Value| {
            let [name, left, record, leases] = array(value)? else { return None };
            Some(Member {
                name: String::from_utf8_lossy(bytes(name)?).into(),
                expires_in_ms: number(left)?,
                record: bytes(record)?.to_vec(),
                leases: bytes(leases)?.to_vec(),
            })
        };
        Some(Reply {
            now_ms: number(now)?,
            epoch: std::str::from_utf8(bytes(epoch)?).ok()?.parse().ok()?,
            steady: number(steady)? == 1,
            stale: number(stale)? == 1,
            grants: grants.collect::<Option<_>>()?,
            members: array(members)?.iter().map(member).collect::<Option<_>>()?,
        })
    };
    let strange = || (ErrorKind::UnexpectedReturnType, "the script's answer is not ours").into();
    reply().ok_or_else(strange)
}

const fn array(value: &Value) -> Option<&[Value]> {
    match value {
        Value::Array(items) => Some(items.as_slice()),
        _ => None,
    }
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => Some(u64::try_from(*number).unwrap_or(0)),
        _ => None,
    }
}

fn trouble(error: &RedisError) -> Trouble {
    let denied = error.kind() == ErrorKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"));
    let text = error.to_string();
    if text.contains("invalid peer certificate") {
        return Trouble::Denied(format!("{text}; SSL_CERT_FILE=ca.pem names its root"));
    }
    if denied { Trouble::Denied(text) } else { Trouble::Down(text) }
}
