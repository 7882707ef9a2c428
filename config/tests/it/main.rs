//! Configurations: documents with their outcome, as tables and at random.

mod cases;
mod corpus;
mod document;
mod generated;
mod properties;
