# Everything a contributor does with Clew. `make` alone lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:

GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# What is worth keeping between checkouts: tools, the cluster's binaries, images.
export CLEW_CACHE ?= $(HOME)/.cache/clew
# unset: the development cluster; current: the current kubeconfig context's.
export CLUSTER ?=
export CGO_ENABLED := 0

RELEASE ?= clew
NAMESPACE ?= clew-system
IMAGE ?= localhost/clew-dev/clew:dev
DEMO_IMAGE ?= localhost/clew-dev/demo:latest
DEPLOY_ARGS ?=

PROGRAMS := manager server gitstore clew-daemon kubectl-clew
BIN := $(CURDIR)/bin
TOOLS := $(CLEW_CACHE)/tools
ENVTEST := $(CLEW_CACHE)/envtest
DEVCLUSTER := $(GO) run -C hack/devcluster .
LDFLAGS := -s -w -X main.version=$(VERSION)

# A tool is built once per content of the go.mod that pins it.
pinned = $(TOOLS)/$(1)-$(shell cat $(2)/go.mod $(2)/go.sum $(3) 2>/dev/null | sha256sum | cut -c1-12)
HELM = $(call pinned,helm,hack/tools/helm)
SQLC = $(call pinned,sqlc,hack/tools/sqlc)
LINT = $(call pinned,golangci-lint,hack/tools/lint,hack/tools/lint/main.go)

##@ Everyday

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@ / {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z0-9-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@printf '\nCLUSTER=current uses the cluster of your current kubeconfig context.\n'

.PHONY: build
build: $(PROGRAMS:%=build-%) ## Build all programs into bin/

build-%:
	@$(GO) build -trimpath -buildvcs=false -ldflags "$(LDFLAGS)" -o $(BIN)/$* ./cmd/$(patsubst clew-daemon,daemon,$*)

.PHONY: demo
demo: deploy demo-image ## Watch an agent's work being killed, rewound and forked
	@export KUBECONFIG="$$($(DEVCLUSTER) kubeconfig)" PATH="$(BIN):$$PATH"; hack/demo/run

.PHONY: fmt
fmt: ## Format the Go code
	@gofmt -w $$(git ls-files -co --exclude-standard '*.go')

.PHONY: lint
lint: $(LINT) ## Check the code, the API's conventions and who imports whom
	@$(LINT) run ./...
	@go mod tidy -diff
	@$(MAKE) -s lint-chart

.PHONY: lint-chart
lint-chart: $(HELM) ## Check the chart and everything that is rendered from it
	@hack/chart/check $(HELM)

.PHONY: structure
structure: $(LINT) ## Measure how the code is built: packages, lines, functions, imports, tests, repetition
	@$(GO) run ./hack/structure
	@echo; $(LINT) run --enable-only dupl --issues-exit-code 0 --max-issues-per-linter 0 --max-same-issues 0 --show-stats ./... | tail -n 3

##@ Tests

.PHONY: test
test: prerequisites cluster envtest-assets deploy demo-image agent-images ## All tests, on the development cluster; the last line is "N passed, N failed"
	@$(call run-tests,unit integration modules e2e)

.PHONY: test-unit
test-unit: ## Tests that need Go and git alone, without those that take long
	@$(call run-tests,-short unit modules)

.PHONY: test-integration
test-integration: prerequisites envtest-assets ## Tests with a real API server and a real Postgres
	@$(call run-tests,integration)

.PHONY: test-e2e
test-e2e: cluster deploy demo-image agent-images ## Tests on the development cluster
	@$(call run-tests,e2e)

.PHONY: soak
soak: prerequisites cluster envtest-assets deploy demo-image agent-images agent-images-oldest ## All tests, those that do harm at full length (hours); says at the end how often they did what
	@export CLEW_SOAK=1; $(call run-tests,unit integration modules e2e)

.PHONY: agents-table
agents-table: cluster deploy agent-images agent-images-oldest ## What comes of each agent, in two versions, when it is killed, refused or held up: a table
	@export CLEW_SOAK=1 KUBECONFIG="$$($(DEVCLUSTER) kubeconfig)" PATH="$(BIN):$$PATH"; \
	  $(GO) tool ginkgo --tags e2e,soak --procs 4 --timeout 90m --focus 'the table of agents' -v --silence-skips --no-color ./internal/e2e

.PHONY: bench
bench: prerequisites cluster envtest-assets deploy demo-image ## Checkpoint, rewind, diff and freeze as ratios to git status; how long namespaces wait for each other; the history's growth and plans; API writes of a Task
	@$(GO) test -count=1 -run '^$$' -bench . -skip '^BenchmarkFreeze$$' -benchtime 20x -timeout 30m ./internal/worktree/... | $(GO) run ./hack/bench
	@$(GO) test -count=1 -run '^$$' -bench '^BenchmarkFreeze$$' -benchtime 3x -timeout 30m ./internal/worktree | $(GO) run ./hack/bench
	@KUBEBUILDER_ASSETS="$(ENVTEST)" $(GO) test -count=1 -run '^$$' -bench '^BenchmarkShares$$' -benchtime 1x -timeout 30m ./internal/controller | grep Benchmark
	@$(GO) test -count=1 -run '^$$' -bench '^Benchmark(Growth|Plans)$$' -benchtime 1x -timeout 30m ./internal/history/postgres | $(GO) run ./hack/bench
	@export KUBECONFIG="$$($(DEVCLUSTER) kubeconfig)" PATH="$(BIN):$$PATH"; \
	  $(GO) tool ginkgo --tags e2e --focus 'the API writes of a task' -v --silence-skips --no-color ./internal/e2e

# The binaries that tests with a real API server start.
run-tests = export KUBEBUILDER_ASSETS="$(ENVTEST)" KUBECONFIG="$$($(DEVCLUSTER) kubeconfig 2>/dev/null)" PATH="$(BIN):$$PATH"; $(GO) build -o $(BIN)/test-runner ./hack/test && exec $(BIN)/test-runner $(1)

.PHONY: envtest-assets
envtest-assets: ## Put kube-apiserver, etcd and kubectl where tests find them
	@hack/test/assets "$(ENVTEST)"

.PHONY: prerequisites
prerequisites: ## Install the Debian packages that tests need, where they are missing
	@hack/test/prerequisites

##@ Cluster

.PHONY: cluster
cluster: ## Bring the development cluster up, or repair it
	@$(DEVCLUSTER) up

.PHONY: down
down: ## Take the development cluster down, with all that belongs to it
	@$(DEVCLUSTER) down

.PHONY: kubeconfig
kubeconfig: ## Print the path of the kubeconfig in use
	@$(DEVCLUSTER) kubeconfig

.PHONY: images
images: build ## Build the image, and load it into the development cluster
	@hack/deploy/images "$(IMAGE)"

.PHONY: deploy
deploy: cluster images $(HELM) ## Install Clew, or upgrade it
	@export KUBECONFIG="$$($(DEVCLUSTER) kubeconfig)"; hack/deploy/deploy $(HELM) "$(RELEASE)" "$(NAMESPACE)" "$(IMAGE)" $(DEPLOY_ARGS)

.PHONY: demo-image
demo-image: cluster ## Build the demo's agent and git host, and load them into the development cluster
	@hack/demo/image "$(DEMO_IMAGE)"

.PHONY: agent-images
agent-images: cluster ## Build images of the real agents from npm, and the stub of their models, and load them
	@hack/agents/images

.PHONY: agent-images-oldest
agent-images-oldest: cluster ## Build images of the agents in the oldest versions that Clew works with, and load them
	@VERSIONS=oldest hack/agents/images claude codex gemini opencode qwen

.PHONY: undeploy
undeploy: $(HELM) ## Uninstall Clew; volumes, CRDs and Tasks stay
	@export KUBECONFIG="$$($(DEVCLUSTER) kubeconfig)"; $(HELM) uninstall "$(RELEASE)" --namespace "$(NAMESPACE)" --ignore-not-found --wait

##@ Generated files

.PHONY: generate
generate: generate-go manifests ## Everything below

.PHONY: generate-go
generate-go: $(SQLC) ## Deep copies, the daemon's protocol, queries
	@$(GO) tool -modfile=hack/tools/go.mod controller-gen object paths=./api/v1alpha1
	@mkdir -p $(TOOLS)/protoc && for plugin in google.golang.org/protobuf/cmd/protoc-gen-go connectrpc.com/connect/cmd/protoc-gen-connect-go; do \
	  $(GO) build -C hack/tools -o $(TOOLS)/protoc/ $$plugin; done
	@PATH="$(TOOLS)/protoc:$$PATH"; tool="$$($(GO) tool -modfile=hack/tools/go.mod -n buf)"; cd internal/daemonapi && "$$tool" generate
	@cd internal/history/postgres && $(SQLC) generate

.PHONY: manifests
manifests: $(HELM) ## CRDs and RBAC from the code, config/, the chart's files and the pages of the API from those
	@$(GO) tool -modfile=hack/tools/go.mod controller-gen crd:generateEmbeddedObjectMeta=true paths=./api/v1alpha1 output:crd:dir=config/crd/bases
	@$(GO) run ./hack/crdgen config/crd/bases/*.yaml
	@$(GO) run ./hack/apidocs
	@$(GO) tool -modfile=hack/tools/go.mod controller-gen rbac:roleName=manager-role paths=./internal/controller/... output:rbac:dir=config/rbac
	@hack/chart/sync $(HELM)

##@ Tools

$(TOOLS)/helm-%: hack/tools/helm/go.mod
	@echo "building helm" >&2; mkdir -p $(TOOLS)
	@$(GO) build -C hack/tools/helm -trimpath -ldflags "-s -w" -o $@ helm.sh/helm/v4/cmd/helm

$(TOOLS)/sqlc-%: hack/tools/sqlc/go.mod
	@echo "building sqlc" >&2; mkdir -p $(TOOLS)
	@$(GO) build -C hack/tools/sqlc -trimpath -ldflags "-s -w" -o $@ github.com/sqlc-dev/sqlc/cmd/sqlc

$(TOOLS)/golangci-lint-%: hack/tools/lint/go.mod
	@echo "building golangci-lint (some minutes)" >&2; mkdir -p $(TOOLS)
	@$(GO) build -C hack/tools/lint -trimpath -ldflags "-s -w" -o $@ .

.PHONY: clean
clean: ## Remove what was built in this checkout
	@rm -rf bin dist
