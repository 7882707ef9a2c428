//! The recipe for Spack, read by Python with stand-ins for Spack's modules.

use std::process::Command;

use super::{output, program, root, rust_version};

/// Collects what the recipe declares, and runs what it does at run time.
const SPACK: &str = r#"
import sys, types
said = []
def directive(name):
    return lambda *args, **more: said.append((name, args, more))
spack, package = types.ModuleType("spack"), types.ModuleType("spack.package")
for name in ("version", "license", "variant", "depends_on"):
    setattr(package, name, directive(name))
package.run_after = package.on_package_attributes = lambda *args, **more: lambda method: method
package.Executable = lambda path: lambda *args: said.append(("run", (path, *args), {}))
cargo = types.ModuleType("cargo")
class CargoPackage: pass
cargo.CargoPackage = CargoPackage
sys.modules.update({"spack": spack, "spack.package": package, "spack_repo": spack,
    "spack_repo.builtin": spack, "spack_repo.builtin.build_systems": spack,
    "spack_repo.builtin.build_systems.cargo": cargo})
recipe = {}
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), recipe)
class Any:
    def __getattr__(self, name): return Any()
    def __getitem__(self, name): return Any()
    def satisfies(self, variant): return True
own = recipe["MargoRs"]()
own.spec = own.prefix = Any()
own.setup_run_environment(types.SimpleNamespace(
    prepend_path=lambda name, value: said.append(("path", (name,), {}))))
own.check_install()
for name, args, more in said:
    print(name, *(arg for arg in args if isinstance(arg, str)), more.get("when", ""))
print("in", own.build_directory)
"#;

#[test]
fn the_recipe_declares_what_the_workspace_needs() {
    let Some(python) = program("python3") else {
        return println!("SKIPPED: there is no python3 here");
    };
    let recipe = root().join("contrib/spack/package.py");
    let (ok, said) = output(Command::new(python).args(["-B", "-c", SPACK]).arg(recipe));
    assert!(ok, "{said}");
    let rust = format!("depends_on rust@{}: ", rust_version());
    for line in [&*rust, "variant ofi ", "variant ucx ", "depends_on libfabric +ofi", "run info "] {
        assert!(said.lines().any(|said| said == line), "no {line:?} in {said}");
    }
    assert_eq!(said.matches("path LD_LIBRARY_PATH").count(), 2, "{said}");
    let folder = said.lines().find_map(|line| line.strip_prefix("in ")).unwrap();
    assert!(root().join(folder).join("Cargo.toml").is_file(), "{folder}");
}
