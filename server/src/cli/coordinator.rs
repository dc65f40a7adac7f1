//! Flags for replicas that share what they know.

use clap::Args;
use serde::Serialize;

use crate::coordinator::address::Address;

/// Other replicas of the same model.
#[derive(Debug, Default, Args, Serialize)]
#[command(next_help_heading = "Replicas")]
pub struct CoordinatorFlags {
    /// Where replicas of one model tell each other their load: memory for one that is alone,
    /// redis://[USER:PASSWORD@]HOST[:PORT][/DB], rediss:// for TLS, or
    /// redis+sentinel://HOST[,HOST...]/SERVICE[/DB] [default: memory]
    #[arg(long, value_name = "URL", env = "SLUICE_COORDINATOR", hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    coordinator: Option<Address>,

    /// Its password, if it is not in the URL [default: none]
    #[arg(long, value_name = "PASSWORD", env = "SLUICE_COORDINATOR_PASSWORD")]
    #[arg(hide_env_values = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    coordinator_password: Option<String>,

    /// Name under which replicas meet; the same on all of them [default: the first
    /// --served-model-name, else the model as it was named at the start]
    #[arg(long, value_name = "NAME", env = "SLUICE_COORDINATOR_CLUSTER")]
    #[serde(skip_serializing_if = "Option::is_none")]
    coordinator_cluster: Option<String>,

    /// What all keys begin with [default: sluice:]
    #[arg(long, value_name = "PREFIX", env = "SLUICE_COORDINATOR_PREFIX")]
    #[serde(skip_serializing_if = "Option::is_none")]
    coordinator_prefix: Option<String>,

    /// What this replica is called in log lines of others [default: the host's name]
    #[arg(long, value_name = "NAME", env = "SLUICE_COORDINATOR_REPLICA")]
    #[serde(skip_serializing_if = "Option::is_none")]
    coordinator_replica: Option<String>,

    /// Among how many replicas a cap for all of them is divided until others have been heard of
    /// [default: 1]
    #[arg(long, value_name = "N", env = "SLUICE_COORDINATOR_REPLICAS")]
    #[serde(skip_serializing_if = "Option::is_none")]
    coordinator_replicas: Option<u32>,
}
