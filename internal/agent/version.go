package agent

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Version is a version of an agent's program: major, minor, patch.
type Version [3]int

func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }

// oldest are the oldest versions that Clew was run with, by executable. The
// table in hack/agents/README.md says the same; a test compares them.
var oldest = map[string]Version{
	"claude":   {2, 1, 200},
	"codex":    {0, 144, 6},
	"gemini":   {0, 45, 2},
	"opencode": {1, 18, 3},
	"qwen":     {0, 23, 0},
}

// OldestVersion is the oldest version of an executable that works; ok is false
// for a program that Clew does not know.
func OldestVersion(executable string) (v Version, ok bool) {
	v, ok = oldest[executable]
	return v, ok
}

// VersionArgs ask each of the programs for its version.
func VersionArgs() []string { return []string{"--version"} }

var versionText = regexp.MustCompile(`(?:^|[^0-9.])v?([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})`)

// ParseVersion finds the version in what a program printed when asked for it.
// Programs print warnings before it, so the last line that has one counts.
func ParseVersion(printed string) (Version, bool) {
	lines := strings.Split(printed, "\n")
	for _, line := range slices.Backward(lines) {
		m := versionText.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		var v Version
		for i := range v {
			v[i], _ = strconv.Atoi(m[i+1])
		}
		return v, true
	}
	return Version{}, false
}

// TooOld is why a version of an executable cannot be used; nil when it can.
func TooOld(executable string, found Version) *Failure {
	least, ok := OldestVersion(executable)
	if !ok || slices.CompareFunc(found[:], least[:], cmp.Compare[int]) >= 0 {
		return nil
	}
	return &Failure{Cause: CauseTooOld, Message: fmt.Sprintf(
		"the image has version %s of %s, and %s is the oldest that Clew works with: use an image with a newer one", found, executable, least)}
}
