package worktree

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// undecided reports whether a git that failed ended before it found anything of the objects
// that it read. One that is short of memory may have met an object whose size is damaged,
// for which it wants any amount.
func (r *Repo) undecided(err error) bool {
	if !wasEnded(err) {
		return false
	}
	said := stderrOf(err)
	named := objectTooLarge.FindStringSubmatch(said)
	return named == nil || !outOfMemory.MatchString(said) || !r.sizeDamaged(named[1])
}

// objectTooLarge finds in git's words the packed object for which it got no memory.
var objectTooLarge = regexp.MustCompile(`(?m)^fatal: packed object ([0-9a-f]{40}) `)

// leastPart is how much smaller deflate can make anything (zlib's technical details).
const leastPart = 1032

// sizeDamaged reports whether an object in a pack, or the one that it is a delta of in the
// end, says that it is larger than what it is made of could be.
func (r *Repo) sizeDamaged(id string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		out, err := r.git(ctx, gitCall{args: []string{"cat-file", "--batch-check=%(objectsize) %(objectsize:disk) %(deltabase)"}, stdin: strings.NewReader(id + "\n")})
		if err != nil {
			return false
		}
		var size, stored int64
		var base string
		if _, err := fmt.Sscan(string(out), &size, &stored, &base); err != nil {
			return false
		}
		if strings.Trim(base, "0") == "" {
			return size/leastPart > stored
		}
		id = base // a small delta may make a large object
	}
}
