//! The declarations against the header, where it is: a C program prints sizes, offsets and values,
//! and the symbols that the names of functions stand for.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::mem::{offset_of, size_of};
use std::process::Command;

use device::raw::{CUmemAccessDesc, CUmemAllocationProp, CUmemLocation, SYMBOLS, VALUES};

fn ours() -> BTreeMap<String, String> {
    let mut ours = BTreeMap::new();
    let mut add = |name: &str, value: i64| ours.insert(name.to_owned(), value.to_string());
    for (name, value) in VALUES {
        add(name, *value);
    }
    add("sizeof(CUmemLocation)", size_of::<CUmemLocation>() as i64);
    add("sizeof(CUmemAllocationProp)", size_of::<CUmemAllocationProp>() as i64);
    add("sizeof(CUmemAccessDesc)", size_of::<CUmemAccessDesc>() as i64);
    add("offsetof(CUmemLocation, id)", offset_of!(CUmemLocation, id) as i64);
    add("offsetof(CUmemAccessDesc, flags)", offset_of!(CUmemAccessDesc, flags) as i64);
    add(
        "offsetof(CUmemAllocationProp, requestedHandleTypes)",
        offset_of!(CUmemAllocationProp, requestedHandleTypes) as i64,
    );
    add(
        "offsetof(CUmemAllocationProp, location)",
        offset_of!(CUmemAllocationProp, location) as i64,
    );
    add(
        "offsetof(CUmemAllocationProp, allocFlags)",
        offset_of!(CUmemAllocationProp, allocFlags) as i64,
    );
    ours.extend(SYMBOLS.iter().map(|(name, symbol)| (format!("&{name}"), (*symbol).to_owned())));
    ours
}

#[test]
fn the_declarations_are_those_of_the_header() {
    let ours = ours();
    let mut program = String::from("#include <cuda.h>\n#include <stddef.h>\n#include <stdio.h>\n");
    program.push_str("#define S_(x) #x\n#define S(x) S_(x)\nint main(void) {\n");
    for name in ours.keys() {
        match name.strip_prefix('&') {
            Some(function) => {
                // The header's own check that there is such a function, and its symbol.
                writeln!(program, "(void)sizeof(&{function}); puts(S({function}) \" {name}\");")
            }
            None => writeln!(program, "printf(\"%lld {name}\\n\", (long long)({name}));"),
        }
        .unwrap();
    }
    program.push_str("return 0; }\n");
    let folder = std::env::temp_dir().join(format!("cuda-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (source, binary) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&source, program).unwrap();
    let compiled = Command::new("cc").arg("-o").arg(&binary).arg(&source).output();
    let result = match compiled {
        Err(error) => Err(format!("no C compiler: {error}")),
        Ok(output) if !output.status.success() => {
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            // Anything else than a missing header is a wrong declaration.
            assert!(text.contains("cuda.h: No such file"), "{text}");
            Err("the header of CUDA is missing: name its folder in CPATH".to_owned())
        }
        Ok(_) => Ok(Command::new(&binary).output().unwrap()),
    };
    std::fs::remove_dir_all(&folder).unwrap();
    let output = match result {
        Ok(output) => output,
        Err(why) => return println!("SKIPPED: {why}"),
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let theirs: BTreeMap<_, _> = text
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(value, name)| (name.to_owned(), value.to_owned()))
        .collect();
    assert_eq!(ours, theirs);
}
