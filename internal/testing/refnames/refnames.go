// Package refnames lists valid and invalid branch names for the tests of every
// component that validates them.
package refnames

import "strings"

// Branches returns branch names and whether each is valid for Clew.
func Branches() map[string]bool {
	return map[string]bool{
		"main": true, "before/refactoring": true, "a/-b": true, "a-b": true, "v1.2.3": true, "a.lock.b": true, "a_b/c.d": true,
		"lock": true, "head": true, "HEAD/a": true, "a/HEAD": true, "0": true, strings.Repeat("a", 200): true,
		"": false, "-a": false, "a..b": false, ".a": false, "a/.b": false, "a.": false, "/a": false, "a/": false, "a//b": false,
		"a.lock": false, "a.lock/b": false, "a/b.lock": false, "HEAD": false, "a b": false, "a~1": false, "a^": false, "a:b": false, "a?": false,
		"a*": false, "a[": false, `a\b`: false, "a\nb": false, "a\n": false, "a@{1}": false, strings.Repeat("a", 201): false,
	}
}

// IDs returns ids of rewinds that match the API's pattern, and whether the default
// branch name made from each is valid.
func IDs() map[string]bool {
	return map[string]bool{
		"1": true, "back": true, "v1.2": true, "a-b_c": true, "a.lock.b": true, "lock": true, "a.LOCK": true,
		"v1..v2": false, "fix.lock": false,
	}
}
