package worktree

import (
	"context"
	"time"
)

// A checkpoint of files that are being changed is of no use, so the agent is
// stopped for it, and everything that is read then is time the agent loses.
// Most of a large change can be read before: Warm stores all that has changed
// while the agent works. The checkpoint that follows reads only what the stat
// cache does not vouch for any more, and builds on the tree that Warm wrote.

const (
	warmCode  = "refs/warm/code"
	warmState = "refs/warm/state"
)

// briefReading is how much a brief checkpoint reads: some tenths of a second.
var briefReading = reading{files: 1000, bytes: 16 << 20}

var errTooMuchChanged = fail(TooMuchChanged, nil, "more files have changed than are read in a moment")

// ahead is what Warm stored beyond a commit.
type ahead struct {
	parent string
	files  *dir // those of parent
}

// Warm stores what has changed since parent, the code commit that the next
// checkpoint continues, so that little is left for that one to read. The agent
// may be at work: nothing is believed of a file that could have changed since
// it was read. Afterwards a checkpoint is as exact as without it, and sooner done.
//
// Nobody waits for each moment of it, so it may leave processors to others: rest is
// called between any two small parts of the work, by several goroutines, and the work
// goes on when it returns.
//
// Errors are those of Checkpoint.
func (r *Repo) Warm(ctx context.Context, parent string, rest func()) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rest = rest
	defer func() { r.rest = nil }()
	if r.pristine == nil {
		return fail(WorktreeMissing, nil, "the worktree %s was not laid out by this repository; clone or restore it first", r.cfg.Worktree)
	}
	if parent != "" && !isCommitID(parent) {
		return fail(InvalidReference, nil, "the parent %q is not a commit id of 40 hexadecimal digits", parent)
	}
	req := &CheckpointRequest{Parent: parent, Time: time.Now(), Message: "Stored ahead of a checkpoint"}
	t, err := r.checkpoint(ctx, req, refPair{warmCode, warmState}, true)
	if err != nil {
		return err
	}
	r.ahead = &ahead{parent: parent, files: t.codeBase}
	return nil
}

// pause lets Warm rest; everything else goes on at once.
func (r *Repo) pause() {
	if r.rest != nil {
		r.rest()
	}
}

// Cold reports whether nothing is known of the worktree yet, so that a
// checkpoint would have to read every file.
func (r *Repo) Cold() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cache.work == nil
}
