package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// module is the prefix of the import paths of this module.
const module = "github.com/clew-dev/clew/"

// layering lists the layers from the lowest up, and the folders of each. A folder stands
// for those below it as well, unless they are listed themselves. A package may import
// packages of its own folder and of lower layers, but not of its neighbours in the layer.
var layering = [][]string{
	{"internal/gitpath"},
	{"api", "internal/backoff", "internal/broadcast", "internal/capacity", "internal/clip", "internal/durable", "internal/fairshare", "internal/gitdiff", "internal/gitignore", "internal/gitstoreapi", "internal/logging", "internal/namespaceid", "internal/quote", "internal/refname"},
	{"internal/budget"},
	{"internal/connections", "internal/conversation", "internal/daemonapi", "internal/pathmatch", "internal/reason", "internal/rollback", "internal/serving", "internal/toolcall"},
	{"internal/agent", "internal/history", "internal/history/searchtext", "internal/podidentity", "internal/worktree"},
	{"internal/gitstore", "internal/history/postgres", "internal/keptspec", "internal/queue", "internal/resources"},
	{"internal/history/namespaced", "internal/plan", "internal/retention"},
	{"internal/rewindtarget"},
	{"internal/daemon/agentstate", "internal/daemon/gatewayclient", "internal/daemon/journal", "internal/daemon/launchplan", "internal/daemon/mask", "internal/daemon/origin", "internal/daemon/pace", "internal/daemon/spool", "internal/daemon/tools", "internal/daemon/wire"},
	{"internal/daemon/checkpoint", "internal/daemon/meter", "internal/daemon/record", "internal/daemon/ship", "internal/daemon/shim", "internal/daemon/toolclient", "internal/daemon/volume"},
	{"internal/daemon/socket"},
	{"internal/daemon/prepare", "internal/daemon/publish", "internal/daemon/sidecar"},
	{"internal/server/live", "internal/server/verification"},
	{"internal/server/family", "internal/server/gateway", "internal/server/historyapi"},
	{"internal/server/checkpointrequests"},
	{"internal/server", "internal/cli"},
	{"internal/controller/cached", "internal/controller/fairqueue", "internal/controller/historyhub", "internal/controller/pages", "internal/controller/places", "internal/controller/podaccount", "internal/controller/requeue", "internal/controller/startpoint"},
	{"internal/controller/lookup"},
	{"internal/controller/relations"},
	{"internal/controller/checkpoint", "internal/controller/conversationsnapshot", "internal/controller/fork", "internal/controller/task", "internal/controller/toolcall"},
	{"internal/controller"},
	{"cmd", "hack", "internal/crash"},
}

// layers judges the imports of one state of the code.
type layers struct {
	// moved is where the packages that no longer exist are today; empty for today's state.
	moved map[string]string
}

// place is the layer of a package, and the folder by which the layer lists it.
type place struct {
	layer  int
	folder string
}

// of returns the place of a package, of one that was renamed that of its successor. ok is
// false for a package that is in no layer.
func (l layers) of(folder string) (p place, ok bool) {
	if p, ok = placeToday(l.moved[folder]); !ok {
		p, ok = placeToday(folder)
	}
	return p, ok
}

// placeToday returns the place by the longest folder that matches.
func placeToday(folder string) (best place, ok bool) {
	for number, folders := range layering {
		for _, f := range folders {
			if (folder == f || strings.HasPrefix(folder, f+"/")) && len(f) > len(best.folder) {
				best, ok = place{number, f}, true
			}
		}
	}
	return best, ok
}

// importsUp returns the imports of packages of higher layers, and of other folders of the
// same layer.
func (l layers) importsUp(files []file) (up []string) {
	for _, file := range files {
		from, judged := l.of(file.folder)
		for _, path := range file.imports {
			folder, ours := strings.CutPrefix(path, module)
			to, known := l.of(folder)
			if ours && judged && known && to.layer >= from.layer && to.folder != from.folder {
				up = append(up, fmt.Sprintf("%s imports %s", file.path, folder))
			}
		}
	}
	return up
}

// without returns the packages that are in no layer.
func (l layers) without(files []file) []string {
	folders := map[string]bool{}
	for _, file := range files {
		if _, ok := l.of(file.folder); !ok {
			folders[file.folder] = true
		}
	}
	return slices.Sorted(maps.Keys(folders))
}
