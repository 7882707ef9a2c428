#!/usr/bin/env bash
# Writes src/bindings.rs: raw declarations of the part of UCP that the plugin uses, and the floors of
# `margo-bench` (worker addresses, remote memory).
#
# Run by hand, when more of the interface is wanted; the result is committed, so that a build needs
# neither the headers nor libclang. Needs bindgen-cli (`cargo install bindgen-cli --locked`, 0.73), libclang and UCX's headers (Debian: libucx-dev). Run it against the oldest
# version that is to be supported: later ones only append to what is declared here.
set -euo pipefail
cd "$(dirname "$0")"

functions=(
    ucs_status_string ucp_get_version_string
    ucp_config_read ucp_config_modify ucp_config_release
    ucp_init_version ucp_cleanup ucp_context_print_info
    ucp_worker_create ucp_worker_destroy ucp_worker_progress
    ucp_worker_get_efd ucp_worker_arm ucp_worker_set_am_recv_handler
    ucp_listener_create ucp_listener_destroy ucp_listener_query ucp_listener_reject
    ucp_conn_request_query
    ucp_ep_create ucp_ep_print_info ucp_ep_close_nbx ucp_ep_flush_nbx ucp_worker_flush_nbx
    ucp_am_send_nbx ucp_am_recv_data_nbx ucp_am_data_release ucp_request_free
    ucp_dt_create_generic ucp_dt_destroy
    ucp_worker_get_address ucp_worker_release_address
    ucp_mem_map ucp_mem_unmap ucp_rkey_pack ucp_rkey_buffer_release
    ucp_ep_rkey_unpack ucp_rkey_destroy ucp_get_nbx ucp_put_nbx
)
wrapper="$(mktemp --suffix .h)"
trap 'rm -f "$wrapper"' EXIT
echo "#include <ucp/api/ucp.h>" > "$wrapper"

allow=()
for function in "${functions[@]}"; do
    allow+=(--allowlist-function "$function")
done
# Used in masks and flags, not named by a function.
for name in ucp_.*_field ucp_feature ucp_op_attr_t ucp_send_am_flags ucp_cb_param_flags \
    ucp_am_cb_flags ucp_am_recv_attr_t ucp_ep_params_flags_field ucp_ep_close_flags_t \
    ucp_dt_type ucp_dt_iov_t; do
    allow+=(--allowlist-type "$name")
done

{
    echo '//! Declarations of UCX 1.13, written by `generate.sh`; not edited by hand.'
    echo
    bindgen --rust-target 1.89 --rust-edition 2024 --wrap-unsafe-ops --no-layout-tests \
    --no-doc-comments --default-enum-style consts --no-prepend-enum-name --use-core --ctypes-prefix ::core::ffi \
    --dynamic-loading Ucp --dynamic-link-require-all \
    --allowlist-var 'UCP_(API_.*|ENTITY_.*|MEM_MAP_PROT_.*)' \
    --blocklist-type 'sockaddr|sa_family_t|sockaddr_storage|socklen_t|__.*|_IO_.*|FILE' \
    --raw-line 'use libc::{FILE, sockaddr, sockaddr_storage, socklen_t};' \
    "${allow[@]}" "$wrapper"
} > src/bindings.rs
rustfmt --edition 2024 src/bindings.rs
