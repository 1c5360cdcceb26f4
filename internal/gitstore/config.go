package gitstore

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// fsckLevels says which findings of git fsck in received objects do not
// matter. Everything else that git calls an error or, for received objects, a
// warning refuses the push.
//
// The history of an origin comes along with a task's checkpoints, and real
// histories hold oddities that old tools wrote. Refusing those would make
// checkpoints of such a repository impossible, for no gain: they mislead no
// program. They are of two kinds:
//   - who and when: names, addresses and dates that are missing, empty or
//     odd in commits and tags;
//   - modes written as 040000 or 100664, and bytes after a NUL in a message.
//
// A third kind is let in although it is an attack: what an agent wrote into
// .gitmodules and .gitattributes. A checkpoint holds the worktree as it is, and
// one that is refused is work that a lost volume takes away. The gitstore
// checks nothing out, the daemon runs no submodule command, and git refuses
// such values itself when a person's clone would act on them.
//
// What stays refused, because it is damage or an attack on whoever checks the
// code out: corrupt or missing objects; trees that are not sorted or have an
// entry twice (two programs would see two different trees); names that hold a
// slash, are empty, or are ".", ".." or ".git" in any spelling (files outside
// the worktree, or in the repository's own folder).
//
// missingAuthor, missingCommitter and the like stay refused too: git itself
// cannot read such commits reliably.
var fsckLevels = map[string]string{
	"badDate":                 "ignore",
	"badDateOverflow":         "ignore",
	"badEmail":                "ignore",
	"badName":                 "ignore",
	"badTimezone":             "ignore",
	"missingEmail":            "ignore",
	"missingNameBeforeEmail":  "ignore",
	"missingSpaceBeforeDate":  "ignore",
	"missingSpaceBeforeEmail": "ignore",
	"zeroPaddedDate":          "ignore",
	"multipleAuthors":         "ignore",
	"missingTaggerEntry":      "ignore",
	"badTagName":              "ignore",
	"zeroPaddedFilemode":      "ignore",
	"badFilemode":             "ignore",
	"nulInCommit":             "ignore",

	"gitmodulesBlob":          "ignore",
	"gitmodulesLarge":         "ignore",
	"gitmodulesName":          "ignore",
	"gitmodulesParse":         "ignore",
	"gitmodulesPath":          "ignore",
	"gitmodulesSymlink":       "ignore",
	"gitmodulesUpdate":        "ignore",
	"gitmodulesUrl":           "ignore",
	"gitattributesBlob":       "ignore",
	"gitattributesLarge":      "ignore",
	"gitattributesLineLength": "ignore",
}

// repositoryConfig is the configuration of every repository, by section.
// Objects of every push stay a pack: a loose object costs a file and at least
// one block, some 4.5 times its bytes, and the maintenance joins packs.
func repositoryConfig(hooks string) string {
	sections := []struct {
		name   string
		values map[string]string
	}{
		{"core", map[string]string{
			"hooksPath": quoted(hooks),
			// Nothing is acknowledged that a power cut could take away.
			"fsync": "all", "fsyncMethod": "fsync",
			// Many tasks push to one repository: wait for locks, do not fail.
			"filesRefLockTimeout": "10000", "packedRefsTimeout": "30000",
			"logAllRefUpdates": "false",
			// Large files are streamed, not held in memory or deltified.
			"bigFileThreshold": "16m", "deltaBaseCacheLimit": "16m",
		}},
		{"safe", map[string]string{"directory": `"*"`}},
		{"http", map[string]string{"receivepack": "false", "getanyfile": "false"}},
		{"receive", map[string]string{
			"fsckObjects": "true", "denyDeletes": "true", "denyNonFastForwards": "false",
			"denyCurrentBranch": "ignore", "shallowUpdate": "false", "advertisePushOptions": "false",
			"unpackLimit": "1", "autogc": "false", "updateServerInfo": "false",
		}},
		{"transfer", map[string]string{"fsckObjects": "true", "unpackLimit": "1"}},
		{"uploadpack", map[string]string{
			"allowAnySHA1InWant": "false", "allowTipSHA1InWant": "false", "allowReachableSHA1InWant": "false",
			"allowFilter": "false",
		}},
		{"gc", map[string]string{"auto": "0", "autoDetach": "false"}},
		{"maintenance", map[string]string{"auto": "false"}},
		{"repack", map[string]string{"writeBitmaps": "false"}},
		{"pack", map[string]string{"threads": "2", "windowMemory": "32m", "deltaCacheSize": "16m"}},
		{"protocol", map[string]string{"allow": "never"}},
	}
	var text strings.Builder
	text.WriteString("# Written by the gitstore at every start; changes are lost.\n")
	for _, section := range sections {
		writeSection(&text, fmt.Sprintf("[%s]", section.name), section.values)
	}
	writeSection(&text, `[receive "fsck"]`, fsckLevels)
	return text.String()
}

func writeSection(text *strings.Builder, header string, values map[string]string) {
	fmt.Fprintln(text, header)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(text, "\t%s = %s\n", key, values[key])
	}
}

// quoted puts a value into the quotes of git's configuration syntax.
func quoted(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`).Replace(value) + `"`
}
