package main

import (
	"fmt"
	"slices"
	"strings"
)

// module is the prefix of the import paths of what is measured.
const module = "github.com/clew-dev/clew/"

// floors are the folders from the ground up. A package imports those of its own floor
// and of lower ones. A folder that is not named is on the highest floor.
var floors = [][]string{
	{"api", "internal/backoff", "internal/broadcast", "internal/clip", "internal/durable", "internal/logging", "internal/serving"},
	{"internal/conversation", "internal/daemonapi", "internal/reason", "internal/refname", "internal/fairshare", "internal/capacity", "internal/gitstoreapi"},
	{"internal/agent", "internal/connections", "internal/history", "internal/podidentity", "internal/rollback", "internal/worktree"},
	{"internal/gitstore", "internal/resources"},
	{"internal/plan", "internal/daemon", "internal/server", "internal/cli"},
	{"internal/controller"},
}

// floorOf is the number of a folder's floor.
func floorOf(folder string) int {
	for number, folders := range floors {
		if slices.ContainsFunc(folders, func(f string) bool { return folder == f || strings.HasPrefix(folder, f+"/") }) {
			return number
		}
	}
	return len(floors)
}

// importsUp are the imports of packages on higher floors.
func importsUp(files []file) (up []string) {
	for _, f := range files {
		for _, path := range f.imports {
			if to, ours := strings.CutPrefix(path, module); ours && floorOf(to) > floorOf(f.folder) {
				up = append(up, fmt.Sprintf("%s imports %s", f.path, to))
			}
		}
	}
	return up
}
