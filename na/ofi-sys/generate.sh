#!/usr/bin/env bash
# Writes src/raw.rs from the installed headers of libfabric. Run by hand, when more of the interface
# is wanted; the result is committed, so that a build needs neither the headers nor libclang.
#
# Needs: libfabric-dev (written with 1.17, whose structures every later 1.x and 2.x library still
# serves, see src/library.rs), libclang, and `cargo install bindgen-cli --locked` (0.73).
set -euo pipefail
cd "$(dirname "$0")"

{
    for header in fabric fi_errno fi_eq fi_domain fi_endpoint fi_cm fi_tagged fi_rma; do
        echo "#include <rdma/$header.h>"
    done
    # Constants with a type or a shift that is lost in a macro.
    for name in MSG RMA TAGGED READ WRITE RECV SEND REMOTE_READ REMOTE_WRITE MULTI_RECV \
        REMOTE_CQ_DATA COMPLETION INJECT INJECT_COMPLETE DELIVERY_COMPLETE SOURCE_ERR SOURCE \
        DIRECTED_RECV NUMERICHOST CONTEXT CONTEXT2 ASYNC_IOV HMEM \
        TC_BEST_EFFORT TC_LOW_LATENCY TC_DEDICATED_ACCESS TC_BULK_DATA TC_SCAVENGER TC_NETWORK_CTRL; do
        echo "static const unsigned long long MARGO_FI_$name = FI_$name;"
    done
} > "${TMPDIR:-/tmp}/margo-ofi-wrapper.h"
trap 'rm -f "${TMPDIR:-/tmp}/margo-ofi-wrapper.h"' EXIT

{
    echo "//! Declarations of libfabric 1.17, written by \`generate.sh\`; not edited by hand."
    echo
    bindgen "${TMPDIR:-/tmp}/margo-ofi-wrapper.h" \
        --no-doc-comments --no-layout-tests --use-core --default-enum-style consts --no-prepend-enum-name \
        --rust-target 1.89 --rust-edition 2024 \
        --allowlist-type 'fi_(info|context2?|cq_tagged_entry|cq_err_entry|cq_attr|av_attr|mr_attr)' \
        --allowlist-type 'fi_(msg|msg_tagged|msg_rma|rma_iov|progress|threading|resource_mgmt)' \
        --allowlist-type 'fi_(ops.*|ep_type|cq_format|wait_obj|av_type|pci_attr|bus_attr)' \
        --allowlist-type 'fid.*' \
        --allowlist-var 'FI_(ADDR|SOCKADDR|PROTO|MR|E[A-Z]|CQ|WAIT|AV|OPT|GETWAIT|ENABLE|FORMAT).*' \
        --allowlist-var 'MARGO_FI_.*' \
        --blocklist-type 'iovec|va_list|__va_list_tag|__builtin_va_list' \
        --blocklist-function '.*' \
        --raw-line 'use libc::iovec;'
} > src/raw.rs
sed -i 's/MARGO_FI_/FI_/' src/raw.rs
rustfmt --edition 2024 src/raw.rs
