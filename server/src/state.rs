//! What handlers share: the settings that hold from the start, and the service that exists once the
//! model is loaded.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use engine::Handle;
use models::{ChatTemplate, Tokenizer};
use scheduler::{Class, TenantId};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::config::Config;
use crate::coordinator::Status;
use crate::deadline::Terms;
use crate::endpoint::Endpoint;
use crate::error::{ApiError, OverloadStatus};
use crate::journal::Journal;
use crate::metrics::Metrics;
use crate::openai::models::ModelCard;
use crate::origin::Origins;
use crate::shutdown::Patience;
use crate::tenants::{self, Tenants};

/// State of the router.
#[derive(Debug)]
pub struct App {
    /// Keys that clients may use, each with its tenant; none means that everybody may come in.
    pub api_keys: Vec<(String, TenantId)>,
    /// Largest request body in bytes.
    pub body_limit: usize,
    /// Origins that browsers may call from.
    pub allowed_origins: Vec<String>,
    service: OnceLock<Arc<Service>>,
    draining: watch::Sender<bool>,
    cluster: watch::Sender<Status>,
    /// When draining began.
    since: OnceLock<Instant>,
    /// How long each stage of the end may take.
    pub patience: Patience,
}

impl App {
    /// Before the model is loaded.
    #[must_use]
    pub fn new(config: &Config) -> Arc<App> {
        Arc::new(App {
            api_keys: tenants::keys(config),
            body_limit: usize::try_from(config.body_limit.0).unwrap_or(usize::MAX),
            allowed_origins: config.allowed_origins.clone(),
            service: OnceLock::new(),
            draining: watch::Sender::new(false),
            cluster: watch::Sender::new(Status::default()),
            since: OnceLock::new(),
            patience: Patience { delay: config.shutdown_delay, grace: config.grace },
        })
    }

    /// The model is loaded: from now on requests are served. Only the first service counts.
    pub fn ready(&self, service: Service) -> Arc<Service> {
        Arc::clone(self.service.get_or_init(|| Arc::new(service)))
    }

    /// The service, once there is one.
    pub fn service(&self) -> Option<&Arc<Service>> {
        self.service.get()
    }

    /// From now on the server says that it is not ready; requests are still served. Returns since
    /// when that is so.
    pub fn begin_drain(&self) -> Instant {
        let since = *self.since.get_or_init(Instant::now);
        self.draining.send_replace(true);
        since
    }

    /// Draining has begun.
    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Whether the end has begun, for who wants to know when.
    pub fn draining(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    /// What the coordinator's task knows now.
    pub fn set_cluster(&self, status: Status) {
        self.cluster.send_replace(status);
    }

    /// What is known of the other replicas, and how the coordinator fares.
    pub fn cluster(&self) -> Status {
        *self.cluster.borrow()
    }

    /// New work should come here.
    pub fn is_ready(&self) -> bool {
        let alive = self.service().is_some_and(|service| service.engine.snapshot().alive);
        alive && !self.is_draining()
    }
}

/// A model being served.
pub struct Service {
    /// Submits work.
    pub engine: Handle,
    /// The model as clients see it.
    pub model: Model,
    /// All series.
    pub metrics: Arc<Metrics>,
    /// Log lines of ended requests.
    pub journal: Arc<Journal>,
    /// Status of shed requests.
    pub overload: OverloadStatus,
    /// Class of requests for which nothing else says it.
    pub default_class: Class,
    /// Classes of the routes that select one, in the order of [`Endpoint::ALL`].
    pub routes: [Option<Class>; 2],
    /// Who sends requests.
    pub tenants: Tenants,
    /// Tells which attempts belong together.
    pub origins: Origins,
    /// Answers that are being produced.
    pub in_flight: watch::Sender<usize>,
    /// Turns true when answers must end.
    pub closing: watch::Sender<bool>,
    /// Requests whose text is being encoded off the serving threads.
    pub encoders: Semaphore,
}

impl Service {
    /// The class of a request: what it says itself (in a header, or else by the model's name), or
    /// else its tenant's default, that of its route, or the server's.
    #[must_use]
    pub fn class(&self, terms: &Terms, served: &Served, endpoint: Endpoint) -> Class {
        let said = terms.class.or(served.class);
        let of_tenant = self.tenants.get(terms.tenant).default_class;
        let of_route = self.routes[endpoint as usize];
        said.or(of_tenant).or(of_route).unwrap_or(self.default_class)
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("model", &self.model.name()).finish_non_exhaustive()
    }
}

/// The model as clients see it.
#[derive(Debug)]
pub struct Model {
    /// Names, the first of them used where the client gave none; none is empty.
    names: Vec<String>,
    /// Further names, each selecting a class.
    aliases: BTreeMap<String, Class>,
    /// Encodes and decodes.
    pub tokenizer: Tokenizer,
    /// Renders conversations, if the model can chat.
    pub template: Option<ChatTemplate>,
    /// Longest sequence in tokens.
    pub max_model_len: u32,
    /// Entries of the vocabulary.
    pub vocab_size: usize,
    /// The longest token in bytes: a text that is longer than `max_model_len` of these cannot fit.
    max_token_bytes: usize,
    created: u64,
}

/// What a model name means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// The name as the client used it.
    pub name: String,
    /// The class that it selects, if it is an alias.
    pub class: Option<Class>,
}

impl Model {
    /// `name` is the model's own, used if `config` names none.
    #[must_use]
    pub fn new(
        config: &Config,
        name: String,
        tokenizer: Tokenizer,
        template: Option<ChatTemplate>,
        max_model_len: u32,
    ) -> Model {
        let vocab_size = tokenizer.vocab_size();
        let tokens = 0..u32::try_from(vocab_size).unwrap_or(u32::MAX);
        let lengths = tokens.filter_map(|token| tokenizer.token_bytes(token).map(<[u8]>::len));
        let aliases = config.model_alias.iter();
        let names = &config.served_model_name;
        Model {
            names: if names.is_empty() { vec![name] } else { names.clone() },
            aliases: aliases.map(|(name, alias)| (name.clone(), alias.class.into())).collect(),
            max_token_bytes: lengths.max().unwrap_or(1).max(1),
            tokenizer,
            template,
            max_model_len,
            vocab_size,
            created: unix_now(),
        }
    }

    /// The first name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.names[0]
    }

    /// What `name` means; the model itself if there is no name.
    ///
    /// # Errors
    /// No such model.
    pub fn resolve(&self, name: Option<&str>) -> Result<Served, ApiError> {
        let Some(name) = name else {
            return Ok(Served { name: self.name().to_owned(), class: None });
        };
        let class = self.aliases.get(name).copied();
        if class.is_some() || self.names.iter().any(|known| known == name) {
            return Ok(Served { name: name.to_owned(), class });
        }
        Err(ApiError::ModelNotFound(name.chars().take(100).collect()))
    }

    /// One card for each name and alias.
    pub fn cards(&self, default_class: Class) -> impl Iterator<Item = ModelCard> {
        let names = self.names.iter().map(move |name| (name, default_class));
        let aliases = self.aliases.iter().map(|(name, class)| (name, *class));
        names.chain(aliases).map(|(name, class)| ModelCard {
            id: name.clone(),
            object: "model",
            created: self.created,
            owned_by: "sluice",
            root: self.name().to_owned(),
            max_model_len: self.max_model_len,
            class: class.label(),
        })
    }

    /// Tokens that a text of so many bytes has at least.
    #[must_use]
    pub fn least_tokens(&self, bytes: usize) -> u32 {
        u32::try_from(bytes.div_ceil(self.max_token_bytes).max(1)).unwrap_or(u32::MAX)
    }

    /// Whether a text of so many bytes cannot fit the context, whatever its tokens are.
    #[must_use]
    pub fn cannot_fit(&self, bytes: usize) -> bool {
        bytes / self.max_token_bytes > self.max_model_len as usize
    }
}

/// Seconds since 1970.
#[must_use]
pub fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Extracts the service; while the model is loading the answer is 503.
#[derive(Debug)]
pub struct Ready(pub Arc<Service>);

impl FromRequestParts<Arc<App>> for Ready {
    type Rejection = ApiError;

    async fn from_request_parts(_: &mut Parts, app: &Arc<App>) -> Result<Ready, ApiError> {
        app.service().cloned().map(Ready).ok_or(ApiError::Loading)
    }
}
