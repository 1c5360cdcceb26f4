package daemonapi

import (
	"strings"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// LastRewind returns the id of the last rewind that was carried out, one that a resume began with
// among them, so far as the status alone says which one it was: it has the outcome of the last
// rewind and of the last resume only. Otherwise it is empty, and the history has to be asked.
func LastRewind(s *v1alpha1.TaskStatus) string {
	for i := len(s.HandledOperations) - 1; i >= 0; i-- {
		kind, id, _ := strings.Cut(s.HandledOperations[i], "/")
		op := s.Rewind
		if kind == OperationResume {
			op = s.Resume
		}
		if op == nil || op.ID != id {
			return ""
		}
		rewind, certain := rewindOf(kind, op)
		if rewind != "" && outrun(s, op) {
			return ""
		}
		if rewind != "" || !certain {
			return rewind
		}
	}
	if s.Rewind == nil || s.Resume != nil { // a status of before operations were listed
		return ""
	}
	rewind, _ := rewindOf(OperationRewind, s.Rewind)
	return rewind
}

// rewindOf returns the id of the rewind that an operation was or began with; empty if it certainly
// rewound nothing, or if that is not certain.
func rewindOf(kind string, op *v1alpha1.OperationStatus) (id string, certain bool) {
	switch op.State {
	case v1alpha1.OperationRefused, v1alpha1.OperationNotApplicable:
		return "", true
	case v1alpha1.OperationFailed:
		return "", op.Attempt == 0 // else it may have failed behind the rewind
	case v1alpha1.OperationCompleted:
	default:
		return "", false
	}
	switch {
	case op.Attempt == 0 && op.FromCheckpoint == 0: // by a former task, in whatever order
		return "", false
	case kind == OperationRewind:
		return op.ID, true
	case op.FromCheckpoint != 0 || op.ToCheckpoint != 0:
		return ResumeRewindID(op.ID), true
	}
	return "", false // a plain resume has neither, nor has one in a new conversation whose end was lost
}

// outrun reports whether the other operation was carried out later than this one, although it was
// accepted earlier: managers of older releases let a rewind overtake a resume.
func outrun(s *v1alpha1.TaskStatus, op *v1alpha1.OperationStatus) bool {
	other := s.Rewind
	if op == other {
		other = s.Resume
	}
	return other != nil && other.State == v1alpha1.OperationCompleted && other.DoneIn() > op.DoneIn()
}

// NeverRewound reports whether the status knows of no operation that can have been a rewind.
func NeverRewound(s *v1alpha1.TaskStatus) bool {
	return s.Rewind == nil && s.Resume == nil && len(s.HandledOperations) == 0
}
