#!/usr/bin/env bash
# The main job of Clew on a real cluster, told as it happens: an agent works on
# a repository, loses its pod, carries on, is taken back to an earlier
# checkpoint, and is forked. All by YAML and kubectl.
#
# Needs kubectl and kubectl-clew on PATH, Clew installed, the demo's image
# loaded: `make demo` sees to all of that.
set -euo pipefail
cd "$(dirname "$0")/manifests"

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
  bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' plain=$'\e[0m'
else
  bold='' dim='' green='' plain=''
fi
began=$SECONDS
say() { printf '\n%s── %s%s %s(%ss)%s\n' "$bold" "$*" "$plain" "$dim" "$((SECONDS - began))" "$plain"; }
run() { printf '%s$ %s%s\n' "$green" "$*" "$plain"; "$@"; }
k() { kubectl --namespace clew-demo "$@"; }
fail() { printf '\n%s\n' "$*" >&2; k get tasks.clew.dev,checkpoints,pods -o wide >&2 || true; exit 1; }

# until_true SECONDS WHAT COMMAND...: waits for the command to succeed.
until_true() {
  local limit=$((SECONDS + $1)) what=$2
  shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $limit ] || fail "The demo waited too long for: $what"
    sleep 0.3
  done
}
field() { k get "$1" -o "jsonpath=$2" 2>/dev/null; }
state_is() { [ "$(field "task.clew.dev/$1" '{.status.conditions[?(@.type=="Succeeded")].reason}')" = "$2" ]; }
durable() { [ "$(field "checkpoint.clew.dev/$1" '{.status.conditions[?(@.type=="Durable")].status}')" = True ]; }
rewound() { [ "$(field task.clew.dev/tidy-up '{.status.rewind.id}/{.status.rewind.state}')" = "$1/Completed" ]; }

say "A namespace that enforces the restricted Pod Security Standard, and a git host in it"
kubectl apply -f namespace.yaml >/dev/null
k delete forks,tasks.clew.dev,checkpoints --all --wait >/dev/null 2>&1
k delete pvc --all --wait=false >/dev/null 2>&1
k apply -f origin.yaml >/dev/null
k rollout status deployment/origin --timeout=120s >/dev/null
echo "The repository: Clew's own, with its dependencies vendored."

say "A Task is applied; its agent starts to work"
run kubectl apply -f task.yaml
until_true 120 "the agent to run" state_is tidy-up Running
until_true 90 "the second checkpoint" durable tidy-up-2
run kubectl -n clew-demo get tasks,checkpoints

say "The pod is killed, without grace"
pod=$(field task.clew.dev/tidy-up '{.status.attempts[-1:].podName}')
run kubectl -n clew-demo delete pod "$pod" --force --grace-period=0 2>/dev/null
another() { [ "$(field task.clew.dev/tidy-up '{.status.attempts[-1:].podName}')" != "$pod" ]; }
until_true 60 "another pod" another
until_true 90 "the agent to carry on" state_is tidy-up Running
run kubectl -n clew-demo get task tidy-up

say "A checkpoint by hand: one applies it"
run kubectl apply -f checkpoint.yaml
until_true 60 "the checkpoint" durable before-the-refactoring
run kubectl -n clew-demo get checkpoint before-the-refactoring -o wide

say "A wrong turn: the task is taken back to its second checkpoint, code and conversation together"
run kubectl apply --server-side --field-manager=demo -f rewind.yaml
until_true 90 "the rewind" rewound back-before-the-refactoring
run kubectl -n clew-demo get task tidy-up -o 'jsonpath={.status.rewind}{"\n"}'

say "A fork: a new Task that begins where the other one stood"
run kubectl apply -f fork.yaml
until_true 120 "the fork to work" state_is tidy-up-another-way Running
run kubectl -n clew-demo get tasks,forks

say "Both get done"
until_true 180 "the task to complete" state_is tidy-up Completed
until_true 180 "the fork to complete" state_is tidy-up-another-way Completed
run kubectl -n clew-demo get tasks,pvc

say "What happened, from Postgres"
run kubectl clew -n clew-demo timeline tidy-up
run kubectl clew -n clew-demo task history tidy-up --tail 6

printf '\n%sDone in %s seconds.%s The cluster is still up: look around with\n  export KUBECONFIG=$(make -s kubeconfig)\nand take it down with\n  make down\n' "$bold" "$((SECONDS - began))" "$plain"
