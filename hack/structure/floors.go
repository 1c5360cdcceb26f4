package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// module is the prefix of the import paths of this module.
const module = "github.com/clew-dev/clew/"

// house lists the folders of each floor, from the ground up. A package imports packages
// of its own floor and of lower ones. A folder stands for those below it as well.
var house = [][]string{
	{"api", "internal/backoff", "internal/broadcast", "internal/clip", "internal/durable", "internal/logging", "internal/serving"},
	{"internal/conversation", "internal/daemonapi", "internal/reason", "internal/refname", "internal/fairshare", "internal/capacity", "internal/gitstoreapi"},
	{"internal/agent", "internal/connections", "internal/history", "internal/podidentity", "internal/rollback", "internal/worktree"},
	{"internal/gitstore", "internal/resources"},
	{"internal/plan", "internal/daemon", "internal/server", "internal/cli"},
	{"internal/controller"},
	{"cmd", "hack"},
}

// floors judges the imports of one state of the code.
type floors struct {
	// moved is where the files of a folder are today; empty for today's state.
	moved map[string]string
}

// of returns the number of a folder's floor. ok is false for a folder that is on no floor
// and that did not move to one.
func (f floors) of(folder string) (number int, ok bool) {
	if number, ok = floorToday(folder); !ok {
		number, ok = floorToday(f.moved[folder])
	}
	return number, ok
}

func floorToday(folder string) (int, bool) {
	number := slices.IndexFunc(house, func(folders []string) bool {
		return slices.ContainsFunc(folders, func(f string) bool { return folder == f || strings.HasPrefix(folder, f+"/") })
	})
	return number, number >= 0
}

// importsUp returns the imports of packages on higher floors.
func (f floors) importsUp(files []file) (up []string) {
	for _, file := range files {
		from, judged := f.of(file.folder)
		for _, path := range file.imports {
			folder, ours := strings.CutPrefix(path, module)
			to, known := f.of(folder)
			if ours && judged && known && to > from {
				up = append(up, fmt.Sprintf("%s imports %s", file.path, folder))
			}
		}
	}
	return up
}

// without returns the packages that are on no floor.
func (f floors) without(files []file) []string {
	folders := map[string]bool{}
	for _, file := range files {
		if _, ok := f.of(file.folder); !ok {
			folders[file.folder] = true
		}
	}
	return slices.Sorted(maps.Keys(folders))
}
