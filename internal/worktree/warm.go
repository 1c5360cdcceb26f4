package worktree

import (
	"context"
	"time"
)

// A checkpoint of files that are being changed is useless, so the agent is
// stopped during a checkpoint and loses the time that reading takes. Most of a
// large change can be read in advance: Warm stores all changes while the agent is
// working. The checkpoint that follows reads only the files that the stat cache no
// longer vouches for, and builds on the tree that Warm wrote.

const (
	warmCode  = "refs/warm/code"
	warmState = "refs/warm/state"
)

// briefLimit bounds what a brief checkpoint reads: that takes some tenths of a second.
var briefLimit = readAmount{files: 1000, bytes: 16 << 20}

var errTooMuchChanged = fail(TooMuchChanged, nil, "too many files have changed for a brief checkpoint")

// ahead describes the commit whose changes Warm has stored.
type ahead struct {
	parent string
	files  *dir // those of parent
}

// Warm stores what has changed since parent, the parent of the next checkpoint's
// code commit, so that the checkpoint has little left to read. The agent may be
// running: a file that could have changed since it was read is not trusted. The
// checkpoint is as exact as without Warm, but faster.
//
// Warm is not urgent, so it can leave the processors to others: several goroutines
// call throttle between small parts of the work, and continue when it returns.
//
// It returns the commit with all files as they were read, whose message lists the nested
// repositories, and which is kept until the next Warm or checkpoint. The errors are those of Checkpoint.
func (r *Repo) Warm(ctx context.Context, parent string, throttle func()) (commit string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.throttle = throttle
	defer func() { r.throttle = nil }()
	if r.pristine == nil {
		return "", fail(WorktreeMissing, nil, "the worktree %s was not created by this repository; clone it or restore a checkpoint first", r.cfg.Worktree)
	}
	if parent != "" && !isCommitID(parent) {
		return "", fail(InvalidReference, nil, "the parent %q is not a commit id of 40 hexadecimal digits", parent)
	}
	req := &CheckpointRequest{Parent: parent, Time: time.Now(), Message: "Stored ahead of a checkpoint", ListNested: true}
	t, err := r.checkpoint(ctx, req, refPair{warmCode, warmState}, true)
	if err != nil {
		return "", err
	}
	r.ahead = &ahead{parent: parent, files: t.codeBase}
	return t.result.Code, nil
}

// pause calls the throttle of Warm. During any other operation it does nothing.
func (r *Repo) pause() {
	if r.throttle != nil {
		r.throttle()
	}
}

// Cold reports whether the stat cache is empty, so that a checkpoint would have to
// read every file.
func (r *Repo) Cold() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cache.work == nil
}

// maxNested bounds how many nested repositories are listed.
const maxNested = 1000

// nestedRepositories appends the folders below d that are worktrees of nested repositories.
func nestedRepositories(d *dir, path string, list []string) []string {
	for i := range d.entries {
		e := &d.entries[i]
		if e.dir == nil || e.hidden || e.gone || e.skip != "" || len(list) == maxNested {
			continue
		}
		at := joinPath(path, e.name)
		if e.dir.isRepository() {
			list = append(list, at)
		}
		list = nestedRepositories(e.dir, at, list)
	}
	return list
}
