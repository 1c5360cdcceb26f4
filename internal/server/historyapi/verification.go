package historyapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/fairshare"
	"github.com/clew-dev/clew/internal/gitstoreapi"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/server/verification"
)

// Verifier verifies checkpoints when somebody asks for it.
type Verifier interface {
	// Verify verifies a checkpoint, unless that was done after since, and records what it finds.
	// Errors: verification.ErrInProgress if ctx ends before, fairshare.ErrBusy, and those of
	// packages history and gitstoreapi.
	Verify(ctx context.Context, task history.Task, number int64, since time.Time) error
}

const (
	// verifyWait is how long a request waits for a verification.
	verifyWait = 15 * time.Second
	// maxSince is how old the verification may be whose outcome a request asks for.
	maxSince = time.Hour
	// verifiedLately is how old the verification of a checkpoint may be that turned out damaged:
	// many may meet the damage at once.
	verifiedLately = time.Minute
)

// verification verifies a checkpoint now, and answers with what was found. Parameters: since (the
// time of the request whose outcome is wanted) and uid.
func (a *api) verification(w http.ResponseWriter, c *call) error {
	since, err := a.sinceOf(c)
	if err != nil {
		return err
	}
	var of history.TaskSummary
	var found history.Checkpoint
	read := func() (err error) {
		if of, found, err = a.namedCheckpoint(c); err == nil {
			err = stored(c.access, momentAt(of.Task, &found))
		}
		return err
	}
	if err := a.inReadSlot(c, read); err != nil {
		return err
	}
	state := historyv1alpha1.VerificationState("")
	if found.Integrity.Verified.Before(since) {
		if state, err = a.verifyNow(c, of.Task, found.Number, since); err != nil {
			return err
		}
		if err := a.inReadSlot(c, read); err != nil {
			return err
		}
	}
	return a.withAnswerSlot(func(w http.ResponseWriter, _ *call) error {
		writeJSON(w, http.StatusOK, verificationOf(of, found, since, state))
		return nil
	})(w, c)
}

// sinceOf returns since when what was verified need not be verified again: the parameter since,
// within limits, or now.
func (a *api) sinceOf(c *call) (time.Time, error) {
	since, err := timeOf(c.URL.Query(), "since")
	now := a.now()
	switch {
	case err != nil:
		return since, err
	case since.IsZero(), since.After(now):
		return now, nil
	case now.Sub(since) > maxSince:
		return since, badRequest("since is more than an hour ago: leave it out to verify the checkpoint now")
	}
	return since, nil
}

// verifyNow verifies a checkpoint, and waits a while for the outcome. It holds no slot that other
// requests need.
func (a *api) verifyNow(c *call, task history.Task, number int64, since time.Time) (historyv1alpha1.VerificationState, error) {
	release, err := a.enter(c, a.waits)
	if err != nil {
		return "", err
	}
	defer release()
	ctx, cancel := context.WithTimeout(c.Context(), verifyWait)
	defer cancel()
	err = a.Verifier.Verify(ctx, task, number, since)
	var refused *gitstoreapi.Refusal
	switch {
	case errors.Is(err, verification.ErrInProgress):
		return historyv1alpha1.VerificationInProgress, nil
	case errors.Is(err, fairshare.ErrBusy):
		return "", busy()
	case errors.As(err, &refused):
		return "", unavailable(refused.Message)
	case errors.Is(err, gitstoreapi.ErrUnreachable):
		a.Log.Info("a checkpoint cannot be verified", "namespace", task.Namespace, "task", task.Name, "error", err.Error())
		return "", unavailable("the gitstore cannot be reached; try again")
	}
	return "", err
}

// damagedMoments is the answer that two moments cannot be compared because objects are damaged.
// Their checkpoints are verified, so that whoever has the objects may heal them, and named.
func (a *api) damagedMoments(c *call, of moments) error {
	what := ""
	for _, m := range []moment{of.from, of.to} {
		if m.checkpoint == nil || !m.checkpoint.Durable {
			continue
		}
		if state, err := a.verifyNow(c, m.task, m.checkpoint.Number, a.now().Add(-verifiedLately)); err != nil || state != "" {
			continue // the daily verification finds it
		}
		found, err := a.Archive.Checkpoint(c.Context(), m.task.Key(), m.checkpoint.Number)
		if err != nil || found.Integrity.Damage == "" {
			continue
		}
		what += fmt.Sprintf("; %s is damaged: %s", m, found.Integrity.Damage)
		if n := found.Integrity.IntactBefore; n > 0 {
			what += fmt.Sprintf(" (checkpoint %d is the nearest earlier one that is intact)", n)
		}
	}
	status := apierrors.NewInternalError(errors.New("objects are missing or damaged in the gitstore"))
	status.ErrStatus.Message = fmt.Sprintf("%s cannot be compared with %s, because objects of one of them are missing or damaged in the gitstore%s", of.from, of.to, what)
	status.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseType(v1alpha1.ReasonCheckpointCorrupted), Message: status.ErrStatus.Message}}
	return status
}

// verificationOf returns what is known of a checkpoint.
func verificationOf(of history.TaskSummary, c history.Checkpoint, since time.Time, state historyv1alpha1.VerificationState) historyv1alpha1.CheckpointVerification {
	answer := historyv1alpha1.CheckpointVerification{
		TypeMeta: typeMeta("CheckpointVerification"), Task: of.Name, TaskUID: of.UID, Number: c.Number,
		State: historyv1alpha1.VerificationIntact, Since: metav1.NewMicroTime(since),
	}
	if state != "" {
		answer.State = state
		return answer
	}
	verified := metav1.NewMicroTime(c.Integrity.Verified)
	answer.Time = &verified
	if damage := c.Integrity.Damage; damage != "" {
		answer.State, answer.Damage, answer.IntactBefore = historyv1alpha1.VerificationDamaged, damage, c.Integrity.IntactBefore
		answer.Healing = healing(of)
	}
	return answer
}

// healing says where an intact copy of what a checkpoint lacks may come from.
func healing(of history.TaskSummary) string {
	if of.State == v1alpha1.ReasonRunning {
		return "the running pod of task " + of.Name + " brings the objects within minutes if its volume has them; messages come from a backup of the history database"
	}
	return "the volume of task " + of.Name + " brings the objects if it has them, once a pod of the task or of a fork of it starts; messages come from a backup of the history database"
}
