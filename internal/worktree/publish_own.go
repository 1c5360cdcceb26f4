package worktree

import (
	"context"
	"errors"
	"strings"
)

// maxOwnCommit bounds the size of a commit object that may be the task's own.
const maxOwnCommit = 1 << 20

// OnTop is what a commit at the origin says of how it was made. PublishCommit makes the same
// commit of it again, for the same checkpoint, if Clew has made it: what two requests have in
// common is all that a commit depends on.
type OnTop struct {
	// Message, AuthorName and AuthorEmail are those of PublishRequest.
	Message, AuthorName, AuthorEmail string
	// Parent is the commit that it was made on top of; "" for none.
	Parent string
}

// ReadOrigin reads a commit that the ref of a push has at the origin. It returns nil if the ref
// has another one by now, or if the commit cannot be one that PublishCommit made.
//
// Errors: those of PushOrigin that are about the origin.
func (r *Repo) ReadOrigin(ctx context.Context, p OriginPush, commit string) (*OnTop, error) {
	r.packs.RLock()
	defer r.packs.RUnlock()
	c, err := r.pushing(ctx, p)
	if err != nil {
		return nil, err
	}
	err = c.have(commit)
	if errors.Is(err, errMoved) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out, err := r.git(ctx, gitCall{args: []string{"cat-file", "commit", commit}})
	if err != nil {
		return nil, failGit(err, "read the commit %s", commit)
	}
	return onTop(string(out)), nil
}

// onTop reads a commit object; nil if it has two parents, or no author.
func onTop(object string) *OnTop {
	head, message, ok := strings.Cut(object, "\n\n")
	if !ok || len(object) > maxOwnCommit {
		return nil
	}
	made := &OnTop{Message: message}
	for line := range strings.SplitSeq(head, "\n") {
		switch key, value, _ := strings.Cut(line, " "); {
		case key == "parent" && made.Parent != "":
			return nil
		case key == "parent":
			made.Parent = value
		case key == "author":
			name, rest, _ := strings.Cut(value, " <")
			email, _, found := strings.Cut(rest, "> ")
			if !found {
				return nil
			}
			made.AuthorName, made.AuthorEmail = name, email
		}
	}
	return made
}
