package daemonapi_test

import (
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

func TestLastRewind(t *testing.T) {
	rewind := func(id string, state v1alpha1.OperationState) *v1alpha1.OperationStatus {
		return &v1alpha1.OperationStatus{ID: id, State: state, FromCheckpoint: 4, ToCheckpoint: 1}
	}
	plain := &v1alpha1.OperationStatus{ID: "on", State: v1alpha1.OperationCompleted, Attempt: 2}
	adopted := &v1alpha1.OperationStatus{ID: "back", State: v1alpha1.OperationCompleted}
	for name, test := range map[string]struct {
		status v1alpha1.TaskStatus
		want   string
	}{
		"of a task that was never rewound": {want: ""},
		"that was a rewind": {v1alpha1.TaskStatus{Rewind: rewind("back", v1alpha1.OperationCompleted),
			HandledOperations: []string{"Rewind/back"}}, "back"},
		"of a status that lists no operations": {v1alpha1.TaskStatus{Rewind: rewind("back", v1alpha1.OperationCompleted)}, "back"},
		"before a resume that is plain, or whose rewind was lost from the status": {v1alpha1.TaskStatus{Rewind: rewind("back", v1alpha1.OperationCompleted), Resume: plain,
			HandledOperations: []string{"Rewind/back", "Resume/on"}}, ""},
		"after a plain resume": {v1alpha1.TaskStatus{Rewind: &v1alpha1.OperationStatus{ID: "back", State: v1alpha1.OperationCompleted, Attempt: 3, FromCheckpoint: 4},
			Resume: plain, HandledOperations: []string{"Resume/on", "Rewind/back"}}, "back"},
		"that an older manager let overtake a resume": {v1alpha1.TaskStatus{Rewind: &v1alpha1.OperationStatus{ID: "back", State: v1alpha1.OperationCompleted, Attempt: 3, FromCheckpoint: 4},
			Resume: &v1alpha1.OperationStatus{ID: "on", State: v1alpha1.OperationCompleted, Attempt: 4, ToCheckpoint: 1}, HandledOperations: []string{"Resume/on", "Rewind/back"}}, ""},
		"that a later resume made": {v1alpha1.TaskStatus{Rewind: rewind("back", v1alpha1.OperationCompleted),
			Resume: rewind("on", v1alpha1.OperationCompleted), HandledOperations: []string{"Rewind/back", "Resume/on"}}, "resume:on"},
		"that only a resume made": {v1alpha1.TaskStatus{Resume: rewind("on", v1alpha1.OperationCompleted),
			HandledOperations: []string{"Resume/on"}}, "resume:on"},
		"of a resume that began a new conversation": {v1alpha1.TaskStatus{Resume: &v1alpha1.OperationStatus{ID: "on", State: v1alpha1.OperationCompleted, FromCheckpoint: 4},
			HandledOperations: []string{"Resume/on"}}, "resume:on"},
		"before which a resume rewound": {v1alpha1.TaskStatus{Rewind: rewind("back", v1alpha1.OperationCompleted),
			Resume: rewind("on", v1alpha1.OperationCompleted), HandledOperations: []string{"Resume/on", "Rewind/back"}}, "back"},
		"before a refused rewind": {v1alpha1.TaskStatus{Rewind: rewind("wrong", v1alpha1.OperationRefused),
			Resume: rewind("on", v1alpha1.OperationCompleted), HandledOperations: []string{"Resume/on", "Rewind/wrong"}}, "resume:on"},
		"before two resumes, of which only one is known": {v1alpha1.TaskStatus{Rewind: rewind("back", v1alpha1.OperationCompleted), Resume: plain,
			HandledOperations: []string{"Rewind/back", "Resume/earlier", "Resume/on"}}, ""},
		"before a resume that failed, perhaps after its rewind": {v1alpha1.TaskStatus{Rewind: rewind("back", v1alpha1.OperationCompleted),
			Resume: &v1alpha1.OperationStatus{ID: "on", State: v1alpha1.OperationFailed, Attempt: 3}, HandledOperations: []string{"Rewind/back", "Resume/on"}}, ""},
		"before a rewind that failed, perhaps behind its end": {v1alpha1.TaskStatus{Rewind: &v1alpha1.OperationStatus{ID: "back", State: v1alpha1.OperationFailed, Attempt: 3},
			Resume: rewind("on", v1alpha1.OperationCompleted), HandledOperations: []string{"Resume/on", "Rewind/back"}}, ""},
		"before a rewind that was withdrawn": {v1alpha1.TaskStatus{Rewind: rewind("back", v1alpha1.OperationFailed),
			Resume: rewind("on", v1alpha1.OperationCompleted), HandledOperations: []string{"Resume/on", "Rewind/back"}}, "resume:on"},
		"of a former task": {v1alpha1.TaskStatus{Rewind: adopted, HandledOperations: []string{"Rewind/resume:on", "Rewind/back"}}, ""},
		"before a resume in progress": {v1alpha1.TaskStatus{Rewind: rewind("back", v1alpha1.OperationCompleted),
			Resume: rewind("on", v1alpha1.OperationInProgress), HandledOperations: []string{"Rewind/back", "Resume/on"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := daemonapi.LastRewind(&test.status); got != test.want {
				t.Errorf("the last rewind is %q, want %q", got, test.want)
			}
		})
	}
}
