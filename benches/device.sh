#!/usr/bin/env bash
# On a machine with a GPU: tests of the real driver, then `margo-bench device` as JSON.
#
#   benches/device.sh FOLDER [RESULTS]
#
# FOLDER has what `benches/device.sh --build FOLDER` has put there, on this machine or on another one
# whose glibc is not newer; nothing else is needed but the driver. RESULTS (default: FOLDER) gets
# device.json, device.txt and tests.txt.
set -euo pipefail

if [ "${1:-}" = --build ]; then
    mkdir -p "${2:?a folder for the programs}"
    folder="$(cd "$2" && pwd)"
    cd "$(dirname "$0")/.."
    # The path of the program that cargo says it has built last.
    built() {
        cargo "$@" --message-format json |
            sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
    }
    cp "$(built build --release -p margo-bench)" "$folder/margo-bench"
    cp "$(built test --no-run -p margo-device --test it)" "$folder/device-tests"
    cp "$(built test --no-run -p margo --test it)" "$folder/margo-tests"
    cp benches/device.sh "$folder"
    exit
fi

folder="$(cd "${1:?the folder of the programs}" && pwd)"
results="${2:-$folder}"
mkdir -p "$results"
{
    "$folder/device-tests" --nocapture real:: || true
    "$folder/margo-tests" --nocapture a_device_of_this_machine || true
} 2>&1 | tee "$results/tests.txt"
"$folder/margo-bench" device --json "$results/device.json" | tee "$results/device.txt"
! grep -q '^test result: FAILED' "$results/tests.txt"
