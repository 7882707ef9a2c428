//! The services that a command talks to: their addresses, and the instances that reach them.

use margo::{Addr, Instance};

use super::failure::Failure;

/// Instances that call, and serve nobody: one for each transport.
#[derive(Default)]
pub(crate) struct Callers(Vec<(String, Instance)>);

impl Callers {
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

    fn of(&mut self, transport: &str) -> Result<Instance, Failure> {
        if let Some((_, instance)) = self.0.iter().find(|(own, _)| own == transport) {
            return Ok(instance.clone());
        }
        let instance = Instance::builder(format!("{transport}://"))
            .listen(false)
            .start()
            .map_err(|error| Failure::new("cannot open the network", error))?;
        self.0.push((transport.to_owned(), instance.clone()));
        Ok(instance)
    }

    /// Ends all of them.
    pub(crate) fn end(self) -> Result<(), Failure> {
        self.0.iter().for_each(|(_, instance)| instance.finalize());
        let ended = self.0.iter().try_for_each(|(_, instance)| instance.wait_for_finalize());
        ended.map_err(|error| Failure::Failed(error.to_string()))
    }
}

/// The transport of an address; of its last part, if there are several
/// (`uid://host#na+sm://…#na+tcp://…`).
pub(crate) fn transport(address: &str) -> Option<&str> {
    let part = address.rsplit('#').next()?;
    let (transport, _) = part.split_once("://")?;
    (!transport.is_empty() && !part.contains(char::is_whitespace)).then_some(transport)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transport_is_that_of_the_address() {
        assert_eq!(transport("na+sm://1000/x"), Some("na+sm"));
        assert_eq!(transport("uid://h#na+sm://1#na+tcp://127.0.0.1:7"), Some("na+tcp"));
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
        assert_eq!(callers.0.len(), 2);
        callers.end().expect("they end");
    }
}
