//! The endpoints that generate, and the routes on which they are.

/// Which endpoint asks; decides the shape of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completion,
}

impl Endpoint {
    /// Both.
    pub const ALL: [Endpoint; 2] = [Endpoint::Chat, Endpoint::Completion];

    /// Its route.
    #[must_use]
    pub const fn route(self) -> &'static str {
        match self {
            Endpoint::Chat => "/v1/chat/completions",
            Endpoint::Completion => "/v1/completions",
        }
    }

    /// The endpoint on this route.
    #[must_use]
    pub fn on(route: &str) -> Option<Endpoint> {
        Endpoint::ALL.into_iter().find(|endpoint| endpoint.route() == route)
    }
}
