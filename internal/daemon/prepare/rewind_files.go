package prepare

import (
	"context"
	"fmt"
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemonapi"
	"github.com/clew-dev/clew/internal/pathmatch"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

// checkFiles is checkRewind for a rewind that leaves the agent's repository as it is.
func (p *preparer) checkFiles(ctx context.Context, op *daemonapi.Operation) error {
	r := newRewind(op, "")
	if r.Scope != v1alpha1.RewindCode {
		return &failure{reason: v1alpha1.ReasonInvalidOperation, permanent: true,
			message: "a rewind of selected files must have the scope Code: set rewind.scope, and request the rewind again"}
	}
	if err := p.checkBranch(op); err != nil {
		return err
	}
	point, err := p.targetOf(ctx, r)
	if err != nil {
		return err
	}
	err = p.repo.CheckPaths(ctx, worktree.RestoreRequest{Target: target(point), Paths: r.Paths})
	switch {
	case err != nil && judge(err).permanent:
		return fmt.Errorf("%w; request the rewind again", err)
	case err != nil:
		return err
	case r.Target.Number > 0 && p.taker.MissingInGitstore(r.Target.Number):
		return p.requirePushed(ctx, r.Target.Number)
	}
	return nil
}

// targetOf fetches the target of a rewind and reads every object of it.
func (p *preparer) targetOf(ctx context.Context, r *journal.Rewind) (journal.Point, error) {
	if r.FilesOnly && r.Target.Number == 0 {
		return p.commit(ctx, r.Target.Code)
	}
	return p.target(ctx, r.Target.Number, r.Target.Code)
}

// commit returns a commit that the task knows. What its own refs reach is found, never what
// somebody names: the repository in the gitstore is shared with other tasks.
func (p *preparer) commit(ctx context.Context, id string) (journal.Point, error) {
	known, err := p.reaches(ctx, id)
	if worktree.ReasonOf(err) == worktree.InvalidReference {
		known, err = false, nil // not the id of a commit
	} else if err == nil && !known {
		if err = p.fetchCommits(ctx); err == nil {
			known, err = p.reaches(ctx, id)
		}
	}
	switch {
	case err != nil:
		return journal.Point{}, fmt.Errorf("look up commit %s: %w", id, err)
	case !known:
		return journal.Point{}, &failure{reason: v1alpha1.ReasonCommitNotFound, permanent: true, message: daemonapi.UnknownCommit(id)}
	}
	if err := p.repo.Verify(ctx, worktree.Target{Code: id}); err != nil {
		return journal.Point{}, fmt.Errorf("commit %s cannot be restored: %w", id, err)
	}
	return journal.Point{Code: id}, nil
}

// commitRefs are the prefixes of the refs to commits with the task's files: its checkpoints,
// and the agent's own commits.
func (p *preparer) commitRefs() []string {
	of := refname.OfTask(p.cfg.Pod.TaskUID)
	return []string{of + "code/", of + "head/"}
}

// reaches reports whether the local repository has a commit and one of the task's refs
// reaches it.
func (p *preparer) reaches(ctx context.Context, id string) (bool, error) {
	return p.repo.Reaches(ctx, id, p.commitRefs()...)
}

// fetchAtOnce is the number of refs that are fetched at once, which bounds the length of
// git's command line.
const fetchAtOnce = 500

// fetchCommits fetches the commits of the task that only the gitstore has, as after the loss
// of a volume.
func (p *preparer) fetchCommits(ctx context.Context) error {
	return p.retry(ctx, func() error {
		remote, err := p.cfg.Remote()
		if err != nil {
			return wrapPlace(placeGitstore, err)
		}
		var missing []string
		for _, prefix := range p.commitRefs() {
			there, err := p.repo.RemoteRefs(ctx, remote, prefix)
			if err != nil {
				return wrapPlace(placeGitstore, err)
			}
			here, err := p.repo.Refs(ctx, prefix)
			if err != nil {
				return err
			}
			for name := range there {
				if here[name] == "" {
					missing = append(missing, name)
				}
			}
		}
		slices.Sort(missing)
		for refs := range slices.Chunk(missing, fetchAtOnce) {
			if err := p.repo.Fetch(ctx, remote, refs...); err != nil {
				return wrapPlace(placeGitstore, err)
			}
		}
		return nil
	})
}

// restoreFiles restores the selected files of a rewind's target. Everything else becomes, or
// stays, that of the checkpoint from before the rewind: it is equal to the worktree as it was
// when the restore began, which a killed restore may have left half changed.
func (p *preparer) restoreFiles(ctx context.Context, r *journal.Rewind) error {
	if r.From.Code == "" {
		return &failure{permanent: true, message: "there is no checkpoint from before the rewind, and without one its files cannot be told from others"}
	}
	var res worktree.RestoreResult
	p.known.drift = nil
	err := p.retry(ctx, func() (err error) {
		res, err = p.repo.Restore(ctx, worktree.RestoreRequest{Target: target(r.Target), Onto: target(r.From), Paths: r.Paths})
		return err
	})
	if err != nil {
		return fmt.Errorf("restore files of %s: %w", destination(r), err)
	}
	p.log.Info("restored files", "target", destination(r), "paths", len(r.Paths), "onto", r.From.Number, "written", res.Written, "removed", res.Removed,
		"unchanged", res.Unchanged, "kept", len(res.Kept), "conflicts", len(res.Conflicts), "took", res.Took.String())
	return conflictsOf(res, destination(r))
}

// selection names the paths of a rewind.
func selection(paths []string) string {
	if slices.Equal(paths, []string{pathmatch.Everything}) {
		return "the files" // an undo of a rewind of files names all of them
	}
	first := fmt.Sprintf("%q", clip.Marked(paths[0], 100))
	if len(paths) == 1 {
		return first
	}
	return fmt.Sprintf("%s and %d more", first, len(paths)-1)
}
