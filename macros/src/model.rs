//! A service, as its trait says it is.

use std::time::Duration;

use proc_macro2::{Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::meta::ParseNestedMeta;
use syn::parse::Parser;
use syn::spanned::Spanned;
use syn::{
    Attribute, Error, Expr, ExprLit, FnArg, GenericArgument, ItemTrait, Lit, LitInt, LitStr, Meta,
    Pat, PathArguments, Result, ReturnType, TraitItem, TraitItemFn, Type,
};

/// Most arguments of a method: serde has tuples of so many.
const ARGUMENTS_MAX: usize = 16;

/// Names of methods that each client has of its own.
const CLIENTS_OWN: [&str; 6] = ["new", "connect", "with_timeout", "timeout", "target", "instance"];

/// The end of the name of a client's method that does not wait.
pub(crate) const START: &str = "_start";

/// The end of the name of a client's method that calls for chunk after chunk.
pub(crate) const CHUNKS: &str = "_chunks";

/// The options of `#[margo::service]`.
#[derive(Default)]
pub(crate) struct ServiceOptions {
    name: Option<LitStr>,
}

impl ServiceOptions {
    pub(crate) fn read(tokens: TokenStream) -> Result<Self> {
        let mut options = Self::default();
        let known = |option: ParseNestedMeta<'_>| {
            if option.path.is_ident("name") {
                options.name = Some(option.value()?.parse()?);
                return Ok(());
            }
            Err(option.error("there is no such option of a service; there is `name = \"…\"`"))
        };
        syn::meta::parser(known).parse2(tokens)?;
        match &options.name {
            Some(name) if name.value().is_empty() => {
                Err(Error::new(name.span(), "the name of a service has at least one character"))
            }
            _ => Ok(options),
        }
    }
}

/// A trait whose methods are RPCs.
pub(crate) struct Service {
    /// The trait, without what is for this macro alone.
    pub(crate) item: ItemTrait,
    pub(crate) name: String,
    pub(crate) methods: Vec<Method>,
}

/// A method of the trait.
pub(crate) struct Method {
    pub(crate) ident: Ident,
    pub(crate) docs: Vec<Attribute>,
    /// Under which conditions it exists.
    pub(crate) cfgs: Vec<Attribute>,
    pub(crate) arguments: Vec<Argument>,
    pub(crate) answer: Answer,
    /// The type of its chunks, if the result comes in some.
    pub(crate) chunk: Option<Type>,
    pub(crate) options: MethodOptions,
}

/// An argument of a method.
pub(crate) enum Argument {
    /// One that travels.
    Carried { ident: Ident, declared: Box<Type>, owned: Box<Type>, by: Passing },
    /// The request's context.
    Context,
}

/// The way in which a method takes an argument.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passing {
    Value,
    Reference,
    /// As a `&str`.
    Text,
    /// As a reference to bytes, which are encoded as a whole.
    Bytes,
}

/// The result of a method.
pub(crate) enum Answer {
    /// None at all.
    OneWay,
    Value(Box<Type>),
    /// A `Result` of the service: its whole type, and its parts.
    Result(Box<Type>, Box<Type>, Box<Type>),
}

/// The options of `#[margo(…)]`.
#[derive(Default)]
pub(crate) struct MethodOptions {
    one_way: Option<Span>,
    chunks: Option<Span>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) pool: Option<LitStr>,
    pub(crate) admission: Option<LitInt>,
    pub(crate) rpc: Option<LitStr>,
}

/// Collects what is wrong, to say all of it at once.
#[derive(Default)]
struct Complaints(Option<Error>);

impl Complaints {
    fn add(&mut self, error: Error) {
        match &mut self.0 {
            Some(all) => all.combine(error),
            none => *none = Some(error),
        }
    }

    fn at(&mut self, place: &impl Spanned, text: &str) {
        self.add(Error::new(place.span(), text));
    }

    fn end<T>(self, value: T) -> Result<T> {
        self.0.map_or(Ok(value), Err)
    }
}

impl Service {
    pub(crate) fn read(options: ServiceOptions, mut item: ItemTrait) -> Result<Self> {
        let mut complaints = Complaints::default();
        if !item.generics.params.is_empty() || item.generics.where_clause.is_some() {
            complaints.at(
                &item.generics,
                "a service has no parameters: peers know one definition of each RPC",
            );
        }
        let mut methods: Vec<Method> = Vec::new();
        for part in &mut item.items {
            let TraitItem::Fn(function) = part else {
                complaints.at(part, "a service has methods only: each is an RPC");
                continue;
            };
            match Method::read(function) {
                Ok(method) => methods.push(method),
                Err(error) => complaints.add(error),
            }
        }
        for method in &methods {
            let name = method.name();
            for other in &methods {
                let made = |end: &str| format!("{}{end}", other.name()) == name;
                let what = match other.chunk {
                    _ if made(START) => "starts a call",
                    Some(_) if made(CHUNKS) => "has the chunks",
                    _ => continue,
                };
                let other = other.name();
                let text =
                    format!("the client has a method of this name, which {what} of `{other}`");
                complaints.at(&method.ident, &text);
            }
        }
        let named = options.name.map(|name| name.value());
        let name = named.unwrap_or_else(|| item.ident.unraw().to_string().to_lowercase());
        complaints.end(Self { item, name, methods })
    }
}

impl Method {
    /// Reads a method, and takes from it what is for this macro.
    fn read(function: &mut TraitItemFn) -> Result<Self> {
        let mut complaints = Complaints::default();
        let options = MethodOptions::take(&mut function.attrs).unwrap_or_else(|error| {
            complaints.add(error);
            MethodOptions::default()
        });
        let signature = &function.sig;
        if let Some(token) = &signature.asyncness {
            complaints.at(
                token,
                "a method of a service is a plain function: a handler runs on a ULT of its own, \
                 which may wait; async callers have the client's `…_start`, a future",
            );
        }
        if !signature.generics.params.is_empty() {
            complaints.at(&signature.generics, "a method of a service has no parameters of types");
        }
        let mut inputs = signature.inputs.iter();
        match inputs.next() {
            Some(FnArg::Receiver(own))
                if own.to_token_stream().to_string().replace(' ', "") == "&self" => {}
            Some(other) => {
                complaints.at(other, "a method of a service takes `&self`: requests come at once");
            }
            None => complaints.at(&signature.ident, "a method of a service takes `&self`"),
        }
        let mut arguments = Vec::new();
        for input in inputs {
            match Argument::read(input) {
                Ok(argument) => arguments.push(argument),
                Err(error) => complaints.add(error),
            }
        }
        let is_carried = |argument: &&Argument| matches!(argument, Argument::Carried { .. });
        if arguments.iter().filter(is_carried).count() > ARGUMENTS_MAX {
            let text = "a method of a service has at most 16 arguments: make a struct of them";
            complaints.at(&signature.inputs, text);
        }
        if arguments.iter().filter(|argument| !is_carried(argument)).count() > 1 {
            complaints.at(&signature.inputs, "a request has one context");
        }
        if CLIENTS_OWN.contains(&&*signature.ident.to_string()) {
            let text = format!("each client has a method `{}` of its own", signature.ident);
            complaints.at(&signature.ident, &text);
        }
        let (mut answer, mut of_chunks) = (Answer::OneWay, None);
        let read = Answer::read(&signature.output, &options).and_then(|read| {
            let chunk = options.chunks.map(|place| chunk(place, &arguments, &read)).transpose();
            (answer, of_chunks) = (read, chunk?);
            Ok(())
        });
        read.unwrap_or_else(|error| complaints.add(error));
        let those = |name: &str| {
            let own = function.attrs.iter().filter(|attribute| attribute.path().is_ident(name));
            own.cloned().collect()
        };
        let (docs, cfgs) = (those("doc"), those("cfg"));
        let ident = signature.ident.clone();
        complaints.end(Self { ident, docs, cfgs, arguments, answer, chunk: of_chunks, options })
    }

    pub(crate) fn name(&self) -> String {
        self.ident.unraw().to_string()
    }

    /// The arguments that travel.
    pub(crate) fn carried(&self) -> impl Iterator<Item = (&Ident, &Type, &Type, Passing)> {
        self.arguments.iter().filter_map(|argument| match argument {
            Argument::Carried { ident, declared, owned, by } => {
                Some((ident, &**declared, &**owned, *by))
            }
            Argument::Context => None,
        })
    }
}

/// The type of the chunks of a method's result, which has to have positions.
fn chunk(place: Span, arguments: &[Argument], answer: &Answer) -> Result<Type> {
    let value = match answer {
        Answer::OneWay => {
            return Err(Error::new(place, "a one-way method returns nothing, so it has no chunks"));
        }
        Answer::Value(value) | Answer::Result(_, value, _) => value,
    };
    let last = arguments.iter().rfind(|argument| !matches!(argument, Argument::Context));
    let Some(Argument::Carried { ident, declared: position, by: Passing::Value, .. }) = last else {
        let text = "a method with chunks has the position of the chunk as its last argument, by \
                    value: the client calls it again with the position that came with a chunk";
        return Err(Error::new(place, text));
    };
    let parts = match type_arguments(value) {
        Some(parts) if last_is(value, "Option") => parts,
        _ => Vec::new(),
    };
    let pair = match parts[..] {
        [Type::Tuple(pair)] => pair.elems.iter().collect(),
        _ => Vec::new(),
    };
    let [chunk, next] = pair[..] else {
        let text = "a method with chunks returns `Option<(T, P)>`, or a `Result` of that: a chunk \
                    and the position of the next one, or `None` behind the last one";
        return Err(Error::new(place, text));
    };
    if next.to_token_stream().to_string() != position.to_token_stream().to_string() {
        let text = format!(
            "the position of the next chunk is of the type that the argument `{ident}` has"
        );
        return Err(Error::new(next.span(), text));
    }
    Ok(chunk.clone())
}

/// The types between the angle brackets of a type, if that is all there is.
fn type_arguments(ty: &Type) -> Option<Vec<&Type>> {
    let Type::Path(path) = ty else { return None };
    let PathArguments::AngleBracketed(parts) = &path.path.segments.last()?.arguments else {
        return None;
    };
    let types = parts.args.iter().map(|part| match part {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    types.collect()
}

/// The first paragraph of a documentation, as lists of rustdoc have it.
pub(crate) fn first_paragraph(attributes: &[Attribute]) -> String {
    let line = |attribute: &Attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value().trim().to_owned()),
            _ => None,
        },
        _ => None,
    };
    let lines = attributes.iter().filter_map(line).skip_while(String::is_empty);
    lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

impl Argument {
    fn read(input: &FnArg) -> Result<Self> {
        let FnArg::Typed(input) = input else {
            return Err(Error::new(input.span(), "only the first argument is `self`"));
        };
        let Pat::Ident(name) = &*input.pat else {
            let text = "an argument of a service has a name, which its description tells";
            return Err(Error::new(input.pat.span(), text));
        };
        let (ident, declared) = (name.ident.clone(), input.ty.clone());
        let Type::Reference(reference) = &*input.ty else {
            may_travel(&input.ty)?;
            return Ok(Self::Carried {
                ident,
                owned: declared.clone(),
                declared,
                by: Passing::Value,
            });
        };
        if let Some(token) = &reference.mutability {
            return Err(Error::new(
                token.span(),
                "an argument of a service is not changed by it: results are what it returns",
            ));
        }
        if let Some(lifetime) = &reference.lifetime {
            let text = "an argument of a service lives as long as its handler; leave this out";
            return Err(Error::new(lifetime.span(), text));
        }
        if last_is(&reference.elem, "RequestContext") {
            return Ok(Self::Context);
        }
        may_travel(&reference.elem)?;
        let (owned, by) = match &*reference.elem {
            elem if is(elem, "str") => {
                (quoted(quote::quote!(::std::string::String)), Passing::Text)
            }
            Type::Slice(slice) if is(&slice.elem, "u8") => {
                (quoted(quote::quote!(::margo::encoding::Bytes)), Passing::Bytes)
            }
            Type::Slice(slice) => {
                let elem = &slice.elem;
                (quoted(quote::quote!(::std::vec::Vec<#elem>)), Passing::Reference)
            }
            elem => (elem.clone(), Passing::Reference),
        };
        Ok(Self::Carried { ident, declared, owned: Box::new(owned), by })
    }
}

fn quoted(tokens: TokenStream) -> Type {
    Type::Verbatim(tokens)
}

/// Returns whether a type is a name alone.
fn is(ty: &Type, name: &str) -> bool {
    matches!(ty, Type::Path(path) if path.path.is_ident(name))
}

/// Returns whether the last part of a type's path is that name.
fn last_is(ty: &Type, name: &str) -> bool {
    let Type::Path(path) = ty else { return false };
    path.path.segments.last().is_some_and(|segment| segment.ident == name)
}

/// A type that peers can have, too: without references, and known beside the trait.
fn may_travel(ty: &Type) -> Result<()> {
    if let Type::ImplTrait(_) = ty {
        let text = "the type of an argument of a service is one type: peers decode it";
        return Err(Error::new(ty.span(), text));
    }
    no_references(ty.to_token_stream())
}

fn no_references(tokens: TokenStream) -> Result<()> {
    for token in tokens {
        match token {
            TokenTree::Group(group) => no_references(group.stream())?,
            TokenTree::Punct(mark) if ['&', '\''].contains(&mark.as_char()) => {
                return Err(Error::new(
                    mark.span(),
                    "references stand before the whole type of an argument, as in `&str`, \
                     `&[u8]`, `&T`; inside another type use the owned one, as in `Option<String>`",
                ));
            }
            TokenTree::Ident(ident) if ident == "Self" => {
                let text = "peers do not know the type that serves; name the type";
                return Err(Error::new(ident.span(), text));
            }
            _ => {}
        }
    }
    Ok(())
}

impl Answer {
    fn read(output: &ReturnType, options: &MethodOptions) -> Result<Self> {
        let ty = match output {
            ReturnType::Default => quoted(quote::quote!(())),
            ReturnType::Type(_, ty) => (**ty).clone(),
        };
        if options.one_way.is_some() {
            let is_nothing = matches!(output, ReturnType::Default);
            let text = "a one-way method returns nothing: nobody waits for it";
            return if is_nothing { Ok(Self::OneWay) } else { Err(Error::new(ty.span(), text)) };
        }
        may_travel(&ty)?;
        if !last_is(&ty, "Result") {
            return Ok(Self::Value(Box::new(ty)));
        }
        if let Some([value, error]) = type_arguments(&ty).as_deref() {
            let parts = (Box::new((*value).clone()), Box::new((*error).clone()));
            return Ok(Self::Result(Box::new(ty), parts.0, parts.1));
        }
        let text = "write the error out, as in `Result<T, KvError>`: callers get it as such";
        Err(Error::new(ty.span(), text))
    }
}

impl MethodOptions {
    /// Reads the options, and takes them from the method.
    fn take(attributes: &mut Vec<Attribute>) -> Result<Self> {
        let mut options = Self::default();
        let own = attributes.extract_if(.., |attribute| attribute.path().is_ident("margo"));
        for attribute in own {
            attribute.parse_nested_meta(|option| options.read(&option))?;
        }
        match options.one_way {
            Some(place) if options.deadline.is_some() => Err(Error::new(
                place,
                "a one-way method has no deadline: nobody waits for it; a client's timeout limits \
                 how long it may take to send",
            )),
            _ => Ok(options),
        }
    }

    fn read(&mut self, option: &ParseNestedMeta<'_>) -> Result<()> {
        let name = option.path.get_ident().map(Ident::to_string).unwrap_or_default();
        match &*name {
            "one_way" => self.one_way = Some(option.path.span()),
            "chunks" => self.chunks = Some(option.path.span()),
            "deadline" => self.deadline = Some(duration(&option.value()?.parse()?)?),
            "pool" => self.pool = Some(option.value()?.parse()?),
            "admission" => self.admission = Some(option.value()?.parse()?),
            "rpc" => self.rpc = Some(option.value()?.parse()?),
            _ => {
                return Err(option.error(
                    "there is no such option of a method; there are `one_way`, `chunks`, \
                     `deadline = \"2s\"`, `pool = \"…\"`, `admission = 64` and `rpc = \"…\"`",
                ));
            }
        }
        Ok(())
    }
}

/// Reads `500ms`, `2s`, `5m`, `1h`.
fn duration(text: &LitStr) -> Result<Duration> {
    let value = text.value();
    let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let millis = match &value[digits..] {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let number: Option<u64> = value[..digits].parse().ok();
    let all = number.zip(millis).and_then(|(number, unit)| number.checked_mul(unit));
    match all {
        Some(all) if all > 0 => Ok(Duration::from_millis(all)),
        _ => Err(Error::new(
            text.span(),
            "a deadline is a number with its unit: `ms`, `s`, `m` or `h`, as in `500ms`",
        )),
    }
}
