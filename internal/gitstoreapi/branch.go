package gitstoreapi

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// BranchQuery names a branch of a checkpoint.
type BranchQuery struct {
	// Task is the task's name, below which its branches are.
	Task string
	// Name is the branch's name without the task's.
	Name string
	// Checkpoint is the checkpoint's number, Head the commit that the agent's HEAD was then and
	// Base the one that the task started from, both "" if there is none.
	Checkpoint int64
	Head, Base string
}

// Branch is a branch of a checkpoint.
type Branch struct {
	// Ref is the full name of the branch's ref.
	Ref string `json:"ref"`
	// Commit is what it was made at.
	Commit string `json:"commit"`
}

const (
	// branchTimeout bounds one request, which waits for a slot of the gitstore.
	branchTimeout = time.Minute
	// maxBranchBytes bounds the answer.
	maxBranchBytes = 64 << 10
)

// MakeBranch makes a branch that holds exactly the files of a checkpoint. The request may be
// repeated. A refusal of the gitstore is returned as a *Refusal: NotFound if it does not have
// the checkpoint, RefExists if the branch is elsewhere.
func (c Client) MakeBranch(ctx context.Context, namespace, uid string, q BranchQuery) (Branch, error) {
	var made Branch
	ctx, cancel := context.WithTimeout(ctx, branchTimeout)
	defer cancel()
	v := url.Values{"task": {q.Task}, "branch": {q.Name}, "checkpoint": {strconv.FormatInt(q.Checkpoint, 10)}, "head": {q.Head}, "base": {q.Base}}
	err := c.do(ctx, http.MethodPut, taskPath(namespace, uid)+"/branch", v, maxBranchBytes, &made)
	return made, err
}

// RemoveBranch removes a task's branch if it still is at a commit. The request may be repeated.
func (c Client) RemoveBranch(ctx context.Context, namespace, uid, task, name, commit string) error {
	var removed Branch
	ctx, cancel := context.WithTimeout(ctx, branchTimeout)
	defer cancel()
	v := url.Values{"task": {task}, "branch": {name}, "commit": {commit}}
	return c.do(ctx, http.MethodDelete, taskPath(namespace, uid)+"/branch", v, maxBranchBytes, &removed)
}
