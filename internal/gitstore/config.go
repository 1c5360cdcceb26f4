package gitstore

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// fsckLevels lists the findings of git fsck that are ignored in received objects.
// Everything else that git calls an error or, for received objects, a warning refuses
// the push.
//
// A task's checkpoints include the history of its origin, and real histories contain
// oddities that old tools wrote. Refusing those would make checkpoints of such a
// repository impossible, for no gain: they mislead no program. They are of two kinds:
//   - authorship: names, addresses and dates in commits and tags that are missing,
//     empty or malformed;
//   - modes written as 040000 or 100664, and bytes after a NUL in a message.
//
// A third kind is accepted although it may be an attack: what an agent wrote to
// .gitmodules and .gitattributes. A checkpoint contains the worktree as it is, and the
// work in a refused checkpoint is lost if its volume is. The gitstore
// checks nothing out, the daemon runs no submodule command, and git itself refuses
// such values when a person's clone would act on them.
//
// Still refused, as damage or as an attack on whoever checks the code out: corrupt or
// missing objects; trees that are unsorted or contain an entry twice (two programs
// would see two different trees); names that contain a slash, are empty, or are ".",
// ".." or ".git" in any spelling (files outside the worktree, or in the repository's
// own folder).
//
// missingAuthor, missingCommitter and the like are still refused too: git itself
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

// repositoryConfig returns the git configuration of every repository. The objects of
// every push stay packed: a loose object costs a file and at least one block, some 4.5
// times its size, and maintenance merges packs.
func repositoryConfig(hooks string) string {
	sections := []struct {
		name   string
		values map[string]string
	}{
		{"core", map[string]string{
			"hooksPath": quoted(hooks),
			// A power cut must not lose what was acknowledged.
			"fsync": "all", "fsyncMethod": "fsync",
			// Many tasks push to one repository: wait for locks instead of failing.
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

// writeSection writes a section of a git configuration, its keys in order.
func writeSection(text *strings.Builder, header string, values map[string]string) {
	fmt.Fprintln(text, header)
	for _, key := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(text, "\t%s = %s\n", key, values[key])
	}
}

// quoted quotes a value in git's configuration syntax.
func quoted(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\t", `\t`).Replace(value) + `"`
}
