//! The services that a command talks to: their addresses, and the instances that reach them.

use std::path::{Path, PathBuf};

use margo::{Addr, Instance, config::Config};

use super::document;
use margo::daemon::Failure;

/// Instances that call, and serve nobody: one for each transport.
#[derive(Default)]
pub(crate) struct Callers {
    /// The document that all of them have, and its file; none: the defaults.
    document: Option<(PathBuf, Config)>,
    /// By transport.
    own: Vec<(String, Instance)>,
}

impl Callers {
    /// Callers with the settings of a document, if there is one. What it says of serving has no
    /// effect, nor has its address where that is of another transport than the service's.
    pub(crate) fn with(file: Option<&Path>) -> Result<Self, Failure> {
        let Some(file) = file else { return Ok(Self::default()) };
        let read = Config::from_json(&document::read(file)?);
        let mut config = read.map_err(|errors| document::invalid(file, errors))?;
        config.margo.listen = false;
        config.margo.providers.clear();
        config.margo.address_file = None;
        Ok(Self { document: Some((file.to_owned(), config)), own: Vec::new() })
    }

    /// Returns the peer that `address` means, and the instance that reaches it. Sends nothing.
    pub(crate) fn reach(&mut self, address: &str) -> Result<(Instance, Addr), Failure> {
        let transport = transport(address).ok_or_else(|| {
            Failure::Usage(format!(
                "{address:?} is no address; `margo serve` prints one, such as \
                 na+tcp://127.0.0.1:7000"
            ))
        })?;
        let instance = self.of(transport)?;
        let peer = instance.lookup(address).map_err(|error| Failure::Usage(error.to_string()))?;
        Ok((instance, peer))
    }

    fn of(&mut self, wanted: &str) -> Result<Instance, Failure> {
        if let Some((_, instance)) = self.own.iter().find(|(own, _)| own == wanted) {
            return Ok(instance.clone());
        }
        let address = format!("{wanted}://");
        let started = match &self.document {
            None => Instance::builder(address).listen(false).start(),
            Some((_, config)) => {
                let mut config = config.clone();
                if transport(&config.margo.address) != Some(wanted) {
                    config.margo.address = address;
                }
                Instance::from_config(&config)
            }
        };
        let instance = started.map_err(|error| match &self.document {
            None => Failure::new("cannot open the network", error),
            Some((file, _)) => Failure::new(document::called(file), error),
        })?;
        self.own.push((wanted.to_owned(), instance.clone()));
        Ok(instance)
    }

    /// Ends all of them.
    pub(crate) fn end(self) -> Result<(), Failure> {
        self.own.iter().for_each(|(_, instance)| instance.finalize());
        let ended = self.own.iter().try_for_each(|(_, instance)| instance.wait_for_finalize());
        ended.map_err(|error| Failure::Failed(error.to_string()))
    }
}

/// The transport of an address; of its last part, if there are several
/// (`uid://host#na+sm://…#na+tcp://…`). That of a program of C Mercury with our plugin is ours.
pub(crate) fn transport(address: &str) -> Option<&str> {
    let part = address.rsplit('#').next()?;
    let (transport, _) = part.split_once("://")?;
    let transport = match transport {
        "margo+sm" => "na+sm",
        "margo+tcp" => "na+tcp",
        other => other,
    };
    (!transport.is_empty() && !part.contains(char::is_whitespace)).then_some(transport)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transport_is_that_of_the_address() {
        assert_eq!(transport("na+sm://1000/x"), Some("na+sm"));
        assert_eq!(transport("uid://h#na+sm://1#na+tcp://127.0.0.1:7"), Some("na+tcp"));
        assert_eq!(transport("margo+sm://1-1-x"), Some("na+sm"));
        assert_eq!(transport("margo+all://h#margo+sm://1#margo+tcp://[::1]:7"), Some("na+tcp"));
        for address in ["", "127.0.0.1:7000", "://x", "na+tcp:// x"] {
            assert_eq!(transport(address), None, "{address}");
        }
    }

    #[test]
    fn services_of_one_transport_are_reached_by_one_instance() {
        let mut callers = Callers::default();
        for address in ["na+tcp://127.0.0.1:1", "na+sm://1-1-x", "na+tcp://127.0.0.1:2"] {
            callers.reach(address).expect(address);
        }
        assert_eq!(callers.own.len(), 2);
        callers.end().expect("they end");
    }
}
