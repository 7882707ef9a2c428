//! The code beside the trait: definitions, target, origin.
//!
//! Names that the code makes up are hygienic, so that arguments may have any name.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, Type, parse_quote};

use crate::model::{Answer, Argument, CHUNKS, Method, Passing, START, Service, first_paragraph};

pub(crate) fn service(service: &Service) -> TokenStream {
    let item = &service.item;
    let (definitions, client) = (definitions(service), client(service));
    let checked = service.methods.iter().flat_map(checked);
    quote! {
        #item
        #definitions
        #client
        // Errors about types stand where the types do.
        const _: fn() = || { #(#checked)* };
    }
}

/// Each type of an argument or a result, as the compiler is to judge it.
fn checked(method: &Method) -> Vec<TokenStream> {
    let cfgs = &method.cfgs;
    let carried = method.carried().map(|(_, declared, owned, _)| (declared.span(), owned.clone()));
    let answer = match &method.answer {
        Answer::OneWay => None,
        Answer::Value(ty) => Some((ty.span(), (**ty).clone())),
        Answer::Result(ty, ..) => Some((ty.span(), (**ty).clone())),
    };
    let check = |(place, ty): (Span, Type)| {
        let place = Span::call_site().located_at(place);
        quote_spanned!(place=> #(#cfgs)* ::margo::service::assert_carried::<#ty>();)
    };
    carried.chain(answer).map(check).collect()
}

/// The RPCs, and how they are served.
fn definitions(service: &Service) -> TokenStream {
    let (vis, own, name) = (&service.item.vis, &service.item.ident, &service.name);
    let defined = format_ident!("{}Service", own);
    let about = doc(&format!(
        "The service `{name}`: the RPCs of [`{own}`], and how a target serves them. Has no value."
    ));
    let rpcs = service.methods.iter().map(|method| definition(service, method));
    let served = service.methods.iter().map(dispatch);
    let described = described(service);
    let id = internal("id");
    let (instance, provider) = (internal("instance"), internal("provider"));
    let service_of = internal("implementation");
    quote! {
        #about
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #vis enum #defined {}

        impl #defined {
            #(#rpcs)*

            /// Serves `implementation` under that id, in the instance's pool for handlers, until
            /// the provider is dropped or closed, which has it as its [object]. The provider's
            /// identity is the name of the service. For other pools, a value that is in an `Arc`
            /// already, or RPCs besides, see [`serve_on`](Self::serve_on).
            ///
            /// [object]: ::margo::Provider::object
            ///
            /// # Errors
            ///
            /// [`RegisterError`](::margo::RegisterError).
            #vis fn serve<T>(
                #instance: &::margo::Instance,
                #id: ::margo::ProviderId,
                #service_of: T,
            ) -> ::core::result::Result<::margo::Provider<T>, ::margo::RegisterError>
            where
                T: #own + ::core::marker::Send + ::core::marker::Sync + 'static,
            {
                let #provider =
                    #instance.provider_of(#id, &#instance.layout().rpc_pool(), #service_of);
                Self::serve_on(&#provider)?;
                #provider.set_identity(#name)?;
                ::core::result::Result::Ok(#provider)
            }

            /// Serves the object of a provider, in its pool and under its id. The provider may have
            /// other RPCs, too; what it is ([`Provider::set_identity`]) is left to the caller.
            ///
            /// # Errors
            ///
            /// [`RegisterError`](::margo::RegisterError), of the first RPC that cannot be served:
            /// those before it are.
            ///
            /// [`Provider::set_identity`]: ::margo::Provider::set_identity
            #vis fn serve_on<T>(
                #provider: &::margo::Provider<T>,
            ) -> ::core::result::Result<(), ::margo::RegisterError>
            where
                T: #own + ::core::marker::Send + ::core::marker::Sync + 'static,
            {
                #(#served)*
                #provider.describe(Self::description())
            }

            /// The service as other programs are told of it: see `margo describe`.
            #vis fn description() -> ::margo::service::ServiceDescription {
                #described
            }
        }
    }
}

/// The description, as an expression.
fn described(service: &Service) -> TokenStream {
    let (name, about) = (&service.name, first_paragraph(&service.item.attrs));
    let description = internal("description");
    let methods = service.methods.iter().map(|method| {
        let (cfgs, constant) = (&method.cfgs, constant(method));
        let names = method.carried().map(|(ident, ..)| ident.unraw().to_string());
        let of = match method.answer {
            Answer::OneWay => quote!(of_one_way),
            Answer::Value(_) | Answer::Result(..) => quote!(of),
        };
        let about = first_paragraph(&method.docs);
        let about = (!about.is_empty()).then(|| quote!(.about(#about)));
        let deadline = method.options.deadline.map(|limit| {
            let limit = duration(limit);
            quote!(.deadline(#limit))
        });
        quote! {
            #(#cfgs)*
            let #description = #description.method(
                ::margo::service::MethodDescription::#of(Self::#constant, &[#(#names),*])
                    #about #deadline,
            );
        }
    });
    quote! {
        let #description = ::margo::service::ServiceDescription::new(#name).about(#about);
        #(#methods)*
        #description
    }
}

fn duration(limit: std::time::Duration) -> TokenStream {
    let millis = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    quote!(::core::time::Duration::from_millis(#millis))
}

/// The constant of an RPC.
fn definition(service: &Service, method: &Method) -> TokenStream {
    let (vis, cfgs, docs) = (&service.item.vis, &method.cfgs, &method.docs);
    let (constant, arguments) = (constant(method), tuple_of_types(method));
    let named = method.options.rpc.as_ref().map(syn::LitStr::value);
    let rpc = named.unwrap_or_else(|| format!("{}.{}", service.name, method.name()));
    let names: Vec<_> = method.carried().map(|(ident, ..)| format!("`{ident}`")).collect();
    let carries = match names.len() {
        0 => "Takes no arguments.".to_owned(),
        _ => format!("Arguments: {}.", names.join(", ")),
    };
    let about = doc(&format!("The RPC `{rpc}`. {carries}"));
    let gap = (!docs.is_empty()).then(|| doc(""));
    let (ty, answer) = match &method.answer {
        Answer::OneWay => (quote!(OneWay), None),
        Answer::Value(ty) | Answer::Result(ty, ..) => (quote!(Rpc), Some(quote!(, #ty))),
    };
    quote! {
        #(#docs)*
        #gap
        #about
        #(#cfgs)*
        #vis const #constant: ::margo::#ty<#arguments #answer> = ::margo::Rpc::new(#rpc);
    }
}

/// The registration of a handler that calls the method.
fn dispatch(method: &Method) -> TokenStream {
    let (ident, cfgs, constant) = (&method.ident, &method.cfgs, constant(method));
    let [provider, object] = ["provider", "object"].map(internal);
    let has_context = method.arguments.iter().any(|one| matches!(one, Argument::Context));
    let request = internal(if has_context { "request" } else { "_request" });
    let is_one_way = matches!(method.answer, Answer::OneWay);
    let context = if is_one_way { quote!(&#request) } else { quote!(#request) };
    let names: Vec<_> = method.carried().map(|(ident, ..)| ident).collect();
    let arguments = tuple(&names);
    let in_place = if is_one_way { None } else { in_place(method) };
    let (family, forms) = in_place.clone().unzip();
    let passed = method.arguments.iter().map(|argument| match argument {
        Argument::Context => quote!(#context),
        Argument::Carried { ident, by: Passing::Value, .. } => quote!(#ident),
        Argument::Carried { ident, by: Passing::Text, .. } if in_place.is_some() => quote!(#ident),
        Argument::Carried { ident, .. } => quote!(&#ident),
    });
    let call = quote!(#object.#ident(#(#passed),*));
    let handler = match (&method.answer, has_context) {
        (Answer::OneWay, _) => quote! {
            method(|#object, #request| {
                let (#arguments, #request) = #request.take_args();
                #call
            })
        },
        _ if in_place.is_some() => {
            quote!(dispatch_in_place::<#family, _>(|#object, #arguments, #request| #call))
        }
        (_, false) => quote!(dispatch(|#object, #arguments| #call)),
        (_, true) => quote!(dispatch_with_context(|#object, #arguments, #request| #call)),
    };
    let pool = method.options.pool.as_ref().map(|pool| quote!(.pool_named(#pool)?));
    let bound = method.options.admission.as_ref();
    let bound = bound.map(|bound| quote!(.admission(::margo::config::Admission::new(#bound))));
    quote! {
        #(#cfgs)*
        {
            #forms
            #provider.serve(Self::#constant)#pool #bound.#handler?;
        }
    }
}

/// The name and the definition of the type that stands for the arguments as they lie in the receive
/// buffer, if some of them can be looked at there.
fn in_place(method: &Method) -> Option<(Ident, TokenStream)> {
    if !method.carried().any(|(.., by)| matches!(by, Passing::Text | Passing::Bytes)) {
        return None;
    }
    let family = internal("InPlace");
    let forms: Vec<_> = method
        .carried()
        .map(|(_, _, owned, by)| match by {
            Passing::Text => quote!(&'in_place str),
            Passing::Bytes => quote!(::margo::encoding::Bytes<&'in_place [u8]>),
            Passing::Value | Passing::Reference => quote!(#owned),
        })
        .collect();
    let forms = tuple(&forms);
    let definition = quote! {
        enum #family {}

        impl ::margo::DecodeInPlace for #family {
            type InPlace<'in_place> = #forms;
        }
    };
    Some((family, definition))
}

/// The origin's side.
fn client(service: &Service) -> TokenStream {
    let (vis, own, name) = (&service.item.vis, &service.item.ident, &service.name);
    let (client, defined) = (format_ident!("{}Client", own), format_ident!("{}Service", own));
    let about = doc(&format!(
        "A provider of the service `{name}` at a peer: the methods of [`{own}`] as calls. Cheap to \
         clone."
    ));
    let methods = service.methods.iter().map(|method| calls(vis, &defined, method));
    let chunks = service.methods.iter().map(|method| chunks(vis, method));
    quote! {
        #about
        ///
        /// A call waits for its result: a ULT suspends, an OS thread parks. It has the deadline of
        /// the client's [timeout](Self::with_timeout), or that of its method, or none, and always
        /// that of the handler on whose ULT it is made. The forms with `_start` return as soon as
        /// the arguments are encoded, with a [`ForwardRequest`](::margo::ForwardRequest), which can
        /// be waited for or awaited.
        #[derive(Debug, Clone)]
        #vis struct #client {
            client: ::margo::service::ServiceClient,
        }

        impl #client {
            /// Calls `target` through `instance`. Does not contact it.
            #vis fn new(instance: &::margo::Instance, target: ::margo::ProviderHandle) -> Self {
                Self { client: ::margo::service::ServiceClient::new(instance, target) }
            }

            /// Calls `target` through `instance`, after it has asked whether that is this service,
            /// for at most `limit`: a wrong number is found here, and not by what another provider
            /// makes of a call.
            ///
            /// # Errors
            ///
            /// [`IdentityError`](::margo::errors::IdentityError): it is another one, or says
            /// nothing, or did not answer.
            #vis fn connect(
                instance: &::margo::Instance,
                target: ::margo::ProviderHandle,
                limit: ::core::time::Duration,
            ) -> ::core::result::Result<Self, ::margo::errors::IdentityError> {
                instance.network().check_identity_timed(&target, #name, limit)?;
                ::core::result::Result::Ok(Self::new(instance, target))
            }

            /// Returns this client with a limit for each of its calls, encoding included.
            #[must_use]
            #vis fn with_timeout(self, limit: ::core::time::Duration) -> Self {
                Self { client: self.client.with_timeout(limit) }
            }

            /// The limit for each of its calls.
            #vis fn timeout(&self) -> ::core::option::Option<::core::time::Duration> {
                self.client.timeout()
            }

            /// The instance that calls.
            #vis fn instance(&self) -> &::margo::Instance {
                self.client.instance()
            }

            /// The provider that is called.
            #vis fn target(&self) -> &::margo::ProviderHandle {
                self.client.target()
            }

            #(#methods)*

            #(#chunks)*
        }
    }
}

/// The method of the client that calls one of the trait for chunk after chunk, if it has some.
fn chunks(vis: &syn::Visibility, method: &Method) -> Option<TokenStream> {
    let (chunk, cfgs, docs) = (method.chunk.as_ref()?, &method.cfgs, &method.docs);
    let name = method.name();
    let ident = Ident::new(&format!("{name}{CHUNKS}"), method.ident.span());
    let started = Ident::new(&format!("{name}{START}"), method.ident.span());
    let declared: Vec<_> =
        method.carried().map(|(ident, declared, ..)| (ident, declared)).collect();
    let ((position, position_type), others) = declared.split_last()?;
    let arguments = others.iter().map(|(ident, declared)| match declared {
        Type::Reference(reference) => {
            let elem = &reference.elem;
            quote!(#ident: &'a #elem)
        }
        other => quote!(#ident: #other),
    });
    let passed = others.iter().map(|(ident, _)| quote!(::core::clone::Clone::clone(&#ident)));
    let (error, constructor) = match &method.answer {
        Answer::Result(_, _, own) => (quote!(::margo::CallError<#own>), quote!(of_results)),
        _ => (quote!(::margo::ForwardError), quote!(of_values)),
    };
    let at = internal("at");
    let gap = (!docs.is_empty()).then(|| doc(""));
    let about = doc(&format!(
        "Calls [`{name}`](Self::{name}) for chunk after chunk, from `{position}` on, as they are \
         asked for. Arguments that are passed by value are cloned for each call."
    ));
    Some(quote! {
        #(#docs)*
        #gap
        #about
        #(#cfgs)*
        #vis fn #ident<'a>(
            &'a self,
            #(#arguments,)*
            #position: #position_type,
        ) -> ::margo::service::ResultChunks<'a, #chunk, #position_type, #error> {
            ::margo::service::ResultChunks::#constructor(#position, move |#at| {
                self.#started(#(#passed,)* #at)
            })
        }
    })
}

/// The methods of the client for one of the trait.
fn calls(vis: &syn::Visibility, defined: &Ident, method: &Method) -> TokenStream {
    let (ident, cfgs, docs) = (&method.ident, &method.cfgs, &method.docs);
    let started = Ident::new(&format!("{}{START}", method.name()), ident.span());
    let constant = constant(method);
    let declared = method.carried().map(|(ident, declared, ..)| quote!(#ident: #declared));
    let declared: Vec<_> = declared.collect();
    let sent = method.carried().map(|(ident, _, _, by)| match by {
        Passing::Bytes => quote!(::margo::encoding::Bytes(#ident)),
        Passing::Value | Passing::Reference | Passing::Text => quote!(#ident),
    });
    let sent: Vec<_> = sent.collect();
    let sent = tuple(&sent);
    let borrows = method.carried().any(|(.., by)| by != Passing::Value);
    let sending = borrows.then(|| quote!(.sending()));
    let deadline = match method.options.deadline {
        None => quote!(::core::option::Option::None),
        Some(limit) => {
            let limit = duration(limit);
            quote!(::core::option::Option::Some(#limit))
        }
    };
    let forward = quote!(::margo::ForwardError);
    let (result, error, of_request, waits, starts) = match &method.answer {
        Answer::OneWay => {
            (quote!(()), forward.clone(), quote!(()), quote!(send), quote!(start_sending))
        }
        Answer::Value(ty) => {
            (quote!(#ty), forward.clone(), quote!(#ty), quote!(forward), quote!(start))
        }
        Answer::Result(ty, value, own) => {
            let error = quote!(::margo::CallError<#own>);
            (quote!(#value), error, quote!(#ty), quote!(call), quote!(start))
        }
    };
    let errors = match &method.answer {
        Answer::Result(..) => {
            doc("[`CallError`](::margo::CallError): that of the service, or there is no answer.")
        }
        _ => doc("[`ForwardError`](::margo::ForwardError)."),
    };
    let calls = doc(&format!("Calls [`{defined}::{constant}`], and waits."));
    let after = doc(&format!("Starts [`{}`](Self::{}).", method.name(), method.name()));
    let gap = (!docs.is_empty()).then(|| doc(""));
    let heading = doc("# Errors");
    quote! {
        #(#docs)*
        #gap
        #calls
        ///
        #heading
        ///
        #errors
        #(#cfgs)*
        #vis fn #ident(&self, #(#declared),*) -> ::core::result::Result<#result, #error> {
            self.client.#waits(#defined::#constant #sending, &#sent, #deadline)
        }

        #after
        ///
        #heading
        ///
        /// [`ForwardError`](::margo::ForwardError), when nothing was sent.
        #(#cfgs)*
        #vis fn #started(
            &self,
            #(#declared),*
        ) -> ::core::result::Result<::margo::ForwardRequest<#of_request>, #forward> {
            self.client.#starts(#defined::#constant #sending, &#sent, #deadline)
        }
    }
}

/// A name that is none of the user's.
fn internal(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

fn constant(method: &Method) -> Ident {
    Ident::new(&method.ident.unraw().to_string().to_uppercase(), method.ident.span())
}

/// The type of the arguments on the wire.
fn tuple_of_types(method: &Method) -> TokenStream {
    tuple(&method.carried().map(|(_, _, owned, _)| owned).collect::<Vec<_>>())
}

/// One thing as itself, others as a tuple.
fn tuple<T: quote::ToTokens>(parts: &[T]) -> TokenStream {
    match parts {
        [one] => quote!(#one),
        parts => quote!((#(#parts),*)),
    }
}

fn doc(text: &str) -> Attribute {
    parse_quote!(#[doc = #text])
}
