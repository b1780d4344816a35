# etcd, kube-apiserver, kube-controller-manager and kube-scheduler; sourced by `up`.
# shellcheck shell=bash disable=SC2154 # run, bin and the addresses are set in lib.bash, api and mode in up
pki=$run/state/pki
# On by default from Kubernetes 1.37: an HPA may have `minReplicas: 0`.
feature_gates=HPAScaleToZero=true

kubeconfig() { # NAME: on stdout, with the certificates inside, so that the file may be copied
    local authority certificate key
    authority=$(base64 -w0 "$pki/ca.crt") certificate=$(base64 -w0 "$pki/$1.crt") key=$(base64 -w0 "$pki/$1.key")
    cat <<YAML
apiVersion: v1
kind: Config
clusters: [{name: rouse, cluster: {server: "https://$api", certificate-authority-data: $authority}}]
users: [{name: $1, user: {client-certificate-data: $certificate, client-key-data: $key}}]
contexts: [{name: rouse, context: {cluster: rouse, user: $1}}]
current-context: rouse
YAML
}

credentials() {
    local name
    "$here/certs" "$pki" "$node_ip" "${service_cidr%.*}.1"
    for name in kube-controller-manager kube-scheduler kube-proxy kubelet; do
        kubeconfig "$name" >"$run/state/$name.kubeconfig"
    done
    kubeconfig admin >"$run/kubeconfig.new"
    mv "$run/kubeconfig.new" "$run/kubeconfig"
}

# On Unix sockets: fixed ports would prevent a second cluster on this machine. The advertised URL must be an address, but
# is not used. Without fsync: the data is temporary.
start_etcd() {
    start etcd "$bin/etcd" --data-dir "$run/state/etcd" --unsafe-no-fsync --log-level warn \
        --listen-client-urls "unix://$run/etcd.sock" --advertise-client-urls http://localhost:0 \
        --listen-peer-urls "unix://$run/peer.sock"
}

# logs/audit.log has a line for each request of ServiceAccounts that are not Kubernetes' own, with the body of writes. A
# watch is also logged when it starts, because it ends late.
audit_policy() {
    cat <<YAML
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - {level: None, userGroups: ["system:serviceaccounts:kube-system"]}
  - {level: Request, userGroups: ["system:serviceaccounts"], verbs: [create, update, patch, delete]}
  - {level: Metadata, userGroups: ["system:serviceaccounts"]}
  - {level: None}
YAML
}

start_apiserver() {
    local flags=()
    audit_policy >"$run/state/audit-policy.yaml"
    # Endpoints may not be loopback addresses, so a control plane alone has no endpoint for its own Service.
    [ "$mode" = full ] || flags+=(--endpoint-reconciler-type=none)
    start kube-apiserver "$bin/kube-apiserver" --etcd-servers="unix://$run/etcd.sock" \
        --bind-address="${api%:*}" --secure-port="${api#*:}" --advertise-address="$node_ip" \
        --service-cluster-ip-range="$service_cidr" --allow-privileged=true \
        --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
        --feature-gates="$feature_gates" \
        --client-ca-file="$pki/ca.crt" --tls-cert-file="$pki/kube-apiserver.crt" \
        --tls-private-key-file="$pki/kube-apiserver.key" \
        --kubelet-certificate-authority="$pki/ca.crt" --kubelet-preferred-address-types=InternalIP \
        --kubelet-client-certificate="$pki/kubelet-client.crt" --kubelet-client-key="$pki/kubelet-client.key" \
        --service-account-key-file="$pki/service-accounts.pub" \
        --service-account-signing-key-file="$pki/service-accounts.key" \
        --service-account-issuer=https://kubernetes.default.svc.cluster.local \
        --requestheader-client-ca-file="$pki/front-ca.crt" --requestheader-allowed-names=front-proxy-client \
        --requestheader-extra-headers-prefix=X-Remote-Extra- --requestheader-group-headers=X-Remote-Group \
        --requestheader-username-headers=X-Remote-User \
        --proxy-client-cert-file="$pki/front-proxy-client.crt" \
        --proxy-client-key-file="$pki/front-proxy-client.key" \
        --audit-policy-file="$run/state/audit-policy.yaml" --audit-log-path="$run/logs/audit.log" "${flags[@]}"
    await kube-apiserver curl -sf --noproxy '*' -m 2 --cacert "$pki/ca.crt" "https://$api/readyz"
}

start_controllers() {
    local flags=(--allocate-node-cidrs=true --cluster-cidr="$pod_cidr")
    # On a control plane alone, tests create nodes as objects, and no kubelet renews their leases.
    [ "$mode" = full ] || flags=(--controllers="*,-node-lifecycle-controller,-taint-eviction-controller,-node-ipam-controller")
    start kube-controller-manager "$bin/kube-controller-manager" --secure-port=0 --leader-elect=false \
        --feature-gates="$feature_gates" \
        --kubeconfig="$run/state/kube-controller-manager.kubeconfig" --use-service-account-credentials \
        --service-account-private-key-file="$pki/service-accounts.key" --root-ca-file="$pki/ca.crt" \
        --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key" \
        --service-cluster-ip-range="$service_cidr" "${flags[@]}"
    start kube-scheduler "$bin/kube-scheduler" --secure-port=0 --leader-elect=false \
        --kubeconfig="$run/state/kube-scheduler.kubeconfig"
    # No pod is admitted before its service account exists.
    await kube-controller-manager kubectl get serviceaccount default --request-timeout=5s
}
