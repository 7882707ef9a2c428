#!/usr/bin/env bash
# Runs a fuzz target with a nightly compiler and without cargo-fuzz (which works too):
#
#     fuzz/run.sh TARGET [SECONDS] [LIBFUZZER-OPTION…]     one target, 60 s by default
#     fuzz/run.sh all [SECONDS]                            each of them, one after the other
#
# Starts from `corpus/TARGET`; what it finds new goes to `grown/TARGET`, crashes to
# `artifacts/TARGET`. `FUZZ_SANITIZER=none` is faster; the default is the address sanitizer.
set -euo pipefail
cd "$(dirname "$0")"

target="${1:?target}"
seconds="${2:-60}"
shift $(($# > 2 ? 2 : $#))
if [ "$target" = all ]; then
    for file in fuzz_targets/*.rs; do
        "$PWD/run.sh" "$(basename "$file" .rs)" "$seconds"
    done
    exit
fi

flags="--cfg fuzzing -Ccodegen-units=1 -Cpasses=sancov-module \
-Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
-Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
if [ "${FUZZ_SANITIZER:-address}" != none ]; then
    flags="$flags -Zsanitizer=${FUZZ_SANITIZER:-address}"
fi
host="$(rustc -vV | sed -n 's/^host: //p')"
build="${CARGO_TARGET_DIR:-$PWD/target}/fuzz-${FUZZ_SANITIZER:-address}"
RUSTFLAGS="$flags" CARGO_TARGET_DIR="$build" \
    cargo +nightly build --release --target "$host" --bin "$target"
mkdir -p "grown/$target" "artifacts/$target"
"$build/$host/release/$target" "grown/$target" "corpus/$target" -max_total_time="$seconds" \
    -max_len=2048 -timeout=20 -artifact_prefix="artifacts/$target/" -print_final_stats=1 "$@"
