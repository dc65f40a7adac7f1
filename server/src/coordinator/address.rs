//! Where replicas meet, as it is written in a flag.

use std::fmt;
use std::str::FromStr;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const MEMORY: &str = "memory";
const SENTINEL: &str = "+sentinel://";

/// `memory`, or a URL of Redis. Shown without its password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(String);

/// What an address means.
#[derive(Clone, Debug)]
pub enum Target {
    /// Nowhere: this replica is alone.
    Memory,
    /// A server, or any node of a cluster.
    Server(ConnectionInfo),
    /// The primary of a service that these sentinels watch over.
    Sentinels {
        /// Where to ask.
        sentinels: Vec<ConnectionAddr>,
        /// For which service.
        service: String,
        /// How to connect to its primary, whose address is still to be found.
        primary: ConnectionInfo,
    },
}

impl Default for Address {
    fn default() -> Address {
        Address(MEMORY.to_owned())
    }
}

impl Address {
    /// What it means. A password that is given apart goes before the one in the URL.
    ///
    /// # Errors
    /// One line that says what is wrong with it.
    pub fn target(&self, password: Option<&str>) -> Result<Target, String> {
        if self.0 == MEMORY {
            return Ok(Target::Memory);
        }
        let read = |url: &str| {
            let info = url.into_connection_info().map_err(|error| format!("{self}: {error}"))?;
            match info.addr() {
                ConnectionAddr::TcpTls { insecure: true, .. } => Err(format!(
                    "{self}: certificates are always checked; SSL_CERT_FILE=ca.pem names their root"
                )),
                _ => Ok(info),
            }
        };
        let with_password = |info: ConnectionInfo| {
            let Some(password) = password else { return info };
            let settings = info.redis_settings().clone().set_password(password);
            info.set_redis_settings(settings)
        };
        let Some((scheme, rest)) = self.0.split_once(SENTINEL) else {
            return Ok(Target::Server(with_password(read(&self.0)?)));
        };
        let (user, rest) = rest.rsplit_once('@').map_or(("", rest), |(user, rest)| (user, rest));
        let mut parts = rest.splitn(3, '/');
        let nodes = parts.next().unwrap_or("");
        let service = parts.next().filter(|service| !service.is_empty());
        let service = service.ok_or_else(|| {
            format!("{self}: name the service behind the sentinels, as in HOST:26379/mymaster")
        })?;
        let db = parts.next().unwrap_or("");
        let at = if user.is_empty() { "" } else { "@" };
        let of = |node: &str, port: u16| {
            let node = if node.contains(':') { node.into() } else { format!("{node}:{port}") };
            let url = format!("{scheme}://{user}{at}{node}/{db}");
            read(&url)
        };
        let sentinels: Result<Vec<_>, String> =
            nodes.split(',').map(|node| Ok(of(node, 26_379)?.addr().clone())).collect();
        let primary = with_password(of(nodes.split(',').next().unwrap_or(""), 26_379)?);
        Ok(Target::Sentinels { sentinels: sentinels?, service: service.to_owned(), primary })
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let address = Address(text.to_owned());
        let known = ["redis://", "rediss://", "redis+sentinel://", "rediss+sentinel://"];
        if text != MEMORY && !known.iter().any(|scheme| text.starts_with(scheme)) {
            return Err(format!("must be `memory` or begin with one of: {}", known.join(", ")));
        }
        address.target(None).map(|_| address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((scheme, rest)) = self.0.split_once("://") else { return f.write_str(&self.0) };
        let Some((user, place)) = rest.rsplit_once('@') else { return f.write_str(&self.0) };
        let user = user.split(':').next().unwrap_or("");
        write!(f, "{scheme}://{user}:***@{place}")
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Address, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(|error| serde::de::Error::custom(format!("coordinator: {error}")))
    }
}

/// For [`crate::config::Config`]: as it is shown, without a password.
///
/// # Errors
/// Those of the serializer.
pub fn serialize_shown<S: Serializer>(address: &Address, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Target {
        text.parse::<Address>().and_then(|address| address.target(None)).expect(text)
    }

    #[test]
    fn urls_of_every_kind_are_read() {
        assert!(matches!(target("memory"), Target::Memory));
        let Target::Server(info) = target("redis://me:se%40cret@example:7000/3") else { panic!() };
        assert_eq!(info.addr(), &ConnectionAddr::Tcp("example".into(), 7000));
        let settings = info.redis_settings();
        assert_eq!((settings.username(), settings.password()), (Some("me"), Some("se@cret")));
        assert_eq!(settings.db(), 3);
        let Target::Server(info) = target("rediss://example") else { panic!() };
        assert!(matches!(info.addr(), ConnectionAddr::TcpTls { port: 6379, .. }));
        let text = "redis+sentinel://:pw@a,b:7001/main/2";
        let Target::Sentinels { sentinels, service, primary } = target(text) else { panic!() };
        let at = |host: &str, port| ConnectionAddr::Tcp(host.into(), port);
        assert_eq!(sentinels, [at("a", 26_379), at("b", 7_001)]);
        assert_eq!(service, "main");
        let settings = primary.redis_settings();
        assert_eq!((settings.password(), settings.db()), (Some("pw"), 2));
    }

    #[test]
    fn a_password_given_apart_goes_first_and_none_is_shown() {
        let address: Address = "redis://me:secret@example".parse().expect("valid");
        assert_eq!(address.to_string(), "redis://me:***@example");
        let Ok(Target::Server(info)) = address.target(Some("other")) else { panic!() };
        assert_eq!(info.redis_settings().password(), Some("other"));
    }

    #[test]
    fn mistakes_are_found_at_the_start() {
        let insecure = ["rediss://a/#insecure", "rediss+sentinel://a/main/#insecure"];
        let nothing = ["", "Memory", "http://x", "redis://", "redis+sentinel://a:1"];
        for text in nothing.into_iter().chain(insecure) {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
