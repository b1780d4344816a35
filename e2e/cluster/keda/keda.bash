# Shared code of the scripts in this folder; sourced, never run. It sets KEDA's versions.
# shellcheck shell=bash disable=SC2034 # variables are used by the scripts that source this file

keda=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
source "$keda/../lib.bash"
say() { printf 'keda: %s\n' "$*" >&2; }
skip() {
    printf '\nSKIPPED: keda: %s\n\n' "$*" >&2
    exit 77
}

core=github.com/kedacore/keda/v2@v2.21.0
addon=github.com/kedacore/http-add-on@v0.15.0
keda_cache=${ROUSE_KEDA:-${HOME:?}/.cache/rouse/keda/${core##*@}-http-${addon##*@}}
keda_bin=$keda_cache/bin
programs=(keda-http-scaler keda-http-interceptor keda-http-operator keda-operator)

# In the node's own network there is no other listener, and there is one node per machine, so the ports are fixed.
proxy_port=18080 admin_port=18081 scaler_port=18082 metrics_service_port=18083
operator_probe_port=18084 addon_probe_port=18085
# As in KEDA's own manifests, except for the name of the namespace.
system=keda-system admin_service=keda-add-ons-http-interceptor-admin
# KEDA watches only this namespace: it must not act on other routes and ScaledObjects of the cluster. The value that `up`
# got applies until `down`.
state=$run/state/keda
app=$(cat "$state/namespace" 2>/dev/null || echo "${ROUSE_KEDA_NAMESPACE:-keda-app}")

export KUBECONFIG=$run/kubeconfig KUBECACHEDIR=$run/state/kubectl NO_PROXY='*' no_proxy='*' PATH=$bin:$PATH:/usr/sbin

kinds() { kubectl get customresourcedefinitions --output name | sed -n 's|.*/\(.*\.keda\.sh\)$|\1|p'; }

needs_cluster() {
    [ "$(id -u)" = 0 ] || skip "it runs in a cluster's node, which needs root"
    living "$run/pids/node" >/dev/null || skip "no cluster with a node in $run: run $here/up full first"
}
