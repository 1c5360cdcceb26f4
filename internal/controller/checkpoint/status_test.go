package checkpoint

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/controller/cached"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/plan"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/filled"
)

// objectOf returns the object of a checkpoint with this number of changed and of skipped
// files, with such paths.
func objectOf(t *testing.T, files int, path string) (*v1alpha1.Checkpoint, int) {
	t.Helper()
	row := history.Checkpoint{
		TaskUID: "7e0d0a52", Number: 7, Trigger: "ToolCalls", Time: time.Now(), Durable: true,
		GitBranch: path, DirtyFileCount: int32(files), SkippedCount: int32(files), //nolint:gosec // a small number
	}
	for i := range files {
		row.DirtyFiles = append(row.DirtyFiles, fmt.Sprint(i, path))
		row.Skipped = append(row.Skipped, history.SkippedFile{Path: fmt.Sprint(i, path), Reason: "Fifo"})
		row.Changes = append(row.Changes, history.FileChange{Path: fmt.Sprint(i, path), Action: "Modified"})
	}
	task := &v1alpha1.Task{ObjectMeta: metav1.ObjectMeta{Name: "t", Namespace: "team", UID: "7e0d0a52"}}
	object := resources.NewCheckpoint(task, "t-7", row)
	fill(&object.Status, row, 1, "Recorded", "it was taken")
	encoded, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return object, len(encoded)
}

// recorded returns a record all of whose fields are filled.
func recorded() (row history.Checkpoint) {
	filled.In(&row)
	row.Consistency, row.Changes[0].Action = string(v1alpha1.ConsistencyAgentThawed), string(v1alpha1.FileDeleted)
	return row
}

// TestTheStatusHasEveryFieldOfTheRecord: a new field must not be forgotten here.
func TestTheStatusHasEveryFieldOfTheRecord(t *testing.T) {
	status := v1alpha1.CheckpointStatus{BranchPushes: 3}
	fill(&status, recorded(), 1, "Recorded", "it was taken")
	if status.BranchPushes != 3 {
		t.Errorf("the numbers of a branch's pushes begin anew at %d", status.BranchPushes)
	}
	conditions := status.Conditions
	status.Conditions = nil
	// The requester, the branches and the set are determined from the object.
	if empty := filled.Empty(status, "Conditions", "RequestedBy", "Branches", "Set"); empty != nil {
		t.Errorf("these fields of the status are empty: %v", empty)
	}
	if len(conditions) != 2 {
		t.Errorf("conditions: %v", conditions)
	}
}

// TestNothingIsLostWhenAStatusIsFilledFromWhatTheCacheKeeps: the whole status is written then, and what
// follows from no record is nowhere else.
func TestNothingIsLostWhenAStatusIsFilledFromWhatTheCacheKeeps(t *testing.T) {
	stored := &v1alpha1.Checkpoint{}
	filled.In(&stored.Status)
	status := cached.Slim(stored).Status
	fill(&status, recorded(), 1, "Recorded", "it was taken")
	if empty := filled.Empty(status, "RequestedBy"); empty != nil { // it is determined from the object
		t.Errorf("these fields are lost: %v", empty)
	}
}

// TestWhetherASetIsReadyIsNotInTheRecord: that depends on all of its members.
func TestWhetherASetIsReadyIsNotInTheRecord(t *testing.T) {
	set := &v1alpha1.CheckpointSet{State: v1alpha1.SetApart}
	status := v1alpha1.CheckpointStatus{Set: set, Conditions: []metav1.Condition{plan.SetReady(set)}}
	fill(&status, history.Checkpoint{Number: 3, Durable: true}, 1, v1alpha1.ReasonTaken, "it was taken")
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.CheckpointReady)
	if status.Set != set || status.Number != 3 || ready == nil || ready.Reason != v1alpha1.ReasonNotTakenTogether {
		t.Errorf("the status is %+v", status)
	}
}

func TestLongFileNamesMakeNoObjectLarge(t *testing.T) {
	g := gomega.NewWithT(t)
	folder := strings.Repeat("\U0001F600", 62)
	for name, path := range map[string]string{
		"emoji": strings.Repeat(folder+"/", 16), "quotes": strings.Repeat("\"", 4000), "controls": strings.Repeat("\x01", 4000), "short": "f",
	} {
		object, size := objectOf(t, 100, path)
		g.Expect(size).To(gomega.BeNumerically("<", 8<<10), name)
		g.Expect(object.Status.Git.DirtyFileCount).To(gomega.BeEquivalentTo(100), name)
		g.Expect(object.Status.SkippedCount).To(gomega.BeEquivalentTo(100), name)
		ready := meta.FindStatusCondition(object.Status.Conditions, v1alpha1.CheckpointReady)
		g.Expect(ready.Message).To(gomega.ContainSubstring("the history has more"), name)
	}
}

func TestListsThatFitAreComplete(t *testing.T) {
	g := gomega.NewWithT(t)
	object, _ := objectOf(t, 20, "internal/parser/parser.go")
	g.Expect(object.Status.Git.DirtyFiles).To(gomega.HaveLen(20))
	g.Expect(object.Status.Skipped).To(gomega.HaveLen(20))
	g.Expect(object.Status.ChangedFiles).To(gomega.HaveLen(20))
	g.Expect(object.Status.ChangedFiles[3]).To(gomega.Equal(v1alpha1.ChangedFile{Path: "3internal/parser/parser.go", Action: v1alpha1.FileModified}))
	g.Expect(meta.FindStatusCondition(object.Status.Conditions, v1alpha1.CheckpointReady).Message).To(gomega.Equal("it was taken"))
}

func TestTheCacheHoldsNothingThatAnAgentWrote(t *testing.T) {
	g := gomega.NewWithT(t)
	object, _ := objectOf(t, 20, "internal/parser/parser.go")
	whole := object.DeepCopy()
	c := cached.Slim(object)
	g.Expect(c.Status.Git).To(gomega.BeNil())
	g.Expect(c.Status.Skipped).To(gomega.BeNil())
	g.Expect(c.Status.ChangedFiles).To(gomega.BeNil())
	g.Expect(c.Status.Number).To(gomega.BeEquivalentTo(7))
	g.Expect(c.Status.Conditions).To(gomega.Equal(whole.Status.Conditions))
	g.Expect(object.Status).To(gomega.Equal(whole.Status), "the object itself is left alone")
}
