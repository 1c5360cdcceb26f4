#!/usr/bin/env bash
# Creates the repository that the demo and the end-to-end tests work on: Clew's
# own with its newest hundred commits, plus one commit that vendors some of its
# dependencies, for more than two thousand files. It is no larger than that, since
# every test's namespace fetches it, and every task's volume holds it.
#
#   repository.sh OUT      writes OUT/clew.git, OUT/private/clew.git, an empty.git, and
#                          large.git: 10,000 small files for `make bench-e2e`
set -euo pipefail
out=$(realpath -m "${1:?usage: repository.sh OUT}")
top=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
head=$(git -C "$top" rev-parse HEAD)

if [ "$(cat "$out/.made-from" 2>/dev/null)" = "$head" ]; then
  exit 0
fi
rm -rf "$out"
mkdir -p "$out/private"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

git init --quiet --bare --initial-branch=main "$work/whole"
git -C "$work/whole" fetch --quiet "$top" HEAD:refs/heads/main
git init --quiet --initial-branch=main "$work/clew"
cd "$work/clew"
newest=(main)
if before=$(git -C "$work/whole" rev-parse --quiet --verify main~100); then
  newest+=("^$before")
fi
git -C "$work/whole" fast-export "${newest[@]}" | git fast-import --quiet
git checkout --quiet main
printf '!/vendor/\n' >> .gitignore
go mod vendor
export GIT_AUTHOR_NAME=Demo GIT_AUTHOR_EMAIL=demo@clew.dev GIT_COMMITTER_NAME=Demo GIT_COMMITTER_EMAIL=demo@clew.dev # not those of checkpoints
git add --force vendor/github.com vendor/modules.txt .gitignore
git commit --quiet --message "Vendor the dependencies" --date "$(git log -1 --format=%cI)"
git tag demo
git clone --quiet --bare --no-local "$work/clew" "$out/clew.git"
git -C "$out/clew.git" remote remove origin
git -C "$out/clew.git" symbolic-ref HEAD refs/heads/main
cp -r "$out/clew.git" "$out/private/clew.git"
git init --quiet --bare --initial-branch=main "$out/empty.git"
git init --quiet --bare --initial-branch=main "$out/large.git"
awk 'BEGIN {
  print "commit refs/heads/main\ncommitter Demo <demo@clew.dev> 1700000000 +0000\ndata 12\n10,000 files"
  for (i = 0; i < 10000; i++) {
    text = "file " i "\n"; for (line = 0; line < 40; line++) text = text "line " line " of file " i "\n"
    printf "M 100644 inline %d/%d.txt\ndata %d\n%s\n", i / 100, i, length(text), text
  }
}' | git -C "$out/large.git" fast-import --quiet
echo "$head" > "$out/.made-from"
printf 'demo repository: %s files, %s commits\n' "$(git ls-files | wc -l)" "$(git rev-list --count HEAD)"
