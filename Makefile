# Everything a contributor does with Clew. `make` alone lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:

GO ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
# Kept between checkouts: tools, the cluster's binaries, images.
export CLEW_CACHE ?= $(HOME)/.cache/clew
# Empty for the development cluster, "current" for that of the current kubeconfig context.
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

# A tool is built again when the go.mod that pins it changes.
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
demo: deploy demo-image ## Watch an agent's work survive a kill, a rewind and a fork
	@export KUBECONFIG="$$($(DEVCLUSTER) kubeconfig)" PATH="$(BIN):$$PATH"; hack/demo/run

.PHONY: fmt
fmt: ## Format the Go code
	@gofmt -w $$(git ls-files -co --exclude-standard '*.go')

.PHONY: lint
lint: $(LINT) ## Check the code, the conventions of the API and the imports between packages
	@$(LINT) run ./...
	@go mod tidy -diff
	@$(MAKE) -s lint-chart

.PHONY: lint-chart
lint-chart: $(HELM) ## Check the chart and the files rendered from it
	@hack/chart/check $(HELM)

.PHONY: structure
structure: ## Measure how the code is built; AGAINST=COMMIT puts that commit beside it
	@$(GO) run ./hack/structure $(if $(AGAINST),-against $(AGAINST))

##@ Tests

.PHONY: test
test: prerequisites cluster envtest-assets deploy demo-image agent-images ## All tests; the last line is "N passed, N failed"
	@$(call run-tests,unit integration modules e2e)

.PHONY: test-unit
test-unit: ## Tests that need only Go and git, without the slow ones (go test -short)
	@$(call run-tests,-short unit modules)

.PHONY: test-integration
test-integration: prerequisites envtest-assets ## Tests against a real API server and a real Postgres
	@$(call run-tests,integration)

.PHONY: test-e2e
test-e2e: cluster deploy demo-image agent-images ## Tests on the development cluster
	@$(call run-tests,e2e)

.PHONY: soak
soak: prerequisites cluster envtest-assets deploy demo-image agent-images agent-images-oldest ## All tests, the destructive ones at full length (hours), with a table of what was done how often
	@export CLEW_SOAK=1; $(call run-tests,unit integration modules e2e)

.PHONY: test-nodes
test-nodes: export NODES = 2
test-nodes: cluster deploy demo-image ## Tests that lose the second node of a development cluster with two; CLEW_SOAK=1 at full length
	@export KUBECONFIG="$$($(DEVCLUSTER) kubeconfig)" PATH="$(BIN):$$PATH"; \
	  $(GO) tool ginkgo --tags e2e,soak,nodes --timeout 180m --label-filter nodes -v --silence-skips --no-color ./internal/e2e

.PHONY: agents-table
agents-table: cluster deploy agent-images agent-images-oldest ## Table of what each agent does, in two versions, when it is killed, refused or rate limited
	@export CLEW_SOAK=1 KUBECONFIG="$$($(DEVCLUSTER) kubeconfig)" PATH="$(BIN):$$PATH"; \
	  $(GO) tool ginkgo --tags e2e,soak --procs 4 --timeout 90m --focus 'the table of agents' -v --silence-skips --no-color ./internal/e2e

.PHONY: bench
bench: prerequisites cluster envtest-assets deploy demo-image ## Checkpoint, rewind, diff and freeze beside git status; waits between namespaces; growth and plans of history; API writes of a Task
	@$(BENCHMARKS) -bench . -skip '^BenchmarkFreeze$$' -benchtime 20x ./internal/worktree/... | $(TABLES)
	@$(BENCHMARKS) -bench '^BenchmarkFreeze$$' -benchtime 3x ./internal/worktree | $(TABLES)
	@$(BENCHMARKS) -bench '^BenchmarkDiff$$' -benchtime 20x ./internal/gitstore | $(TABLES)
	@KUBEBUILDER_ASSETS="$(ENVTEST)" $(BENCHMARKS) -bench '^BenchmarkShares$$' -benchtime 1x ./internal/controller | grep Benchmark
	@$(BENCHMARKS) -bench '^Benchmark(Growth|Plans)$$' -benchtime 1x ./internal/history/postgres | $(TABLES)
	@export KUBECONFIG="$$($(DEVCLUSTER) kubeconfig)" PATH="$(BIN):$$PATH"; \
	  $(GO) tool ginkgo --tags e2e --focus 'the API writes of a task' -v --silence-skips --no-color ./internal/e2e

.PHONY: bench-e2e
bench-e2e: cluster deploy demo-image ## Seconds from a request to the agent's first line on the node, in parts: create, rewind, resume, fork, kill, suspend; what 1,000 waiting tasks cost
	@export KUBECONFIG="$$($(DEVCLUSTER) kubeconfig)" PATH="$(BIN):$$PATH"; \
	  $(GO) tool ginkgo --tags e2e,bench --timeout 90m --focus 'the speed of operations|a contract of 1,000 tasks' -v --silence-skips --no-color ./internal/e2e

BENCHMARKS = $(GO) test -count=$(or $(COUNT),1) -run '^$$' -timeout 30m
TABLES = $(GO) run -C hack/bench .

.PHONY: bench-compare
bench-compare: ## Compare the benchmarks of OLD=COMMIT with those of this tree, or of NEW=COMMIT, by benchstat
	@hack/bench/compare "$(or $(OLD),HEAD)" $(NEW)

# The runner needs the API server's binaries, the cluster's kubeconfig and kubectl clew.
run-tests = export KUBEBUILDER_ASSETS="$(ENVTEST)" KUBECONFIG="$$($(DEVCLUSTER) kubeconfig 2>/dev/null)" PATH="$(BIN):$$PATH"; $(GO) build -o $(BIN)/test-runner ./hack/test && exec $(BIN)/test-runner $(1)

.PHONY: envtest-assets
envtest-assets: ## Put kube-apiserver, etcd and kubectl in the folder where tests look for them
	@hack/test/assets "$(ENVTEST)"

.PHONY: prerequisites
prerequisites: ## Install the Debian packages that tests need and that are missing
	@hack/test/prerequisites

##@ Cluster

.PHONY: cluster
cluster: ## Bring the development cluster up, or repair it
	@$(DEVCLUSTER) up

.PHONY: down
down: ## Take the development cluster down and remove everything but its cache
	@$(DEVCLUSTER) down

.PHONY: kubeconfig
kubeconfig: ## Print the path of the kubeconfig in use
	@$(DEVCLUSTER) kubeconfig

.PHONY: images
images: build ## Build the image and load it into the development cluster
	@hack/deploy/images "$(IMAGE)"

.PHONY: deploy
deploy: cluster images $(HELM) ## Install or upgrade Clew
	@export KUBECONFIG="$$($(DEVCLUSTER) kubeconfig)"; hack/deploy/deploy $(HELM) "$(RELEASE)" "$(NAMESPACE)" "$(IMAGE)" $(DEPLOY_ARGS)

.PHONY: demo-image
demo-image: cluster ## Build and load the images of the demo's agent and git host
	@hack/demo/image "$(DEMO_IMAGE)"

.PHONY: agent-images
agent-images: cluster ## Build and load images of the real agents from npm, and of the stub of their models
	@hack/agents/images

.PHONY: agent-images-oldest
agent-images-oldest: cluster ## Build and load images of the oldest versions of the agents that Clew works with
	@VERSIONS=oldest hack/agents/images claude codex gemini opencode qwen

.PHONY: undeploy
undeploy: $(HELM) ## Uninstall Clew; volumes, CRDs and Tasks are kept
	@export KUBECONFIG="$$($(DEVCLUSTER) kubeconfig)"; $(HELM) uninstall "$(RELEASE)" --namespace "$(NAMESPACE)" --ignore-not-found --wait

##@ Generated files

.PHONY: generate
generate: generate-go manifests ## All generated files

.PHONY: generate-go
generate-go: $(SQLC) ## Deep copies, the daemon's protocol and the queries of Postgres
	@$(GO) tool -modfile=hack/tools/go.mod controller-gen object paths=./api/v1alpha1
	@mkdir -p $(TOOLS)/protoc && for plugin in google.golang.org/protobuf/cmd/protoc-gen-go connectrpc.com/connect/cmd/protoc-gen-connect-go; do \
	  $(GO) build -C hack/tools -o $(TOOLS)/protoc/ $$plugin; done
	@PATH="$(TOOLS)/protoc:$$PATH"; tool="$$($(GO) tool -modfile=hack/tools/go.mod -n buf)"; cd internal/daemonapi && "$$tool" generate
	@cd internal/history/postgres && $(SQLC) generate

.PHONY: manifests
manifests: $(HELM) ## CRDs and RBAC from the code, and from those the chart's files and the pages of api/docs
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
clean: ## Remove bin/ and dist/
	@rm -rf bin dist
