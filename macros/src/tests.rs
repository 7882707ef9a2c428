//! Errors, at the line where their cause is written, and what is written for a trait.

use super::expand;

/// The errors for a trait with that body, each with its line: `3: text`.
fn errors(body: &str) -> Vec<String> {
    errors_of("", &format!("trait Kv {{{body}}}"))
}

fn errors_of(options: &str, item: &str) -> Vec<String> {
    let expanded = expand(options.parse().unwrap(), item.parse().unwrap());
    let errors = expanded.expect_err("it is accepted");
    let of_one = |error: syn::Error| format!("{}: {error}", error.span().start().line);
    errors.into_iter().map(of_one).collect()
}

#[track_caller]
fn complains(body: &str, errors_that_begin: &[&str]) {
    let found = errors(body);
    let is_so = |(found, expected): (&String, &&str)| found.starts_with(*expected);
    let all = found.len() == errors_that_begin.len();
    assert!(all && found.iter().zip(errors_that_begin).all(is_so), "{found:#?}");
}

#[test]
fn each_method_takes_self_by_reference() {
    complains(
        "fn a(&self);
         fn b(self);
         fn c(&mut self);
         fn d(x: u8);
         fn e();",
        &[
            "2: a method of a service takes `&self`: ",
            "3: a method of a service takes `&self`: ",
            "4: a method of a service takes `&self`: ",
            "5: a method of a service takes `&self`",
        ],
    );
}

#[test]
fn arguments_can_be_decoded_by_others() {
    complains(
        "fn a(&self, key: &str, b: &[u8], c: &[String], d: Option<Vec<u8>>, e: &Usage);
         fn b(&self,
              value: &mut Vec<u8>,
              name: Option<&str>,
              f: impl Fn(),
              _: u8,
              own: Self,
              text: &'static str);",
        &[
            "3: an argument of a service is not changed by it",
            "4: references stand before the whole type",
            "5: the type of an argument of a service is one type",
            "6: an argument of a service has a name",
            "7: peers do not know the type that serves",
            "8: an argument of a service lives as long as its handler",
        ],
    );
    let many: String = (0..17).map(|n| format!("a{n}: u8,")).collect();
    complains(&format!("fn a(&self, {many});"), &["1: a method of a service has at most 16"]);
    complains(
        "fn a(&self, x: &RequestContext, y: &margo::service::RequestContext);",
        &["1: a request has one context"],
    );
}

#[test]
fn results_are_owned_and_name_their_error() {
    complains(
        "fn a(&self) -> Result<u8, String>;
         fn b(&self) -> std::io::Result<u8>;
         fn c(&self) -> &str;
         fn d(&self) -> impl Iterator<Item = u8>;",
        &[
            "2: write the error out",
            "3: references stand before the whole type",
            "4: the type of an argument",
        ],
    );
}

#[test]
fn a_service_is_plain_functions() {
    complains(
        "const A: u8;
         type B;
         async fn c(&self);
         fn d<T>(&self, value: T);",
        &[
            "1: a service has methods only",
            "2: a service has methods only",
            "3: a method of a service is a plain function",
            "4: a method of a service has no parameters of types",
        ],
    );
    assert_eq!(errors_of("", "trait Kv<T> {}").len(), 1);
    assert!(errors_of("", "struct Kv;")[0].contains("expected `trait`"));
}

#[test]
fn names_that_the_client_has_are_refused() {
    complains(
        "fn get(&self);
         fn get_start(&self);
         fn new(&self);",
        &[
            "3: each client has a method `new`",
            "2: the client has a method of this name, which starts a call of `get`",
        ],
    );
}

#[test]
fn options_are_known_and_make_sense() {
    complains(
        "#[margo(one_way)] fn a(&self);
         #[margo(onw_way)] fn b(&self);
         #[margo(deadline = \"2 s\")] fn c(&self);
         #[margo(deadline = \"0s\")] fn d(&self);
         #[margo(deadline = 2)] fn e(&self);
         #[margo(one_way)] fn f(&self) -> u8;
         #[margo(one_way, deadline = \"2s\")] fn g(&self);
         #[margo(deadline = \"2s\", pool = \"slow\", admission = 3, rpc = \"x\")] fn h(&self);",
        &[
            "2: there is no such option of a method; there are `one_way`, `chunks`",
            "3: a deadline is a number with its unit",
            "4: a deadline is a number with its unit",
            "5: expected string literal",
            "6: a one-way method returns nothing",
            "7: a one-way method has no deadline",
        ],
    );
    let error = &errors_of("prefix = \"x\"", "trait Kv {}")[0];
    assert!(error.contains("there is no such option of a service; there is `name"), "{error}");
    assert!(errors_of("name = \"\"", "trait Kv {}")[0].contains("at least one character"));
}

#[test]
fn chunks_have_positions() {
    complains(
        "#[margo(chunks)] fn a(&self) -> Option<(Bytes, u64)>;
         #[margo(chunks)] fn b(&self, at: &u64) -> Option<(Bytes, u64)>;
         #[margo(chunks)] fn c(&self, at: u64);
         #[margo(chunks)] fn d(&self, at: u64) -> Result<(Bytes, u64), String>;
         #[margo(chunks)] fn e(&self, at: u64) -> Option<Bytes>;
         #[margo(chunks)] fn f(&self, at: String) -> Result<Option<(Bytes, u64)>, String>;
         #[margo(chunks, one_way)] fn g(&self, at: u64);
         #[margo(chunks)] fn h(&self, request: &RequestContext, at: u64) -> Option<(Bytes, u64)>;
         #[margo(chunks)] fn i(&self, at: u64) -> std::io::Result<Option<(Bytes, u64)>>;
         fn h_chunks(&self);
         fn a_chunks(&self);",
        &[
            "1: a method with chunks has the position of the chunk as its last argument",
            "2: a method with chunks has the position of the chunk as its last argument",
            "3: a method with chunks returns `Option<(T, P)>`",
            "4: a method with chunks returns `Option<(T, P)>`",
            "5: a method with chunks returns `Option<(T, P)>`",
            "6: the position of the next chunk is of the type that the argument `at` has",
            "7: a one-way method returns nothing, so it has no chunks",
            "9: write the error out",
            "10: the client has a method of this name, which has the chunks of `h`",
        ],
    );
}

/// Methods that only some builds have are left out together with what is written for them.
#[test]
fn conditions_of_methods_are_those_of_what_is_written() {
    let item = "trait Kv { #[cfg(any())] fn never(&self, a: u8); }";
    let written = expand("".parse().unwrap(), item.parse().unwrap()).unwrap().to_string();
    // The trait's own; the constant; the registration; the description; two methods; the types of
    // `a` and of `()`.
    assert_eq!(written.matches("# [cfg (any ())]").count(), 8, "{written}");
}
