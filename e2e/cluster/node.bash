# One node: a namespace with containerd, kubelet, kube-proxy and DNS in it; sourced by `up`.
# shellcheck shell=bash disable=SC2154 # run, bin and the addresses are set in lib.bash

# The Debian packages that a node needs besides Kubernetes, each with a file that shows that it is installed.
packages() {
    local missing=() entry
    for entry in containerd=/usr/bin/containerd runc=/usr/sbin/runc containernetworking-plugins=/usr/lib/cni/bridge \
        iptables=/usr/sbin/iptables nftables=/usr/sbin/nft conntrack=/usr/sbin/conntrack iproute2=/usr/sbin/ip; do
        [ -x "${entry#*=}" ] || missing+=("${entry%%=*}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    command -v apt-get >/dev/null || skip "a node needs ${missing[*]}, and there is no apt-get to install them with"
    say "installing ${missing[*]}"
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >"$run/logs/apt.log" 2>&1 ||
        skip "a node needs ${missing[*]}, and apt-get could not install them ($run/logs/apt.log)"
}

# Starts the node; the script `node` is its process 1. Ending that process ends everything in the node.
namespaces() {
    local node
    launch unshare unshare --mount --net --pid --fork --kill-child --mount-proc "$here/node" "$run" "$cache"
    await unshare test -e "$run/state/node-is-ready"
    record_child unshare node
    node=$(living "$run/pids/node")
    ip link add rouse0 type veth peer name eth0 netns "$node"
    local address
    for address in $host_ips; do
        ip address add "$address/24" dev rouse0
    done
    ip link set rouse0 up
    nsenter --target "$node" --net -- sh -ec \
        "ip address add $node_ip/24 dev eth0; ip link set eth0 up; ip route add default via $host_ip"
    ip route add "$pod_cidr" via "$node_ip"
    ip route add "$service_cidr" via "$node_ip"
}

start_containerd() {
    # Without restrict_oom_score_adj no container starts where root may not lower the score.
    cat >"$run/state/containerd.toml" <<TOML
version = 2
root = "$run/state/containerd"
state = "/run/containerd"
[grpc]
  address = "$run/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$run/state/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
TOML
    mkdir -p "$run/state/cni"
    cat >"$run/state/cni/rouse.conflist" <<JSON
{ "cniVersion": "0.4.0", "name": "rouse", "plugins": [{
    "type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
    "ipam": { "type": "host-local", "ranges": [[{ "subnet": "${pod_cidr%/*}/24" }]], "routes": [{ "dst": "0.0.0.0/0" }] }
}] }
JSON
    start containerd containerd --config "$run/state/containerd.toml"
    await containerd ctr --address "$run/containerd.sock" version
    "$here/load" "$cache"/images/*.tar
}

start_kubelet() {
    # failCgroupV1, cgroupDriver: machines without systemd, or with the old cgroups, are good enough for tests.
    # clusterDNS: on the node itself, so that names do not depend on kube-proxy, which tests stop.
    # makeIPTablesUtilChains: the chains are not used here. evictionHard: a full disk must not evict pods.
    cat >"$run/state/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
failSwapOn: false
makeIPTablesUtilChains: false
address: $node_ip
healthzBindAddress: 127.0.0.1
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $pki/kubelet.crt
tlsPrivateKeyFile: $pki/kubelet.key
containerRuntimeEndpoint: unix://$run/containerd.sock
podLogsDir: $run/logs/pods
clusterDomain: cluster.local
clusterDNS: [$node_ip]
resolvConf: ""
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, nodefs.inodesFree: 1%, imagefs.available: 1%, imagefs.inodesFree: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
YAML
    start kubelet "$bin/kubelet" --config="$run/state/kubelet.yaml" --kubeconfig="$run/state/kubelet.kubeconfig" \
        --root-dir="$run/state/kubelet" --hostname-override=node1 --node-ip="$node_ip"
}

start_proxy() {
    cat >"$run/state/kube-proxy.yaml" <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: node1
clusterCIDR: $pod_cidr
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
clientConnection: {kubeconfig: $run/state/kube-proxy.kubeconfig}
YAML
    start kube-proxy "$bin/kube-proxy" --config="$run/state/kube-proxy.yaml"
}

# Answers for the names of Services and their pods only. A record is cached for as long as it is valid, 5 s.
start_dns() {
    cat >"$run/state/Corefile" <<COREFILE
.:53 {
    bind $node_ip
    ready 127.0.0.1:8181
    errors
    cache 5
    kubernetes cluster.local {
        kubeconfig $run/kubeconfig
    }
}
COREFILE
    start coredns "$bin/$dns" -conf "$run/state/Corefile"
}

node_is_ready() {
    local node
    node=$(living "$run/pids/node")
    await kubelet kubectl wait --for=condition=Ready node/node1 --timeout=2s --request-timeout=5s
    await kube-proxy nsenter --target "$node" --net -- curl -sf -m 2 http://127.0.0.1:10256/healthz
    await coredns nsenter --target "$node" --net -- curl -sf -m 2 http://127.0.0.1:8181/ready
}
