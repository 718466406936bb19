#!/bin/sh
# Builds and runs a program with what pkg-config says: pkg_config.sh PKG_CONFIG CC FOLDER SOURCE
set -eu
export PKG_CONFIG_PATH="$3"
flags=$("$1" --cflags --libs nccl)
libraries=$("$1" --variable=libdir nccl)
# shellcheck disable=SC2086 # flags are words
"$2" -std=c99 -I"$(dirname "$0")" "$4" -o pkg_config_program $flags
LD_LIBRARY_PATH="$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" ./pkg_config_program
