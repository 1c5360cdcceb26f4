package prepare

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// operate checks for drift and then carries out the pod's operation, once per id.
func (p *preparer) operate(ctx context.Context) error {
	op := p.cfg.Pod.Operation
	if op != nil && p.operationDone(op) {
		op = nil
	}
	if err := p.checkDrift(ctx, onDriftOf(op, "")); err != nil || op == nil {
		return err
	}
	switch op.Kind {
	case daemonapi.OperationResume:
		return p.resume(ctx, op)
	case daemonapi.OperationRewind:
		return p.rewind(ctx, op)
	default:
		return &failure{permanent: true, message: fmt.Sprintf("this daemon does not know the operation %q: use a Clew image of the same version as the manager", op.Kind)}
	}
}

// onDriftOf returns what is to be done about drift: what an operation, or nil, says, and else what
// was said before.
func onDriftOf(op *daemonapi.Operation, before v1alpha1.OnDrift) v1alpha1.OnDrift {
	if op != nil {
		before = cmp.Or(op.OnDrift, before)
	}
	return cmp.Or(before, v1alpha1.OnDriftFail)
}

// operationDone reports whether an operation was carried out before, and if so copies its
// outcome into the result.
func (p *preparer) operationDone(op *daemonapi.Operation) bool {
	state := p.journal.State()
	if done, ok := state.Operation(op.Kind, op.ID); ok {
		p.reportDone(op.Kind, op.ID, done)
		return true
	}
	// The server remembers it even if the volume was lost.
	if op.Kind == daemonapi.OperationRewind && p.completedAtServer(daemonapi.OperationUndoneKey(op.Kind, op.ID)) {
		p.reportFailed(op.Kind, op.ID, journal.Failure{Reason: v1alpha1.ReasonRewindUndone,
			Message: "the rewind failed and was undone; the reason was lost with the volume"})
		return true
	}
	known := p.completed(op)
	if known {
		r := newRewind(op, "")
		p.reportDone(op.Kind, op.ID, journal.Done{To: r.Target.Number, Position: goal(r)})
	}
	return known
}

// completed reports whether the server knows that the operation is complete. A server older
// than this daemon may know it by its bare id: if its end was recorded as well it was a
// rewind, otherwise a resume.
func (p *preparer) completed(op *daemonapi.Operation) bool {
	bareDone := p.completedAtServer(op.ID + "/done")
	if op.Kind == daemonapi.OperationRewind {
		return p.completedAtServer(daemonapi.OperationDoneKey(op.Kind, op.ID)) || bareDone
	}
	return p.completedAtServer(daemonapi.OperationKey(op.Kind, op.ID)) || (p.completedAtServer(op.ID) && !bareDone)
}

func (p *preparer) reportDone(kind, id string, d journal.Done) {
	if d.Failure != nil {
		p.reportFailed(kind, id, *d.Failure)
		return
	}
	p.result.OperationKind, p.result.Operation, p.result.Preserved = kind, id, d.Preserved
	p.result.FromCheckpoint, p.result.ToCheckpoint, p.result.ToPosition = d.From, d.To, d.Position
}

// reportFailed reports to the manager an operation that failed and left everything
// unchanged.
func (p *preparer) reportFailed(kind, id string, f journal.Failure) {
	p.result.Operation = daemonapi.OperationKey(kind, id)
	p.result.Failed = &daemonapi.OperationFailure{Kind: kind, ID: id, Reason: f.Reason, Message: truncate(f.Message, maxFailure)}
}

const (
	// maxFailure, in bytes, leaves room for the rest of the result.
	maxFailure = 1024
	// maxUndone, in bytes, leaves room in a Task's status for what is said behind it.
	maxUndone = 800
)

// resume carries out the rewind that the resume begins with, if any, and records the next
// prompt, once.
func (p *preparer) resume(ctx context.Context, op *daemonapi.Operation) error {
	rewound, err := p.rewindFirst(ctx, op.FirstRewind())
	if err != nil {
		return err
	}
	key := daemonapi.OperationKey(op.Kind, op.ID)
	if prompt := p.nextPrompt(op); prompt != "" && !p.recorded(op.ID) {
		if err := p.once(key, func() error { return p.userMessage(prompt) }); err != nil {
			return err
		}
	}
	if err := p.drain(ctx); err != nil {
		return err
	}
	// The server keeps this even if the volume is lost.
	if _, err := p.move(ctx, &daemonv1.Move{OperationId: key, Reason: daemonapi.NoteResume, KeepPosition: true}); err != nil {
		return err
	}
	p.reportDone(op.Kind, op.ID, rewound)
	return p.journal.Update(func(s *journal.State) error {
		s.Complete(journal.Done{ID: key, From: rewound.From, To: rewound.To, Preserved: rewound.Preserved, Position: rewound.Position})
		return nil
	})
}

// rewindFirst carries out the rewind that a resume begins with, unless an earlier pod has,
// and returns its outcome. If it fails for good, so does the resume: the agent must not
// continue from where nobody wants it to.
func (p *preparer) rewindFirst(ctx context.Context, op *daemonapi.Operation) (journal.Done, error) {
	if op == nil {
		return journal.Done{}, nil
	}
	if !p.operationDone(op) {
		if err := p.rewind(ctx, op); err != nil {
			return journal.Done{}, err
		}
	}
	state := p.journal.State()
	done, _ := state.Operation(op.Kind, op.ID) // the server may know it alone, after the loss of a volume
	f := done.Failure
	if f == nil && p.result.Failed != nil {
		f = &journal.Failure{Reason: p.result.Failed.Reason, Message: p.result.Failed.Message}
	}
	if f != nil {
		p.result.Operation, p.result.Failed = "", nil
		return done, &failure{reason: f.Reason, permanent: true, message: clip.Marked(f.Message, maxUndone) + "; files and conversation are as they were before"}
	}
	return done, nil
}

// nextPrompt returns the user message that a resume brings: its prompt and the additional
// context. A new conversation begins with the task's own prompt, if the resume has none.
func (p *preparer) nextPrompt(op *daemonapi.Operation) string {
	prompt := op.Prompt
	switch {
	case prompt != "":
	case op.Rewind != nil && op.Rewind.Anew:
		prompt = p.cfg.Prompt
	case op.AdditionalContext != "":
		prompt = continuePrompt
	}
	if op.AdditionalContext == "" {
		return prompt // as it was given, to the last line break
	}
	return join(prompt, op.AdditionalContext)
}

// once appends one record, once per id. The journal is told the record's sequence
// beforehand, so that after a crash the spool shows whether it was appended.
func (p *preparer) once(id string, appendRecord func() error) error {
	if p.recorded(id) {
		return nil
	}
	next := p.spool.Last() + 1
	if err := p.journal.Update(func(s *journal.State) error { s.Resume = &journal.Resume{ID: id, Sequence: next}; return nil }); err != nil {
		return err
	}
	if err := appendRecord(); err != nil {
		return err
	}
	return p.concludeResume(p.spool.Last())
}

// recorded reports whether once has appended its record. Old journals identify the prompts
// of resumes by bare ids, which nothing else used here.
func (p *preparer) recorded(id string) bool {
	return slices.ContainsFunc(p.journal.State().Done, func(d journal.Done) bool { return d.ID == recordedID(id) })
}

// recordedID is the id under which the journal lists a recorded prompt.
func recordedID(id string) string { return id + "/recorded" }

// concludeResume journals whether the record that once was about to append is among those
// through sequence last.
func (p *preparer) concludeResume(last int64) error {
	if p.journal.State().Resume == nil {
		return nil
	}
	return p.journal.Update(func(s *journal.State) error {
		if last >= s.Resume.Sequence {
			s.Complete(journal.Done{ID: recordedID(s.Resume.ID)})
		}
		s.Resume = nil
		return nil
	})
}
