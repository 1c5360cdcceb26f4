package publish

import (
	"context"
	"regexp"
	"slices"
	"strconv"

	"github.com/clew-dev/clew/internal/worktree"
)

// maxRecognised is how many commits at the origin are recognised in one run.
const maxRecognised = 3

// trailers are those of message, at its end.
var trailers = regexp.MustCompile(`\n\nClew-Task: ([^\n]+)\nClew-Checkpoint: ([1-9][0-9]{0,17})\n$`)

// recognise returns the push of the task that left a commit at the origin, and of which nobody
// has learned, because the pod was lost after it had pushed, or because the stores that knew were
// restored from older copies. It returns nil if the commit is not the one by which a checkpoint
// of the task is published: that is made again and compared, so nobody can pretend it. Commits
// that the agent made itself are not recognised, since others may have pushed them.
func (p *publisher) recognise(ctx context.Context, push worktree.OriginPush, commit string) (*worktree.OwnPush, error) {
	var found *worktree.OnTop
	err := p.retry(ctx, func() (err error) {
		found, err = p.repo.ReadOrigin(ctx, push, commit)
		return err
	})
	if err != nil || found == nil {
		return nil, err
	}
	named := trailers.FindStringSubmatch(found.Message)
	if named == nil || named[1] != p.Pod.Namespace+"/"+p.Pod.Task {
		return nil, nil
	}
	checkpoint, _ := strconv.ParseInt(named[2], 10, 64)
	made, err := p.commit(ctx, checkpoint, worktree.PublishRequest{
		Uncommitted: true, Message: found.Message, AuthorName: found.AuthorName, AuthorEmail: found.AuthorEmail,
	})
	switch {
	case worktree.ReasonOf(err) == worktree.Unreachable:
		return nil, err
	case err != nil: // nothing shows that it is the task's own
		p.Log.Error(err, "the checkpoint that a commit at the repository names cannot be compared", "commit", commit, "checkpoint", checkpoint)
		return nil, nil
	case made.Commit != commit || !made.OnTop: // or the agent has only checked it out
		return nil, nil
	}
	p.Log.Info("the repository has what the task has pushed before", "commit", commit, "checkpoint", checkpoint)
	if onto, known := p.kept(checkpoint); known {
		return &worktree.OwnPush{Commit: commit, Onto: onto}, nil
	}
	return &worktree.OwnPush{Commit: commit, Onto: found.Parent, Unsure: true}, nil // at most the agent's own commit had it
}

// kept returns what the push of a commit that Clew made of a checkpoint, of which nobody has learned,
// kept of others; known is false if that cannot be told. If it is on record that a pod was started
// for the checkpoint, its push was announced, or was made over nothing or over a push that was known
// then.
func (p *publisher) kept(checkpoint int64) (onto string, known bool) {
	if !slices.Contains(p.Pod.Tries, checkpoint) {
		return "", false
	}
	onto = p.Pod.Onto
	for _, own := range slices.Concat(p.Pod.Earlier, p.Pod.Announced, p.Pod.Unreported) {
		switch {
		case onto == "":
			onto = own.Onto
		case own.Onto != "" && own.Onto != onto:
			return "", false
		}
	}
	return onto, true
}
