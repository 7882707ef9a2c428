//! Documents that cut graphs into groups.

use margo_stream::graph::{Graph, GraphDocument, Plan};

fn plan() -> Plan {
    let graph = Graph::new();
    graph
        .source("read", 0..9u32)
        .stage("parse")
        .all_to_all(("left", 2), |left| left.key_by(|n| n % 3), ("right", 4))
        .pairs()
        .stage("write")
        .for_each(drop);
    graph.plan()
}

fn refused(text: &str) -> Vec<String> {
    let document = match GraphDocument::from_json(text) {
        Ok(document) => document,
        Err(errors) => return errors.iter().map(ToString::to_string).collect(),
    };
    let errors = document.resolve(&plan()).unwrap_err();
    errors.iter().map(ToString::to_string).collect()
}

#[test]
fn stages_and_replicas_are_cut_anywhere() {
    let document = GraphDocument::from_json(
        r#"{
            "groups": {
                "G1": { "stages": ["read"] },
                // An all-to-all in two.
                "G2": { "stages": ["parse", "left[0]", "right[0..2]"], "credit_bytes": 65536,
                        "endpoints": [{ "name": "a", "address": "na+tcp://127.0.0.1:1" }] },
                "G3": { "stages": ["left[1..2]", "right[2..4]"], "batch_bytes": 4096,
                        "endpoints": [{ "address": "na+sm://" }] },
                "G4": { "stages": ["write"], "endpoints": [{ "address": "na+sm://" }] },
            },
            "channels": { "left->right": { "batch_bytes": 512 } },
        }"#,
    )
    .unwrap();
    let cut = document.resolve(&plan()).unwrap();
    let sends = |name: &str| -> Vec<_> {
        let group = cut.group(name).unwrap();
        let one = group.sends.iter();
        one.map(|to| (to.edge, to.peer.as_str(), to.is_internal, to.options.batch_bytes)).collect()
    };
    assert_eq!(sends("G1"), [(0, "G2", false, None)]);
    let to_g3 = [(1, "G3", false, Some(4096)), (2, "G3", true, Some(512))];
    // They have the level of the all-to-all in common.
    let to_g3 = to_g3.map(|(edge, peer, _, bytes)| (edge, peer, true, bytes));
    assert_eq!(sends("G2"), [to_g3[0], to_g3[1], (3, "G4", false, None)]);
    assert_eq!(sends("G3"), [(2, "G2", true, Some(512)), (3, "G4", false, None)]);
    let g2 = cut.group("G2").unwrap();
    assert_eq!(g2.receives.iter().map(|one| one.options.credit_bytes).max(), Some(Some(65536)));
    assert_eq!(g2.replicas[&3].iter().copied().collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn a_document_that_does_not_fit_is_refused_with_names() {
    let refused = refused(
        r#"{ "groups": {
            "A": { "stages": ["raed", "parse", "left[0..3]", "right[", "left[1]"] },
            "B": { "stages": ["parse", "left[1]", "right[1..4]"] }
        }, "channels": { "left->wright": {} } }"#,
    );
    let expected = [
        "groups.A.stages[0]: no stage is called \"raed\" (stages: read, parse, left, right, \
         write); did you mean \"read\"?",
        "groups.A.stages[2]: \"left\" has the replicas 0..2, not 0..3",
        "groups.A.stages[3]: \"right[\" is no part of a stage: a name, `name[0..2]` or `name[3]` \
         is allowed",
        "groups.B.stages[0]: replica 0 of \"parse\" is in \"A\" already",
        "groups.B.stages[1]: replica 1 of \"left\" is in \"A\" already",
        "groups: stage \"read\" is in none",
        "groups: replicas [0] of stage \"left\" are in none",
        "groups: replicas [0] of stage \"right\" are in none",
        "groups: stage \"write\" is in none",
        "groups.A.endpoints: there is none, and it receives from B",
        "groups.B.endpoints: there is none, and it receives from A",
        "channels.left->wright: there is no such edge (edges: read->parse, parse->left, \
         left->right, right->write); did you mean \"left->right\"?",
    ];
    assert_eq!(refused, expected);
}

#[test]
fn unknown_keys_are_told_with_what_is_allowed() {
    let refused = refused(r#"{ "groups": { "A": { "stage": ["read"] } } }"#);
    assert_eq!(refused.len(), 1);
    assert!(refused[0].starts_with("groups.A.stage: unknown key (allowed: "), "{refused:?}");
    assert!(refused[0].contains("did you mean \"stages\"?"), "{refused:?}");
}

#[test]
fn an_edge_whose_items_cannot_be_encoded_is_not_cut() {
    let graph = Graph::new();
    graph.source("make", [&0u8]).local_stage("use").for_each(drop);
    let text = r#"{ "groups": { "A": { "stages": ["make"] }, "B": { "stages": ["use"],
        "endpoints": [{ "address": "na+sm://" }] } } }"#;
    let errors = GraphDocument::from_json(text).unwrap().resolve(&graph.plan()).unwrap_err();
    assert_eq!(
        errors.to_string(),
        "groups: \"make\" and \"use\" have to be in one group: &u8 cannot be encoded"
    );
}

#[test]
fn a_list_of_groups_is_a_file_of_fastflow() {
    let text =
        r#"{ "protocol": "TCP", "groups": [{ "name": "left[0..1]", "preCmd": "srun -n1" }] }"#;
    let document = GraphDocument::from_json(text).unwrap();
    let group = &document.groups["left[0..1]"];
    assert_eq!(group.stages, ["left[0..1]"]);
    assert_eq!(group.launcher.as_ref().unwrap().before, ["srun", "-n1"]);
    let errors = refused(&text.replace("TCP", "MPI"));
    assert!(errors[0].contains("\"MPI\" has no counterpart"), "{errors:?}");
    // Neither of the two.
    let errors = refused(r#"{ "name": "words", "groups": 7 }"#);
    assert!(errors.len() == 1 && errors[0].contains("groups"), "{errors:?}");
}
