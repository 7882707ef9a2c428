//! Providers: their dependencies, identities and pools, the RPCs that they take back, their end.

mod admin;
mod bedrock;
mod close;
mod coming_back;
mod dependencies;
mod deregister;
mod identity;
mod pool;
