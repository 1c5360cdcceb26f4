// Package refnames lists names for branches, good and bad, for the tests of
// everything that decides about them.
package refnames

import "strings"

// Branches are names that Clew may or may not give a branch.
func Branches() map[string]bool {
	return map[string]bool{
		"main": true, "before/refactoring": true, "a/-b": true, "a-b": true, "v1.2.3": true, "a.lock.b": true, "a_b/c.d": true,
		"lock": true, "head": true, "HEAD/a": true, "a/HEAD": true, "0": true, strings.Repeat("a", 200): true,
		"": false, "-a": false, "a..b": false, ".a": false, "a/.b": false, "a.": false, "/a": false, "a/": false, "a//b": false,
		"a.lock": false, "a.lock/b": false, "a/b.lock": false, "HEAD": false, "a b": false, "a~1": false, "a^": false, "a:b": false, "a?": false,
		"a*": false, "a[": false, `a\b`: false, "a\nb": false, "a\n": false, "a@{1}": false, strings.Repeat("a", 201): false,
	}
}

// IDs are ids of rewinds that the API's pattern takes, and whether the default
// name of the branch can be made of them.
func IDs() map[string]bool {
	return map[string]bool{
		"1": true, "back": true, "v1.2": true, "a-b_c": true, "a.lock.b": true, "lock": true, "a.LOCK": true,
		"v1..v2": false, "fix.lock": false,
	}
}
