package prepare

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/origin"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/refname"
	"github.com/clew-dev/clew/internal/worktree"
)

// Triggers of the checkpoints that prepare takes.
const (
	triggerDrift     = v1alpha1.TriggerDrift
	triggerPreRewind = v1alpha1.TriggerPreRewind
	triggerRewound   = v1alpha1.TriggerRewound
	triggerBeforeRun = v1alpha1.TriggerBeforeRun

	triggerPreCheckout = v1alpha1.TriggerPreCheckout
	triggerCheckedOut  = v1alpha1.TriggerCheckedOut
)

// layOut fills an empty volume: from the task's newest checkpoint, from another task's, or
// from the origin. A layout that an earlier prepare began is finished.
func (p *preparer) layOut(ctx context.Context) error {
	state := p.journal.State()
	if state.Layout == nil {
		plan, err := p.planLayout(ctx)
		if err != nil {
			return err
		}
		err = p.journal.Update(func(s *journal.State) error {
			s.Layout = &plan
			if op := p.cfg.Pod.Operation.FirstRewind(); p.halfRewound(op) {
				s.Rewind = newRewind(op, journal.RewindSaved)
			}
			return nil
		})
		if err != nil {
			return err
		}
		state = p.journal.State()
	}
	if err := p.checkCloned(state.Cloned); err != nil {
		return err
	}
	layout := *state.Layout
	var err error
	switch layout.Stage {
	case journal.LayoutCloning:
		err = p.clone(ctx, layout)
	case journal.LayoutCopying:
		err = p.copySource(ctx, layout)
	case journal.LayoutForking:
		err = p.fork(ctx, layout)
	case journal.LayoutRestoring:
		err = p.restore(ctx, layout)
	default:
		return nil
	}
	p.known.laidOut = err == nil
	return err
}

// planLayout decides which source the files come from.
func (p *preparer) planLayout(ctx context.Context) (journal.Layout, error) {
	move := daemonapi.OperationKey(daemonapi.OperationRestore, p.podKey())
	if op := p.cfg.Pod.Operation.FirstRewind(); p.halfRewound(op) {
		move = "" // the rewind has already moved the conversation
	}
	latest := p.begun.GetLatestCheckpoint()
	if latest != nil {
		points, err := p.remoteCheckpoints(ctx)
		if err != nil {
			return journal.Layout{}, err
		}
		for _, n := range slices.Backward(slices.Sorted(maps.Keys(points))) {
			if n <= latest.GetNumber() {
				return journal.Layout{Stage: journal.LayoutRestoring, Point: points[n], Move: move}, nil
			}
		}
	}
	// Only the prompt was ever recorded, so there is nothing to move back.
	if latest == nil && p.spool.Last() <= 1 {
		move = ""
	}
	if src := p.cfg.Pod.Source; src != nil && len(src.CopyFiles) == 0 {
		return journal.Layout{Stage: journal.LayoutForking, Point: journal.Point{Number: src.Checkpoint}, Move: move}, nil
	}
	return journal.Layout{Stage: journal.LayoutCloning, Move: move}, nil
}

// halfRewound reports whether the server has moved the conversation for a rewind but lacks
// the rewind's last checkpoint.
func (p *preparer) halfRewound(op *daemonapi.Operation) bool {
	return op != nil && op.Kind == daemonapi.OperationRewind &&
		p.completedAtServer(daemonapi.OperationKey(op.Kind, op.ID)) && !p.completedAtServer(daemonapi.OperationDoneKey(op.Kind, op.ID)) &&
		!p.completedAtServer(daemonapi.OperationUndoneKey(op.Kind, op.ID))
}

// remoteCheckpoints lists this task's checkpoints that the gitstore has completely,
// retrying until the gitstore answers.
func (p *preparer) remoteCheckpoints(ctx context.Context) (points map[int64]journal.Point, err error) {
	err = p.retry(ctx, func() error {
		points, err = p.taker.InGitstore(ctx)
		return wrapPlace(placeGitstore, err)
	})
	return points, err
}

// checkCloned refuses a worktree that was cloned from another repository than the one that the
// task names: its spec was corrected while a pod that nobody had heard of laid out the volume.
func (p *preparer) checkCloned(cloned *journal.Cloned) error {
	if cloned == nil || *cloned == p.named() {
		return nil
	}
	return &failure{reason: v1alpha1.ReasonRepositoryMismatch, permanent: true, message: fmt.Sprintf(
		"the workspace was already laid out from the repository %q, ref %q: name that one in repository again, or create a new Task", cloned.URL, cloned.Ref)}
}

// named returns what the task's spec names to clone from.
func (p *preparer) named() journal.Cloned {
	if r := p.cfg.Pod.Repository; r != nil {
		return journal.Cloned{URL: r.URL, Ref: r.Ref}
	}
	return journal.Cloned{}
}

// clone lays out the worktree from the origin, or empty if the task has no repository.
func (p *preparer) clone(ctx context.Context, layout journal.Layout) error {
	req := worktree.CloneRequest{}
	if r := p.cfg.Pod.Repository; r != nil {
		req.URL, req.Ref = r.URL, r.Ref
		var err error
		if req.Credentials, req.CAFile, err = origin.Credentials(p.cfg.CredentialsDir); err != nil {
			return err
		}
		if missing := origin.Missing(*r, req.Credentials, req.CAFile); missing != "" {
			return &failure{reason: v1alpha1.ReasonCredentialsNotFound, permanent: true, message: missing}
		}
	}
	var cloned worktree.Origin
	err := p.retry(ctx, func() (err error) {
		cloned, err = p.repo.Clone(ctx, req)
		return wrapPlace(placeOrigin, err)
	})
	if err != nil {
		return err
	}
	if err := p.startOver(ctx, layout); err != nil {
		return err
	}
	p.log.Info("cloned the repository", "url", cloned.URL, "ref", cloned.Ref, "commit", cloned.Base)
	next := journal.Layout{Stage: journal.LayoutReady}
	if src := p.cfg.Pod.Source; src != nil && len(src.CopyFiles) > 0 {
		next = journal.Layout{Stage: journal.LayoutCopying, Point: journal.Point{Number: src.Checkpoint}}
	}
	err = p.journal.Update(func(s *journal.State) error {
		s.Layout, s.Cloned = &next, ptr.To(p.named())
		s.Base, s.Parent, s.Latest, s.Clean = cloned.Base, cloned.Base, nil, nil
		s.RestoreSession(nil)
		return nil
	})
	if err != nil || next.Stage == journal.LayoutReady {
		return err
	}
	return p.copySource(ctx, next)
}

// startOver moves the conversation back to its beginning if the task had progressed before
// its volume was lost, and records the prompt again.
func (p *preparer) startOver(ctx context.Context, layout journal.Layout) error {
	if layout.Move == "" {
		return nil
	}
	p.log.Info("the volume was lost before any checkpoint was durable: starting over")
	_, err := p.move(ctx, &daemonv1.Move{OperationId: layout.Move, Reason: "the volume was " + p.fateOfVolume() + " before any checkpoint was durable"})
	if err != nil {
		return err
	}
	p.result.Restored = true
	if p.cfg.Prompt == "" || (p.cfg.Pod.Source != nil && p.cfg.Pod.Source.IncludeConversation) {
		inherited, err := p.inherits(ctx, p.cfg.Prompt)
		if err != nil || inherited || p.cfg.Prompt == "" {
			return err
		}
	}
	return p.once("prompt/"+layout.Move, func() error { return p.userMessage(p.cfg.Prompt) })
}

// fork restores another task's checkpoint.
func (p *preparer) fork(ctx context.Context, layout journal.Layout) error {
	src := p.cfg.Pod.Source
	if src == nil {
		return errors.New("the volume is to be filled from another task's checkpoint, but the pod's configuration names none")
	}
	point, err := p.fetch(ctx, placeSource, src.TaskUID, src.Checkpoint, src.Commit)
	if err != nil {
		return err
	}
	scope, clean := worktree.ScopeBoth, point
	clean.Number = 0
	if !src.IncludeConversation {
		scope = worktree.ScopeCode
	}
	res, err := p.restoreTo(ctx, point, scope)
	if err != nil {
		return err
	}
	if src.Branch != "" {
		branch, err := p.repo.StartBranch(ctx, src.Branch, src.NumberBranch)
		if err != nil {
			return err
		}
		p.log.Info("the agent's repository starts on a new branch", "branch", branch)
	}
	if err := p.startOver(ctx, layout); err != nil {
		return err
	}
	// This refreshes the position where the inherited conversation ends, apart from the
	// prompt.
	if err := p.drain(ctx); err != nil {
		return err
	}
	if !src.IncludeConversation { // the agent's repository was all that is wanted of it
		if err := p.repo.DropState(ctx, refname.State(src.TaskUID, src.Checkpoint)); err != nil {
			return err
		}
	}
	origin, _ := p.repo.Origin()
	p.log.Info("restored the other task's checkpoint", "task", src.TaskUID, "checkpoint", src.Checkpoint)
	return p.journal.Update(func(s *journal.State) error {
		s.Layout = &journal.Layout{Stage: journal.LayoutReady}
		s.Base, s.Parent, s.Latest, s.Clean = origin.Base, point.Code, nil, &clean
		s.RestoreSession(res.session)
		s.RestoredAt(p.begun.GetPosition().GetPosition())
		return nil
	})
}

// restore restores this task's own checkpoint after the volume was lost.
func (p *preparer) restore(ctx context.Context, layout journal.Layout) error {
	point, err := p.fetch(ctx, placeGitstore, p.cfg.Pod.TaskUID, layout.Point.Number, layout.Point.Code)
	if worktree.ReasonOf(err) == worktree.RefNotFound {
		return p.planOlder(ctx, layout.Point, "the gitstore does not have checkpoint %d of this task any more, nor any older one")
	}
	if err != nil {
		return err
	}
	res, err := p.restoreTo(ctx, point, worktree.ScopeBoth)
	if err != nil {
		return err
	}
	session, position := res.session, int64(0)
	if latest := p.begun.GetLatestCheckpoint(); latest.GetNumber() == point.Number {
		position = latest.GetPosition().GetPosition()
	} else if layout.Move == "" {
		session = nil // unknown how much of the conversation it contains
	}
	if layout.Move != "" {
		position, err = p.move(ctx, &daemonv1.Move{OperationId: layout.Move, Checkpoint: point.Number, AfterSequence: res.sequence, Reason: "the volume was " + p.fateOfVolume()})
		if errors.Is(err, gatewayclient.ErrNotFound) {
			return p.planOlder(ctx, point, "the gitstore has checkpoint %d of this task but the history store does not know it")
		}
		if err != nil {
			return err
		}
	}
	p.result.Restored = true
	p.log.Info("restored the workspace from the gitstore", "checkpoint", point.Number)
	return p.recordRestored(ctx, point, session, position)
}

// fateOfVolume says in a word what has become of the task's former volume.
func (p *preparer) fateOfVolume() string {
	if p.cfg.Pod.VolumeReleased {
		return "released"
	}
	return "lost"
}

// recordRestored journals that a checkpoint was restored after the volume was lost. If newer
// checkpoints were lost with the volume, it also takes a checkpoint, so that the newest
// recorded checkpoint is the current state.
func (p *preparer) recordRestored(ctx context.Context, point journal.Point, session *journal.AgentSession, position int64) error {
	origin, _ := p.repo.Origin()
	ready := func(s *journal.State) {
		s.Layout = &journal.Layout{Stage: journal.LayoutReady}
		s.Base = origin.Base
	}
	err := p.journal.Update(func(s *journal.State) error {
		s.Latest, s.Parent, s.Clean = &point, point.Code, &point
		s.RestoreSession(session)
		s.RestoredAt(position)
		if s.Rewind != nil { // the rewind continues from here and takes a checkpoint itself
			s.Rewind.From = point
		}
		if s.LastNumber == point.Number || s.Rewind != nil {
			ready(s)
		}
		return nil
	})
	if err != nil || p.journal.State().Layout.Stage == journal.LayoutReady {
		return err
	}
	_, err = p.taker.Take(ctx, checkpoint.Request{Trigger: triggerRewound, Parent: point.Code,
		Message: fmt.Sprintf("Restored checkpoint %d; newer ones were lost with the volume", point.Number),
		Also: func(s *journal.State, taken journal.Point) {
			ready(s)
			s.Clean = &taken
		}})
	if err != nil {
		return err
	}
	return p.taker.Event(v1alpha1.EventWorkspaceRestored, fmt.Sprintf("the volume was %s; checkpoint %d was restored from the gitstore", p.fateOfVolume(), point.Number),
		map[string]string{"checkpoint": strconv.FormatInt(point.Number, 10)})
}

// planOlder restores the next older checkpoint instead of one that the gitstore has lost,
// or that the gitstore has and the server does not know. why is the format of the failure
// message if there is no older one.
func (p *preparer) planOlder(ctx context.Context, unknown journal.Point, why string) error {
	points, err := p.remoteCheckpoints(ctx)
	if err != nil {
		return err
	}
	for _, n := range slices.Backward(slices.Sorted(maps.Keys(points))) {
		if n >= unknown.Number {
			continue
		}
		err := p.journal.Update(func(s *journal.State) error { s.Layout.Point = points[n]; return nil })
		if err != nil {
			return err
		}
		return p.layOut(ctx)
	}
	return &failure{reason: v1alpha1.ReasonCheckpointNotFound, permanent: true,
		message: fmt.Sprintf(why, unknown.Number)}
}

// fetch fetches a task's checkpoint into the local repository unless it is already there.
// commit, unless empty, is the expected code commit.
func (p *preparer) fetch(ctx context.Context, where place, uid string, number int64, commit string) (journal.Point, error) {
	return p.fetchRefs(ctx, where, uid, number, commit, refname.Code(uid, number), refname.State(uid, number))
}

// fetchRefs is fetch for some of the checkpoint's refs.
func (p *preparer) fetchRefs(ctx context.Context, where place, uid string, number int64, commit string, refs ...string) (journal.Point, error) {
	here, err := p.repo.Refs(ctx, refname.OfTask(uid))
	if err != nil {
		return journal.Point{}, err
	}
	code := refname.Code(uid, number)
	lacks := func(ref string) bool { return here[ref] == "" }
	if slices.ContainsFunc(refs, lacks) || (commit != "" && here[code] != commit) {
		err := p.retry(ctx, func() error {
			remote, err := p.cfg.Remote()
			if err == nil {
				err = p.repo.Fetch(ctx, remote, refs...)
			}
			if err != nil && ctx.Err() == nil {
				if damaged := p.damage(ctx, uid, number); damaged != nil {
					return damaged
				}
			}
			return wrapPlace(where, err)
		})
		if err != nil {
			return journal.Point{}, fmt.Errorf("fetch checkpoint %d: %w", number, err)
		}
	}
	point, err := p.local(ctx, uid, number)
	if err == nil && commit != "" && point.Code != commit {
		err = &failure{reason: v1alpha1.ReasonCheckpointCorrupted, permanent: true,
			message: fmt.Sprintf("checkpoint %d is commit %s in the gitstore, expected %s", number, point.Code, commit)}
	}
	return point, err
}

// local returns a checkpoint as the local repository has it; the commits are empty if it
// has none.
func (p *preparer) local(ctx context.Context, uid string, number int64) (journal.Point, error) {
	refs, err := p.repo.Refs(ctx, refname.OfTask(uid))
	if err != nil {
		return journal.Point{}, err
	}
	return journal.Point{Number: number, Code: refs[refname.Code(uid, number)], State: refs[refname.State(uid, number)]}, nil
}

// restored is what a restored checkpoint contains besides files.
type restored struct {
	// session is the agent's session; nil unless the agent's state was restored.
	session *journal.AgentSession
	// sequence is the last record before the checkpoint was taken; 0 if unknown.
	sequence int64
}

// restoreTo restores a checkpoint on the volume.
func (p *preparer) restoreTo(ctx context.Context, point journal.Point, scope worktree.Scope) (restored, error) {
	if scope != worktree.ScopeConversation && !p.journal.State().RefsReplaced {
		if err := p.journal.Update(func(s *journal.State) error { s.RefsReplaced = true; return nil }); err != nil {
			return restored{}, err
		}
	}
	var res worktree.RestoreResult
	p.known.drift = nil
	err := p.retry(ctx, func() (err error) {
		res, err = p.repo.Restore(ctx, worktree.RestoreRequest{Target: target(point), Scope: scope})
		return err
	})
	if err != nil {
		return restored{}, fmt.Errorf("restore checkpoint %d: %w", point.Number, err)
	}
	p.log.Info("restored a checkpoint", "checkpoint", point.Number, "scope", scope, "written", res.Written, "removed", res.Removed,
		"unchanged", res.Unchanged, "kept", len(res.Kept), "conflicts", len(res.Conflicts), "took", res.Took.String(), "synced", res.Synced.String())
	if err := conflictsOf(res, fmt.Sprintf("checkpoint %d", point.Number)); err != nil {
		return restored{}, err
	}
	found := restored{sequence: checkpoint.AfterSequence(res.Annotations)}
	if scope != worktree.ScopeCode {
		found.session = checkpoint.Session(res.Annotations)
	}
	return found, nil
}

// conflictsOf returns the error about files that a restore could not create; nil if there are
// none.
func conflictsOf(res worktree.RestoreResult, from string) error {
	if len(res.Conflicts) == 0 {
		return nil
	}
	return &failure{permanent: true, message: fmt.Sprintf("%d files of %s cannot be restored, for example %q: files that are in no checkpoint are in the way: move them elsewhere",
		len(res.Conflicts), from, res.Conflicts[0])}
}

func target(p journal.Point) worktree.Target { return worktree.Target{Code: p.Code, State: p.State} }
