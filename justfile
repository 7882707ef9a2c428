# The commands of CONTRIBUTING.md as recipes, for those who use `just`; nothing needs it.

# Lists the recipes.
default:
    @just --list --unsorted

# Builds everything.
build:
    cargo build --workspace

# Runs all tests.
test:
    cargo test --workspace

# Runs the tests of one crate whose names contain FILTER: `just one margo calls::rpc::`.
one crate filter:
    cargo test -p {{crate}} --test it {{filter}}

# Formats, and runs what CI runs before its tests.
check:
    cargo fmt --all
    cargo clippy --workspace --all-targets -- -D warnings
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# Checks the rules that no compiler checks.
tidy:
    cargo test -p margo --test tidy

# Runs the loom models whose names contain FILTER, all by default.
loom filter="":
    LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-3}" RUSTFLAGS="--cfg loom" \
        CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom" \
        cargo test --release -p margo-loom-tests {{filter}}

# Runs a fuzz target, or `all`, for so many seconds each. Needs a nightly compiler.
fuzz target="all" seconds="60":
    fuzz/run.sh {{target}} {{seconds}}

# Repeats one seed of the simulated cluster.
seed number:
    MARGO_SIM_SEED={{number}} cargo test -p margo --test sim_cluster

# Walks many seeds of it.
seeds count="200":
    MARGO_SIM_SEEDS={{count}} cargo test --release -p margo --test sim_cluster

# Runs random programs of ULTs: `just stress 0..500`.
stress seeds="0..500":
    MARGO_STRESS_SEEDS={{seeds}} cargo test -p margo-ult --test stress

# Runs the tests over libfabric and UCX.
fabrics:
    MARGO_TEST_OFI=1 cargo test -p margo-na-ofi --lib
    MARGO_TEST_OFI=1 cargo test -p margo-na --test it ofi::
    MARGO_TEST_UCX=1 cargo test -p margo-na-ucx --lib
    MARGO_TEST_UCX=1 cargo test -p margo-na --test it ucx::

# Runs tests of `ult` under the address sanitizer (docs/checking.md). Needs a nightly compiler.
asan *filters:
    RUSTFLAGS="-Zsanitizer=address --cfg ult_asan" ASAN_OPTIONS=detect_leaks=0 \
        CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/asan" \
        cargo +nightly test -p margo-ult --target x86_64-unknown-linux-gnu {{filters}}

# Measures the rows whose ids contain FILTER: `just bench rpc.sm.rtt.poll`.
bench filter:
    cargo run --release -p margo-bench -- --filter {{filter}}

# Prints the numbers of the structure.
structure:
    cargo test -p margo --test tidy numbers -- --nocapture

# Writes config/schema.json from the types.
schema:
    MARGO_BLESS=1 cargo test -p margo-config --lib schema

# Runs what has to hold on main.
ci:
    .ci/run
