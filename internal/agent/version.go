package agent

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Version is the version of an agent's program: major, minor, patch.
type Version [3]int

// String returns the version in the form 1.2.3.
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v[0], v[1], v[2]) }

// oldest lists the oldest versions that Clew was tested with, by executable. A test
// compares it with the table in hack/agents/README.md.
var oldest = map[string]Version{
	"claude":   {2, 1, 200},
	"codex":    {0, 144, 6},
	"gemini":   {0, 45, 2},
	"opencode": {1, 18, 3},
	"qwen":     {0, 23, 0},
}

// OldestVersion returns the oldest supported version of an executable; ok is false for a
// program that Clew does not know.
func OldestVersion(executable string) (v Version, ok bool) {
	v, ok = oldest[executable]
	return v, ok
}

// VersionArgs returns the arguments that make each of the programs print its version.
func VersionArgs() []string { return []string{"--version"} }

var versionText = regexp.MustCompile(`(?:^|[^0-9.])v?([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})`)

// ParseVersion finds the version in a program's output. Programs print warnings before it,
// so the last line with a version counts.
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

// TooOld returns a failure if the version of an executable is not supported, else nil.
func TooOld(executable string, found Version) *Failure {
	least, ok := OldestVersion(executable)
	if !ok || slices.CompareFunc(found[:], least[:], cmp.Compare[int]) >= 0 {
		return nil
	}
	return &Failure{Cause: CauseTooOld, Message: fmt.Sprintf(
		"the image contains version %s of %s, but the oldest version that Clew supports is %s: use an image with a newer version", found, executable, least)}
}
