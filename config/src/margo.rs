//! The `margo` part of the document: what C Margo has no key for. The only home of these
//! defaults.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::pool_ref::PoolRef;

/// Provider id of RPCs that belong to no provider; no provider may have it.
///
/// Counterpart: `MARGO_DEFAULT_PROVIDER_ID` (Margo).
pub const PROVIDER_ID_DEFAULT: u16 = u16::MAX;

/// Our own additions, kept in one object so that they are easy to tell from C Margo's keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MargoOptions {
    /// Address to open, as a URI: transport, then what it needs, such as
    /// `"na+tcp://0.0.0.0:7000"`. Default `"na+sm://"`. In C the first argument of
    /// `margo_init`.
    pub address: String,
    /// Accepts RPCs from others (a server); false only calls (a client). Default true. In C the
    /// second argument of `margo_init`.
    pub listen: bool,
    /// Longest time that an xstream with nothing to do keeps looking for work before it sleeps,
    /// in microseconds. Default 50, about twice what being woken costs; 0 sleeps at once.
    pub spin_max_usec: u32,
    /// Largest arguments or result that travel inside the message instead of by bulk transfer,
    /// in bytes, from 256 to 16777216. Default none: what the transport can carry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eager_size: Option<usize>,
    /// File to write the instance's address to once it listens, for others to find it. Default
    /// none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address_file: Option<String>,
    /// Services to start. Default none.
    pub providers: Vec<Provider>,
}

impl Default for MargoOptions {
    fn default() -> Self {
        Self {
            address: "na+sm://".to_owned(),
            listen: true,
            spin_max_usec: 50,
            eager_size: None,
            address_file: None,
            providers: Vec::new(),
        }
    }
}

/// One service of the process.
///
/// Counterpart: an entry of `providers` in a Bedrock document.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Provider {
    /// What it is, such as `"blob"`. A C identifier. Required.
    #[serde(rename = "type")]
    pub type_name: String,
    /// A C identifier, unique among providers. Default `<type>_<provider_id>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// By which number clients address it: 0 to 65534, unique among providers of its type.
    /// Required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_id: Option<u16>,
    /// Pool in which its handlers run. Default `rpc_pool`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolRef>,
    /// Its own settings; an object whose keys it defines itself. Default `{}`.
    pub config: Map<String, Value>,
}
