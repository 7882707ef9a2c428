//! Descriptions of services: the types that are found, what peers are told, and calls by them.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU16;

use crate::common::{PATIENCE, Pair, TRANSPORTS};
use margo::service::{MethodDescription, ServiceDescription, services_of};
use margo::{
    Bulk, OneWay, ProviderHandle, ProviderId, RegisterError, Rpc, encoding::Bytes, encoding::Raw,
    errors::DescribeError,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

const ID: ProviderId = ProviderId::new(4);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Point {
    x: i32,
    y: Option<f32>,
}

/// A newtype is what is in it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Meters(f64);

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Shape {
    Nothing,
    Dot(Point),
    Line(Point, Point),
    Circle { at: Point, radius: Meters },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Color {
    Red,
    Green,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Tree {
    children: Vec<Tree>,
}

/// Refuses the value that is made up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
struct Name(String);

impl TryFrom<String> for Name {
    type Error = &'static str;

    fn try_from(name: String) -> Result<Self, &'static str> {
        if name.is_empty() { Err("a name is not empty") } else { Ok(Self(name)) }
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

fn described<T: DeserializeOwned>() -> MethodDescription {
    MethodDescription::of(Rpc::<T, ()>::new("f"), &["a"])
}

fn type_of<T: DeserializeOwned>() -> String {
    described::<T>().arguments.remove(0).of.to_string()
}

#[test]
fn types_are_found_by_what_they_decode() {
    for (found, expected) in [
        (type_of::<u8>(), "u8"),
        (type_of::<i128>(), "i128"),
        (type_of::<(bool, char, f32)>(), "(bool, char, f32)"),
        (type_of::<(u8,)>(), "(u8,)"),
        (type_of::<[u16; 8]>(), "[u16; 8]"),
        (type_of::<String>(), "String"),
        (type_of::<Bytes>(), "Bytes"),
        (type_of::<Vec<u8>>(), "Vec<u8>"),
        (type_of::<Option<Vec<(String, u64)>>>(), "Option<Vec<(String, u64)>>"),
        (type_of::<BTreeMap<String, HashMap<u8, ()>>>(), "Map<String, Map<u8, ()>>"),
        (type_of::<Box<Point>>(), "Point"),
        (type_of::<Meters>(), "f64"),
        (type_of::<NonZeroU16>(), "u16"),
        (type_of::<Name>(), "String"),
        (type_of::<Result<Shape, String>>(), "Result<Shape, String>"),
        (type_of::<(Bulk, u8)>(), "(Bulk, u8)"),
        (type_of::<(u8, Raw)>(), "(u8, Raw)"),
        (type_of::<std::time::Duration>(), "Duration"),
        (type_of::<std::net::IpAddr>(), "IpAddr"),
    ] {
        assert_eq!(found, expected);
    }
    let shape = described::<Result<Shape, Vec<Color>>>().arguments.remove(0).of;
    let definitions: Vec<_> = shape.named().iter().map(|of| of.definition()).collect();
    let expected = [
        "enum Shape { Nothing, Dot(Point), Line(Point, Point), Circle { at: Point, radius: f64 } }",
        "struct Point { x: i32, y: Option<f32> }",
        "enum Color { Red, Green }",
    ];
    assert_eq!(definitions, expected);
}

#[test]
fn types_that_cannot_be_described_say_why() {
    let text = |of: MethodDescription| serde_json::to_string(&of).unwrap();
    let tree = text(described::<Tree>());
    assert!(tree.contains("children") && tree.contains("Tree` contains itself"), "{tree}");
    let any = text(described::<Value>());
    assert!(any.contains("it asks its bytes what they are"), "{any}");
    // What stands beside it is known all the same.
    let result = text(described::<Result<u8, (Value, u8)>>());
    assert!(result.contains(r#"{"name":"Ok","type":"u8"}"#), "{result}");
    let error = described::<Tree>().encode(&json!({ "a": { "children": [{}] } })).unwrap_err();
    assert!(error.to_string().contains("a.children.0: the type of it cannot be"), "{error}");
}

/// Encodes by the description, and compares with the type's own encoding; and back.
#[track_caller]
fn encodes<T>(value: &T, as_json: &Value)
where
    T: Serialize + DeserializeOwned,
{
    let method = MethodDescription::of(Rpc::<T, T>::new("f"), &["a"]);
    let bytes = method.encode(&json!({ "a": as_json })).unwrap();
    assert_eq!(bytes, margo::hg::proc::to_vec(value).unwrap(), "{as_json}");
    assert_eq!(method.decode(&bytes).unwrap(), *as_json);
    // Bytes that end too early, or too late.
    for wrong in [&bytes[..bytes.len().saturating_sub(1)], &[&*bytes, &[0]].concat()] {
        assert!(wrong == bytes || method.decode(wrong).is_err(), "{as_json}");
    }
}

#[test]
fn values_are_encoded_as_their_types_do() {
    encodes(&-5_i8, &json!(-5));
    encodes(&u64::MAX, &json!(u64::MAX));
    encodes(&u128::MAX, &json!(u128::MAX.to_string()));
    encodes(&i128::MIN, &json!(i128::MIN.to_string()));
    encodes(&1.5_f32, &json!(1.5));
    encodes(&'ß', &json!("ß"));
    encodes(&(true, "text".to_owned()), &json!([true, "text"]));
    encodes(&[1_u16, 2, 3], &json!([1, 2, 3]));
    encodes(&Bytes(b"text".to_vec()), &json!("text"));
    encodes(&Bytes(vec![0, 255]), &json!({ "hex": "00ff" }));
    encodes(&vec![Some(1_u8), None], &json!([1, null]));
    encodes(&BTreeMap::from([("a".to_owned(), 1_u8)]), &json!({ "a": 1 }));
    encodes(&BTreeMap::from([(7_u8, 1_u8)]), &json!([[7, 1]]));
    let (at, json_at) = (Point { x: 1, y: Some(0.5) }, json!({ "x": 1, "y": 0.5 }));
    encodes(&Shape::Nothing, &json!("Nothing"));
    encodes(&Shape::Dot(at.clone()), &json!({ "Dot": json_at }));
    encodes(&Shape::Line(at.clone(), at.clone()), &json!({ "Line": [json_at, json_at] }));
    encodes(
        &Shape::Circle { at, radius: Meters(2.0) },
        &json!({ "Circle": { "at": json_at, "radius": 2.0 } }),
    );
    encodes(&Ok::<(), Color>(()), &json!("Ok"));
    encodes(&Err::<(), Color>(Color::Green), &json!({ "Err": "Green" }));
}

#[test]
fn wrong_arguments_are_told_with_their_place() {
    let method =
        MethodDescription::of(Rpc::<(Shape, Vec<u8>), ()>::new("f"), &["shape", "numbers"]);
    let told = |args: Value| method.encode(&args).unwrap_err().to_string();
    for (args, text) in [
        (json!(3), "3 is no object"),
        (json!({}), "`shape: Shape` is missing"),
        (json!({ "shape": "Nothing", "numbers": [], "x": 1 }), "there are: `shape`, `numbers`"),
        (json!({ "shape": "Square", "numbers": [] }), "shape: Shape has no `Square`; it has:"),
        (json!({ "shape": { "Dot": { "x": 1.5 } }, "numbers": [] }), "shape.Dot.x: 1.5 is no i32"),
        (json!({ "shape": "Nothing", "numbers": [1, 256] }), "numbers.1: 256 is no u8"),
        (
            json!({ "shape": { "Line": [1] }, "numbers": [] }),
            "shape.Line: [1] is no (Point, Point)",
        ),
    ] {
        assert!(told(args.clone()).contains(text), "{args}: {}", told(args.clone()));
    }
    // An option may be left out.
    method.encode(&json!({ "shape": { "Dot": { "x": 1 } }, "numbers": [] })).unwrap();
}

/// Shapes.
///
/// More about them.
#[margo::service(name = "draw")]
trait Draw {
    /// Draws a shape,
    /// and returns how many there are.
    ///
    /// As often as it is called.
    #[margo(deadline = "2s")]
    fn draw(&self, shape: &Shape, color: Color) -> Result<u32, String>;
    #[margo(one_way)]
    fn clear(&self);
}

#[derive(Default)]
struct Canvas(ult::Mutex<Vec<(Shape, Color)>>);

impl Draw for Canvas {
    fn draw(&self, shape: &Shape, color: Color) -> Result<u32, String> {
        let mut all = self.0.lock();
        if *shape == Shape::Nothing {
            return Err("nothing to draw".to_owned());
        }
        all.push((shape.clone(), color));
        Ok(u32::try_from(all.len()).unwrap())
    }

    fn clear(&self) {
        self.0.lock().clear();
    }
}

#[test]
fn a_service_describes_itself_and_is_called_by_that() {
    for transport in TRANSPORTS.into_iter().chain(["na+sim://"]) {
        let pair = Pair::new(transport);
        let addr = pair.target().addr().clone();
        let error = services_of(&pair.client, &addr, PATIENCE).unwrap_err();
        assert!(matches!(error, DescribeError::Unknown { .. }), "{error}");

        let provider = DrawService::serve(&pair.service, ID, Canvas::default()).unwrap();
        let other = pair.service.provider(ProviderId::new(2), &pair.service.layout().rpc_pool());
        other.serve(Rpc::<(), u8>::new("by_hand")).function(|()| 1).unwrap();
        let by_hand = MethodDescription::of(Rpc::<(), u8>::new("by_hand"), &[]);
        other.describe(ServiceDescription::new("other").method(by_hand)).unwrap();

        let services = services_of(&pair.client, &addr, PATIENCE).unwrap();
        let [of_other, draw] = &*services else { panic!("{services:?}") };
        assert_eq!(of_other.methods[0].to_string(), "by_hand() -> u8");
        assert_eq!((&*draw.name, draw.provider, &*draw.about), ("draw", 4, "Shapes."));
        let [method, clear] = &*draw.methods else { panic!("{draw:?}") };
        let text = "draw.draw(shape: Shape, color: Color) -> Result<u32, String>";
        assert_eq!((&*method.to_string(), method.deadline_ms), (text, Some(2000)));
        assert_eq!(method.about, "Draws a shape, and returns how many there are.");
        assert_eq!((&*clear.to_string(), &clear.result), ("draw.clear()", &None));

        let target = ProviderHandle::new(addr.clone(), ID);
        let rpc: Rpc<Raw, Raw> = Rpc::new("draw.draw");
        let call = |args: Value| {
            let args = Raw(method.encode(&args).unwrap());
            method.decode(&pair.client.forward(rpc, &target, &args).unwrap()).unwrap()
        };
        let dot = json!({ "Dot": { "x": 1, "y": null } });
        assert_eq!(call(json!({ "shape": dot, "color": "Green" })), json!({ "Ok": 1 }));
        let error = call(json!({ "shape": "Nothing", "color": "Red" }));
        assert_eq!(error, json!({ "Err": "nothing to draw" }));
        let sent: OneWay<Raw> = OneWay::new("draw.clear");
        pair.client.send(sent, &target, &Raw(clear.encode(&json!({})).unwrap())).unwrap();

        // A description is gone with its provider.
        provider.close(PATIENCE).unwrap();
        let names: Vec<_> = services_of(&pair.client, &addr, PATIENCE).unwrap();
        assert_eq!(names.iter().map(|own| &*own.name).collect::<Vec<_>>(), ["other"]);
        drop(other);
        assert!(services_of(&pair.client, &addr, PATIENCE).unwrap().is_empty());
        pair.end();
    }
}

#[test]
fn nothing_is_described_where_nobody_listens() {
    let pair = Pair::new("na+sm://");
    let provider = pair.client.provider(ID, &pair.client.layout().rpc_pool());
    let error = provider.describe(DrawService::description()).unwrap_err();
    assert!(matches!(error, RegisterError::NotListening { .. }), "{error}");
    drop(provider);
    pair.end();
}
