//! Descriptions of services: their methods, and the types that go over the wire.
//!
//! The JSON of a description is for programs of other versions: fields may be added, none changes
//! its meaning.

use std::fmt;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::service::probe;
use crate::{OneWay, Rpc};

/// A service of a provider, for callers that do not have its definition: `margo describe` prints
/// it, and `margo call` encodes arguments by it.
///
/// [`service`](macro@crate::service) makes one of the trait. RPCs that are written by hand are
/// described so:
///
/// ```
/// use std::time::Duration;
///
/// use margo::service::{MethodDescription, ServiceDescription, services_of};
/// use margo::{Instance, ProviderId, Rpc};
///
/// const SUM: Rpc<(i64, i64), i64> = Rpc::new("sum");
///
/// let sum = MethodDescription::of(SUM, &["a", "b"]).about("Adds two numbers.");
/// assert_eq!(sum.to_string(), "sum(a: i64, b: i64) -> i64");
///
/// let service = Instance::builder("na+sm://").start()?;
/// let provider = service.provider(ProviderId::new(1), &service.layout().rpc_pool());
/// provider.serve(SUM).function(|(a, b)| a + b)?;
/// provider.describe(ServiceDescription::new("calculator").method(sum))?;
/// let services = services_of(&service, &service.self_addr(), Duration::from_secs(10))?;
/// assert_eq!(services[0].name, "calculator");
/// # service.finalize_and_wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ServiceDescription {
    /// The name of the service.
    pub name: String,
    /// The id of the provider; 0 until one is described so.
    pub provider: u16,
    /// The text for people; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// The methods, in the order of their definition.
    pub methods: Vec<MethodDescription>,
}

/// A method of a service: an RPC.
///
/// ```
/// use std::time::Duration;
///
/// use margo::{Rpc, service::MethodDescription};
///
/// const FIND: Rpc<(String, u32), Option<u64>> = Rpc::new("find");
///
/// let find = MethodDescription::of(FIND, &["key", "limit"]).deadline(Duration::from_secs(5));
/// assert_eq!(find.to_string(), "find(key: String, limit: u32) -> Option<u64>");
/// assert_eq!(find.deadline_ms, Some(5000));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MethodDescription {
    /// The name of the RPC, as in `kv.put`.
    pub rpc: String,
    /// The text for people; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// The arguments, in the order in which they are encoded.
    pub arguments: Vec<FieldDescription>,
    /// The type of the result; `None`: there is no response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<TypeDescription>,
    /// The limit for calls of clients that have none, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
}

/// Something with a name: an argument, a field of a struct, a variant of an enum.
///
/// ```
/// use margo::OneWay;
/// use margo::service::{MethodDescription, TypeDescription};
///
/// const LOG: OneWay<(u32, String)> = OneWay::new("log");
///
/// let log = MethodDescription::of_one_way(LOG, &["level", "text"]);
/// assert_eq!(log.arguments[1].name, "text");
/// assert_eq!(log.arguments[1].of, TypeDescription::String);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FieldDescription {
    /// The name.
    pub name: String,
    /// The type; of a variant without a value [`TypeDescription::Unit`].
    #[serde(rename = "type")]
    pub of: TypeDescription,
}

/// A type, as it is encoded. Prints as Rust has it.
///
/// ```
/// use margo::{Rpc, service::MethodDescription, service::TypeDescription};
///
/// #[derive(serde::Deserialize)]
/// struct Point {
///     x: f64,
///     y: f64,
/// }
///
/// const TRACK: Rpc<(), Vec<Point>> = Rpc::new("track");
///
/// let Some(TypeDescription::Seq(of)) = MethodDescription::of(TRACK, &[]).result else {
///     panic!("a vector is a sequence")
/// };
/// assert_eq!(of.definition(), "struct Point { x: f64, y: f64 }");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum TypeDescription {
    /// `bool`.
    Bool,
    /// `i8`.
    I8,
    /// `i16`.
    I16,
    /// `i32`.
    I32,
    /// `i64`.
    I64,
    /// `i128`.
    I128,
    /// `u8`.
    U8,
    /// `u16`.
    U16,
    /// `u32`.
    U32,
    /// `u64`.
    U64,
    /// `u128`.
    U128,
    /// `f32`.
    F32,
    /// `f64`.
    F64,
    /// `char`.
    Char,
    /// Text.
    String,
    /// Bytes behind their length: [`Bytes`](crate::encoding::Bytes).
    Bytes,
    /// Bytes to the end: [`Raw`](crate::encoding::Raw).
    Raw,
    /// A [`Bulk`](crate::Bulk) handle, of memory that the caller exposes.
    Bulk,
    /// Nothing.
    Unit,
    /// A value, or none.
    Option(Box<Self>),
    /// Elements behind their number.
    Seq(Box<Self>),
    /// Pairs of key and value behind their number.
    Map(Box<(Self, Self)>),
    /// Members, one after the other.
    Tuple(Vec<Self>),
    /// So many of one type.
    Array(Box<Self>, u64),
    /// Fields, one after the other.
    Struct {
        /// The name of the type.
        name: String,
        /// The fields, in their order.
        fields: Vec<FieldDescription>,
    },
    /// The number of a variant, and its value.
    Enum {
        /// The name of the type.
        name: String,
        /// The variants, in the order of their numbers.
        variants: Vec<FieldDescription>,
    },
    /// A type that cannot be described, with the reason.
    Unknown(String),
}

impl ServiceDescription {
    /// A service without methods.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), provider: 0, about: String::new(), methods: Vec::new() }
    }

    /// A text for people.
    #[must_use]
    pub fn about(self, text: impl Into<String>) -> Self {
        Self { about: text.into(), ..self }
    }

    /// One more method.
    #[must_use]
    pub fn method(mut self, method: MethodDescription) -> Self {
        self.methods.push(method);
        self
    }
}

impl MethodDescription {
    /// An RPC whose arguments have these names: of a tuple one for each member, of any other type
    /// one. `()` has none, and a struct may have those of its fields, if none is given. The types
    /// are found by decoding values that are made up: one that is refused, or contains itself, is
    /// [`Unknown`](TypeDescription::Unknown).
    pub fn of<A: DeserializeOwned, R: DeserializeOwned>(rpc: Rpc<A, R>, names: &[&str]) -> Self {
        Self { result: Some(probe::of::<R>()), ..Self::of_arguments::<A>(rpc.name(), names) }
    }

    /// As [`of`](Self::of), for an RPC without a response.
    pub fn of_one_way<A: DeserializeOwned>(rpc: OneWay<A>, names: &[&str]) -> Self {
        Self::of_arguments::<A>(rpc.name(), names)
    }

    fn of_arguments<A: DeserializeOwned>(rpc: &str, names: &[&str]) -> Self {
        let types = match (probe::of::<A>(), names.len()) {
            (TypeDescription::Unit, 0) => Vec::new(),
            (TypeDescription::Struct { fields, .. }, 0) => {
                return Self::with(rpc, fields);
            }
            (TypeDescription::Tuple(types), len) if types.len() == len && len != 1 => types,
            (TypeDescription::Array(of, number), len) if number == len as u64 && len != 1 => {
                vec![*of; len]
            }
            (of, _) => vec![of],
        };
        let named = |(index, of)| {
            let name = names.get(index).map_or_else(|| format!("arg{index}"), ToString::to_string);
            FieldDescription { name, of }
        };
        Self::with(rpc, types.into_iter().enumerate().map(named).collect())
    }

    fn with(rpc: &str, arguments: Vec<FieldDescription>) -> Self {
        let (rpc, about) = (rpc.to_owned(), String::new());
        Self { rpc, about, arguments, result: None, deadline_ms: None }
    }

    /// A text for people.
    #[must_use]
    pub fn about(self, text: impl Into<String>) -> Self {
        Self { about: text.into(), ..self }
    }

    /// A limit for calls of clients that have none.
    #[must_use]
    pub fn deadline(self, limit: Duration) -> Self {
        let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
        Self { deadline_ms: Some(millis), ..self }
    }
}

impl fmt::Display for MethodDescription {
    /// As a function of Rust: `kv.get(key: String) -> Result<Bytes, KvError>`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}(", self.rpc)?;
        for (index, argument) in self.arguments.iter().enumerate() {
            let gap = if index == 0 { "" } else { ", " };
            write!(f, "{gap}{}: {}", argument.name, argument.of)?;
        }
        f.write_str(")")?;
        match &self.result {
            None | Some(TypeDescription::Unit) => Ok(()),
            Some(of) => write!(f, " -> {of}"),
        }
    }
}

impl TypeDescription {
    /// The types that this one is made of.
    pub(super) fn parts(&self) -> Vec<&Self> {
        match self {
            Self::Option(of) | Self::Seq(of) | Self::Array(of, _) => vec![&**of],
            Self::Map(of) => vec![&of.0, &of.1],
            Self::Tuple(all) => all.iter().collect(),
            Self::Struct { fields: all, .. } | Self::Enum { variants: all, .. } => {
                all.iter().map(|field| &field.of).collect()
            }
            _ => Vec::new(),
        }
    }

    /// As [`parts`](Self::parts), to be changed.
    pub(super) fn parts_mut(&mut self) -> Vec<&mut Self> {
        match self {
            Self::Option(of) | Self::Seq(of) | Self::Array(of, _) => vec![&mut **of],
            Self::Map(of) => vec![&mut of.0, &mut of.1],
            Self::Tuple(all) => all.iter_mut().collect(),
            Self::Struct { fields: all, .. } | Self::Enum { variants: all, .. } => {
                all.iter_mut().map(|field| &mut field.of).collect()
            }
            _ => Vec::new(),
        }
    }

    /// Returns whether it is a `Result`: the enum of that name, with a value and an error.
    pub fn is_result(&self) -> bool {
        matches!(self, Self::Enum { name, variants } if name == "Result" && variants.len() == 2)
    }

    /// Structs and enums in it, itself included, that a reader has to know: each name once. Not
    /// [`Result`], which everybody knows.
    pub fn named(&self) -> Vec<&Self> {
        let mut found: Vec<&Self> = Vec::new();
        let name = |of: &Self| match of {
            // The fields of a variant have no name.
            Self::Struct { name, .. } | Self::Enum { name, .. } if !of.is_result() => {
                Some(name.clone()).filter(|name| !name.is_empty())
            }
            _ => None,
        };
        let mut open = vec![self];
        while let Some(of) = open.pop() {
            let is_new = name(of).is_some() && !found.iter().any(|other| name(other) == name(of));
            found.extend(is_new.then_some(of));
            open.extend(of.parts().into_iter().rev());
        }
        found
    }

    /// The definition of a struct or an enum, as Rust has it; of other types their name.
    pub fn definition(&self) -> String {
        let field = |field: &FieldDescription| format!("{}: {}", field.name, field.of);
        let variant = |variant: &FieldDescription| match &variant.of {
            TypeDescription::Unit => variant.name.clone(),
            TypeDescription::Tuple(_) => format!("{}{}", variant.name, variant.of),
            TypeDescription::Struct { name, fields } if name.is_empty() => {
                let fields: Vec<_> = fields.iter().map(field).collect();
                format!("{} {{ {} }}", variant.name, fields.join(", "))
            }
            of => format!("{}({of})", variant.name),
        };
        let (kind, name, parts) = match self {
            Self::Struct { name, fields } => {
                ("struct", name, fields.iter().map(field).collect::<Vec<_>>())
            }
            Self::Enum { name, variants } => ("enum", name, variants.iter().map(variant).collect()),
            other => return other.to_string(),
        };
        format!("{kind} {name} {{ {} }}", parts.join(", "))
    }
}

impl fmt::Display for TypeDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = |f: &mut fmt::Formatter<'_>, all: &[Self]| {
            all.iter()
                .enumerate()
                .try_for_each(|(index, of)| write!(f, "{}{of}", if index == 0 { "" } else { ", " }))
        };
        let name = match self {
            Self::Bool => "bool",
            Self::I8 => "i8",
            Self::I16 => "i16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::I128 => "i128",
            Self::U8 => "u8",
            Self::U16 => "u16",
            Self::U32 => "u32",
            Self::U64 => "u64",
            Self::U128 => "u128",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::Char => "char",
            Self::String => "String",
            Self::Bytes => "Bytes",
            Self::Raw => "Raw",
            Self::Bulk => "Bulk",
            Self::Unit => "()",
            Self::Option(of) => return write!(f, "Option<{of}>"),
            Self::Seq(of) => return write!(f, "Vec<{of}>"),
            Self::Map(of) => return write!(f, "Map<{}, {}>", of.0, of.1),
            Self::Array(of, len) => return write!(f, "[{of}; {len}]"),
            Self::Tuple(members) => {
                f.write_str("(")?;
                all(f, members)?;
                return f.write_str(if members.len() == 1 { ",)" } else { ")" });
            }
            Self::Enum { variants, .. } if self.is_result() => {
                f.write_str("Result<")?;
                let parts: Vec<_> = variants.iter().map(|variant| variant.of.clone()).collect();
                all(f, &parts)?;
                return f.write_str(">");
            }
            Self::Struct { name, .. } | Self::Enum { name, .. } => name,
            Self::Unknown(_) => "?",
        };
        f.write_str(name)
    }
}
