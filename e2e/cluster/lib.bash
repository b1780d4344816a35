# What the scripts of this folder share; sourced, never run. README.md explains the variables.
# shellcheck shell=bash disable=SC2034 # variables are used by the scripts that source this file

here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
version=$(awk '$1 == "k8s.io/kubernetes" { print $2 }' "$here/kubernetes/go.mod")
cache=${ROUSE_KUBERNETES:-${HOME:?}/.cache/rouse/kubernetes/$version}
bin=$cache/bin
# The file name has the version: the folder of the programs has only Kubernetes'.
dns=coredns-$(awk '$2 == "github.com/coredns/coredns" { print $3 }' "$here/dns/go.mod")
run=$(readlink -m "${ROUSE_CLUSTER:-/tmp/rouse-cluster}")
# Addresses of the node, and of this machine as the node and its pods see it.
node_ip=10.99.0.1 host_ip=10.99.0.254
# Several, for several gateways with the same port. The first is the source of connections.
host_ips="$host_ip 10.99.0.253 10.99.0.252"
pod_cidr=10.244.0.0/16 service_cidr=10.96.0.0/16
# There is one node per machine: its addresses, its link and its cgroups exist once. This link names the run folder of it.
claim=/run/rouse-cluster

say() { printf 'cluster: %s\n' "$*" >&2; }

fail() {
    say "$*"
    exit 1
}

# A test that cannot run must not look like one that passed: runners know 77 as "skipped".
skip() {
    printf '\nSKIPPED: cluster: %s\n\n' "$*" >&2
    exit 77
}

# Runs a command and prints how long it took.
timed() {
    local what=$1 began=${EPOCHREALTIME/./}
    shift
    "$@"
    say "$(printf '%-44s %7d ms' "$what" $(((${EPOCHREALTIME/./} - began) / 1000)))"
}

# The start time of a process in ticks; nothing if it has ended or is a zombie. Names may contain spaces and brackets. A zombie
# that still has other threads has not ended: they hold its ports.
birth() {
    local stat fields
    { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 0
    read -ra fields <<<"${stat##*) }"
    if [ "${fields[0]}" != Z ] || [ "${fields[17]}" -gt 1 ]; then echo "${fields[19]}"; fi
}

# A process is identified by its id and its start time: the id alone may belong to another process by now.
record() { echo "$1 $(birth "$1")" >"$2"; }

# The id of a recorded process that still lives.
living() {
    local pid born
    { read -r pid born <"$1"; } 2>/dev/null || return 1
    [ -n "$born" ] && [ "$(birth "$pid")" = "$born" ] && echo "$pid"
}

# Runs a program in the background. It is recorded before it begins: `down` finds it even if its starter is killed now.
launch() { # NAME COMMAND...
    local name=$1
    shift
    (
        record "$BASHPID" "$run/pids/$name"
        exec setsid "$@"
    ) >>"$run/logs/$name.log" 2>&1 </dev/null &
    disown
    for _ in {1..1000}; do
        [ ! -s "$run/pids/$name" ] || return 0
        sleep 0.01
    done
    fail "$name cannot be recorded in $run/pids"
}

# Replaces the record of a program that only waits for another, its child, by a record of that child.
record_child() { # NAME NAME_OF_CHILD
    local outer child
    outer=$(living "$run/pids/$1") || fail "$1 has ended ($run/logs/$1.log)"
    until child=$(pgrep -P "$outer"); do
        living "$run/pids/$1" >/dev/null || fail "$1 has ended ($run/logs/$1.log)"
        sleep 0.01
    done
    record "$child" "$run/pids/$2"
}

# Starts a program of the cluster, inside the node if there is one.
start() { # NAME COMMAND...
    local name=$1 flags=ROUSE_FLAGS_${1//-/_} node
    shift
    read -ra flags <<<"${!flags:-}"
    set -- "$@" "${flags[@]}"
    printf '%q ' "$@" >"$run/commands/$name"
    if node=$(living "$run/pids/node"); then
        launch "$name" nsenter --target "$node" --mount --net --pid -- "$@"
        record_child "$name" "$name"
    else
        launch "$name" "$@"
    fi
}

# Waits until a command succeeds. Fails when the program that it asks has ended.
await() {
    local name=$1 deadline=$((SECONDS + ${ROUSE_CLUSTER_PATIENCE:-120}))
    shift
    until "$@" >/dev/null 2>&1; do
        if ! living "$run/pids/$name" >/dev/null || [ "$SECONDS" -ge "$deadline" ]; then
            tail -n 20 "$run/logs/$name.log" >&2
            fail "$name is not ready, or has ended ($run/logs/$name.log)"
        fi
        sleep 0.05
    done
}

# Kills a recorded process: it needs no clean shutdown, because its folder is deleted.
end() {
    local pid deadline=$((SECONDS + 60))
    while pid=$(living "$1"); do
        kill -KILL "$pid" 2>/dev/null || true
        [ "$SECONDS" -lt "$deadline" ] || fail "process $pid does not end"
        sleep 0.02
    done
    rm -f "$1"
}
