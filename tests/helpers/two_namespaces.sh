#!/usr/bin/env bash
# Two network namespaces that a cable joins, 10.77.0.1 and 10.77.0.2. Inside `unshare -rn`: two_namespaces.sh OTHER PROGRAM...
# PROGRAM runs in the first, OTHER (for `bash -c`) in the second until it ends or PROGRAM has; the status is PROGRAM's.
set -euo pipefail
ip link set lo up
until_connected() {
    for _ in $(seq 600); do
        if ip -o link show cable 2>/dev/null | grep -q "state UP"; then return; fi
        sleep 0.1
    done
    echo "two_namespaces: the cable does not come up" >&2
    return 1
}
export -f until_connected
# shellcheck disable=SC2016
unshare -n bash -c 'until_connected && exec bash -c "$0"' "$1" &
other=$!
trap 'kill "$other" 2>/dev/null || true; wait "$other" || true' EXIT
shift
while [ "$(readlink "/proc/$other/ns/net")" = "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
nsenter -t "$other" -n ip link set lo up
ip link add cable type veth peer name cable netns "$other"
ip addr add 10.77.0.1/24 dev cable
nsenter -t "$other" -n ip addr add 10.77.0.2/24 dev cable
ip link set cable up
nsenter -t "$other" -n ip link set cable up
until_connected
status=0
"$@" || status=$?
exit "$status"
