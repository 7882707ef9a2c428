//! Provider identities: what kind of provider answers under an id.
//!
//! Calls name a provider by a number, and nothing on the wire says what it is. So a provider can
//! have an *identity*, by convention the name of its kind (`yokan`, `bake`), which clients ask for
//! before they make their first call: a typing error in a number is found there, and not by
//! arguments that another RPC of the same name misunderstands.
//!
//! The query is the RPC `__identity__` of the provider that is asked, with the string as its
//! result: the same as in C Margo, in both directions.

use std::time::Duration;

use hg::{ProviderId, ReturnCode};

use crate::InstanceNetwork;
use crate::{ForwardError, Handle, IdentityError, Provider, ProviderHandle, RegisterError, Rpc};

const IDENTITY: Rpc<(), String> = Rpc::new("__identity__");

impl InstanceNetwork<'_> {
    /// Says what provider `id` of this instance is, by convention the name of its kind. Replaces
    /// what was said before. Stays until [`deregister_identity`](Self::deregister_identity); for
    /// one that goes with its provider see [`Provider::set_identity`].
    ///
    /// # Errors
    ///
    /// [`RegisterError::NotListening`], [`RegisterError::Closing`], [`RegisterError::Forked`].
    ///
    /// Counterpart: `margo_provider_register_identity`.
    pub fn register_identity(&self, id: ProviderId, identity: &str) -> Result<(), RegisterError> {
        self.say_identity(id, identity, |answer| {
            self.instance.serve(IDENTITY).of_provider_id(id).handler(answer)
        })
    }

    /// Takes back what was said of provider `id`; peers are then told that there is none. `false`:
    /// nothing was said.
    ///
    /// Counterpart: `margo_provider_deregister_identity`.
    pub fn deregister_identity(&self, id: ProviderId) -> bool {
        if self.inner().is_forked() {
            return false;
        }
        let was_said = self.instance.deregister(IDENTITY, id);
        self.inner().identities.lock().remove(&id);
        was_said
    }

    /// Returns the identity that provider `id` of this instance was given.
    ///
    /// Counterpart: `margo_provider_registered_identity`.
    pub fn identity(&self, id: ProviderId) -> Option<String> {
        if self.inner().is_forked() {
            return None;
        }
        self.inner().core.registered(IDENTITY.id(id))?;
        self.inner().identities.get(id).map(|identity| identity.as_ref().to_owned())
    }

    /// Asks a provider what it is. `None`: it does not say, or there is no such provider. Waits for
    /// the answer like [`forward`](crate::Instance::forward).
    ///
    /// # Errors
    ///
    /// [`ForwardError`].
    ///
    /// Counterpart: `margo_provider_get_identity`.
    pub fn identity_of(&self, provider: &ProviderHandle) -> Result<Option<String>, ForwardError> {
        told(self.instance.forward(IDENTITY, provider, &()))
    }

    /// [`identity_of`](Self::identity_of) with a limit.
    ///
    /// # Errors
    ///
    /// [`ForwardError`].
    pub fn identity_of_timed(
        &self,
        provider: &ProviderHandle,
        limit: Duration,
    ) -> Result<Option<String>, ForwardError> {
        told(self.instance.forward_timed(IDENTITY, provider, &(), limit))
    }

    /// Asks a provider whether it is what the caller takes it for. Clients do it once, when they
    /// make the handle of a provider.
    ///
    /// ```
    /// # use margo::{errors::IdentityError, Instance, ProviderHandle, ProviderId};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let service = Instance::builder("na+sm://").start()?;
    /// # let client = Instance::builder("na+sm://").listen(false).start()?;
    /// let store = service.provider(ProviderId::new(3), &service.layout().rpc_pool());
    /// store.set_identity("kv")?;
    ///
    /// let target = client.lookup(service.self_addr().uri())?;
    /// let target = ProviderHandle::new(target, ProviderId::new(3));
    /// client.network().check_identity(&target, "kv")?;
    /// let error = client.network().check_identity(&target, "blob").unwrap_err();
    /// assert!(matches!(error, IdentityError::Other { found, .. } if found == "kv"));
    /// # client.finalize_and_wait()?;
    /// # service.finalize_and_wait()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`IdentityError`].
    ///
    /// Counterpart: what Thallium's `provider_handle` does when it is given an identity.
    pub fn check_identity(
        &self,
        provider: &ProviderHandle,
        expected: &str,
    ) -> Result<(), IdentityError> {
        compare(provider, expected, self.identity_of(provider)?)
    }

    /// [`check_identity`](Self::check_identity) with a limit.
    ///
    /// # Errors
    ///
    /// [`IdentityError`].
    pub fn check_identity_timed(
        &self,
        provider: &ProviderHandle,
        expected: &str,
        limit: Duration,
    ) -> Result<(), IdentityError> {
        compare(provider, expected, self.identity_of_timed(provider, limit)?)
    }

    /// `register` registers the handler that answers, if there is none.
    fn say_identity(
        &self,
        id: ProviderId,
        identity: &str,
        register: impl FnOnce(fn(Handle<(), String>)) -> Result<(), RegisterError>,
    ) -> Result<(), RegisterError> {
        if self.inner().is_forked() {
            return Err(RegisterError::Forked);
        }
        // First: whoever asks finds it there. If this is all that happens, it does not count.
        self.inner().identities.set(id, identity);
        match register(answer) {
            Err(RegisterError::Exists { .. }) => Ok(()),
            registered => registered,
        }
    }
}

impl<T: Send + Sync + 'static> Provider<T> {
    /// Says what this provider is, by convention the name of its kind. Replaces what was said
    /// before, and is gone with the provider. Clients ask with
    /// [`InstanceNetwork::check_identity`](crate::groups::InstanceNetwork::check_identity).
    ///
    /// **One id has one identity**, as it is the id that clients ask. Where several providers share
    /// an id, each with RPCs of its own, the last one that says something speaks for all, and what
    /// it says is gone with the first one that had said anything. So a provider whose clients check
    /// has an id of its own.
    ///
    /// # Errors
    ///
    /// As [`register`](Self::register).
    ///
    /// Counterpart: `margo_provider_register_identity`.
    pub fn set_identity(&self, identity: &str) -> Result<(), RegisterError> {
        self.instance()
            .network()
            .say_identity(self.id(), identity, |answer| self.register(IDENTITY, answer))
    }
}

/// Returns the identity in an answer; a provider that has no such RPC has none. C Margo knows the
/// RPC without a provider, for its own calls, and has no handler for it.
fn told(answer: Result<String, ForwardError>) -> Result<Option<String>, ForwardError> {
    match answer {
        Ok(identity) => Ok(Some(identity)),
        Err(
            ForwardError::NotRegistered { .. }
            | ForwardError::Failed { code: ReturnCode::NoEntry, .. },
        ) => Ok(None),
        Err(error) => Err(error),
    }
}

fn compare(
    provider: &ProviderHandle,
    expected: &str,
    found: Option<String>,
) -> Result<(), IdentityError> {
    let (provider, expected) = (|| provider.to_string(), || expected.to_owned());
    match found {
        Some(found) if found == expected() => Ok(()),
        Some(found) => {
            Err(IdentityError::Other { provider: provider(), expected: expected(), found })
        }
        None => Err(IdentityError::None { provider: provider(), expected: expected() }),
    }
}

fn answer(handle: Handle<(), String>) {
    let identity = handle.instance().inner().identities.get(handle.provider_id());
    // Who is gone needs no answer.
    let _ = handle.respond(&identity.map_or_else(String::new, |text| text.as_ref().to_owned()));
}
