package checkpointrequests_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/server/checkpointrequests"
	"github.com/clew-dev/clew/internal/server/gateway"
	"github.com/clew-dev/clew/internal/testing/builders"
)

func checkpoint(name string, change ...func(*clewv1alpha1.Checkpoint)) *clewv1alpha1.Checkpoint {
	c := &clewv1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID("uid-" + name)},
		Spec:       clewv1alpha1.CheckpointSpec{TaskRef: clewv1alpha1.NameReference{Name: "a"}, Message: "m"},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func ready(c *clewv1alpha1.Checkpoint) {
	c.Status.Conditions = []metav1.Condition{{Type: clewv1alpha1.CheckpointReady, Status: metav1.ConditionTrue}}
}

// labelled makes a Checkpoint claim, as whoever may create Checkpoints can, that the
// manager made it for a record.
func labelled(uidInLabel string) func(*clewv1alpha1.Checkpoint) {
	return func(c *clewv1alpha1.Checkpoint) {
		isController := true
		c.OwnerReferences = []metav1.OwnerReference{{Kind: "Task", Name: "a", UID: "uid-of-a", Controller: &isController}}
		c.Labels = map[string]string{clewv1alpha1.LabelTaskUID: uidInLabel, clewv1alpha1.LabelCheckpoint: "999999"}
	}
}

func TestPendingRequests(t *testing.T) {
	now := metav1.Now()
	tests := map[string]struct {
		object *clewv1alpha1.Checkpoint
		want   bool
	}{
		"new":                              {checkpoint("c"), true},
		"waiting":                          {checkpoint("c", func(c *clewv1alpha1.Checkpoint) { ready(c); c.Status.Conditions[0].Status = metav1.ConditionFalse }), true},
		"ready":                            {checkpoint("c", ready), false},
		"deleted":                          {checkpoint("c", func(c *clewv1alpha1.Checkpoint) { c.DeletionTimestamp = &now }), false},
		"manager":                          {checkpoint("c", func(c *clewv1alpha1.Checkpoint) { c.Labels = map[string]string{"app.kubernetes.io/managed-by": "clew"} }), false},
		"by helm":                          {checkpoint("c", func(c *clewv1alpha1.Checkpoint) { c.Labels = map[string]string{"app.kubernetes.io/managed-by": "Helm"} }), true},
		"of a record":                      {checkpoint("c", labelled("uid-of-a")), false},
		"of a record of another Task":      {checkpoint("c", labelled("uid-of-b"), func(c *clewv1alpha1.Checkpoint) { c.OwnerReferences[0].UID = "uid-of-b" }), false},
		"whose labels are not the owner's": {checkpoint("c", labelled("uid-of-b")), true},
		"of a number":                      {checkpoint("c", func(c *clewv1alpha1.Checkpoint) { c.Spec.Number = ptr.To[int64](7) }), false},
		"taken, and not ready":             {checkpoint("c", func(c *clewv1alpha1.Checkpoint) { c.Status.Number = 7 }), false},
		"of other":                         {checkpoint("c", func(c *clewv1alpha1.Checkpoint) { c.Spec.TaskRef.Name = "b" }), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			board := checkpointrequests.New()
			board.Set(tt.object)
			pending := board.Pending("team", "a", nil)
			if got := len(pending) == 1; got != tt.want {
				t.Errorf("pending: %v", pending)
			}
			if pending := board.Pending("elsewhere", "a", nil); len(pending) != 0 {
				t.Errorf("in another namespace: %v", pending)
			}
		})
	}
}

func TestChangesAreAnnounced(t *testing.T) {
	board := checkpointrequests.New()
	announced := func(change func()) bool {
		changed, leave := board.Changes("team", "a")
		defer leave()
		change()
		select {
		case <-changed:
			return true
		default:
			return false
		}
	}
	if !announced(func() { board.Set(checkpoint("new")) }) {
		t.Error("a new one was not announced")
	}
	if announced(func() { board.Set(checkpoint("new")) }) {
		t.Error("the same one was announced twice")
	}
	if announced(func() {
		board.Set(checkpoint("of-another", func(c *clewv1alpha1.Checkpoint) { c.Spec.TaskRef.Name = "b" }))
		board.Set(checkpoint("elsewhere", func(c *clewv1alpha1.Checkpoint) { c.Namespace = "elsewhere" }))
	}) {
		t.Error("those of other tasks were announced")
	}
	if announced(func() { board.Set(checkpoint("done", ready)) }) {
		t.Error("one that is ready was announced")
	}
	old := checkpoint("old", func(c *clewv1alpha1.Checkpoint) { c.CreationTimestamp = metav1.NewTime(time.Unix(1, 0)) })
	recent := checkpoint("new", func(c *clewv1alpha1.Checkpoint) { c.CreationTimestamp = metav1.NewTime(time.Unix(2, 0)) })
	board.Set(recent)
	board.Set(old)
	pending := board.Pending("team", "a", nil)
	want := []gateway.CheckpointRequest{{Name: "old", UID: "uid-old", Message: "m"}, {Name: "new", UID: "uid-new", Message: "m"}}
	if d := cmp.Diff(want, pending); d != "" {
		t.Errorf("pending (-want +got):\n%s", d)
	}
	if !announced(func() { board.Set(checkpoint("new", ready)) }) || !announced(func() { board.Remove(old) }) {
		t.Error("the end of a request was not announced")
	}
	if pending := board.Pending("team", "a", nil); len(pending) != 0 {
		t.Errorf("left over: %v", pending)
	}
}

// Whoever may create Checkpoints can create any number of them. Requests behind those
// that a daemon knows wake nobody, and follow when the first are done.
func TestAFloodOfRequestsIsReturnedAPartAtATime(t *testing.T) {
	board := checkpointrequests.New()
	at := func(i int) *clewv1alpha1.Checkpoint {
		return checkpoint(fmt.Sprintf("c-%04d", i), func(c *clewv1alpha1.Checkpoint) { c.CreationTimestamp = metav1.NewTime(time.Unix(int64(i), 0)) })
	}
	for i := range 1000 {
		board.Set(at(i))
	}
	pending := board.Pending("team", "a", nil)
	names := func(pending []gateway.CheckpointRequest) []string {
		var names []string
		for _, r := range pending {
			names = append(names, r.Name)
		}
		return names
	}
	numbered := func(from, to int) []string {
		var names []string
		for i := from; i <= to; i++ {
			names = append(names, fmt.Sprintf("c-%04d", i))
		}
		return names
	}
	if d := cmp.Diff(numbered(0, 99), names(pending)); d != "" {
		t.Fatalf("pending (-want +got):\n%s", d)
	}
	changed, leave := board.Changes("team", "a")
	defer leave()
	board.Set(at(1000))
	select {
	case <-changed:
		t.Error("a request behind the others was announced")
	default:
	}
	board.Remove(at(50))
	select {
	case <-changed:
	default:
		t.Error("the end of a request was not announced")
	}
	if pending = board.Pending("team", "a", nil); len(pending) != 100 || pending[99].Name != "c-0100" {
		t.Errorf("%d are pending: %v", len(pending), pending)
	}
	board.Remove(at(900))
	select {
	case <-changed:
		t.Error("the end of a request that was never returned was announced")
	default:
	}
	passed := map[string]bool{}
	for _, r := range pending {
		passed[r.UID] = true
	}
	if d := cmp.Diff(numbered(101, 200), names(board.Pending("team", "a", passed))); d != "" {
		t.Errorf("pending after those that are passed (-want +got):\n%s", d)
	}
	early := checkpoint("early", func(c *clewv1alpha1.Checkpoint) { c.CreationTimestamp = metav1.NewTime(time.Unix(-1, 0)) })
	board.Set(early)
	if pending = board.Pending("team", "a", nil); pending[0].Name != "early" {
		t.Errorf("the oldest is %v", pending[0])
	}
}

// TestACheckpointTakesLittleMemoryWhateverItSays: whoever may create Checkpoints has them in every server.
func TestACheckpointTakesLittleMemoryWhateverItSays(t *testing.T) {
	options, err := checkpointrequests.CacheOptions()
	if err != nil {
		t.Fatal(err)
	}
	for kind, by := range options.ByObject {
		if _, ok := kind.(*clewv1alpha1.Checkpoint); !ok {
			continue
		}
		hostile := checkpoint("c", func(c *clewv1alpha1.Checkpoint) {
			c.ObjectMeta = builders.Hostile("c")
			c.OwnerReferences = append(c.OwnerReferences, builders.HostileOwner())
			c.Labels[clewv1alpha1.LabelTaskUID], c.Labels[clewv1alpha1.LabelCheckpoint] = "uid-1", "7"
			c.Spec.Branches = []clewv1alpha1.CheckpointBranch{{Name: strings.Repeat("x", 100<<10)}}
			c.Status.Set = &clewv1alpha1.CheckpointSet{State: clewv1alpha1.SetTogether, Members: slices.Repeat([]clewv1alpha1.CheckpointSetMember{{Task: strings.Repeat("x", 253)}}, 65)}
		})
		kept, err := by.Transform(hostile.DeepCopy())
		if err != nil {
			t.Fatal(err)
		}
		if text, err := json.Marshal(kept); err != nil || len(text) > 2<<10 {
			t.Errorf("a server keeps %d bytes of a Checkpoint, %v", len(text), err)
		}
		slim := kept.(*clewv1alpha1.Checkpoint)
		if room := cap(slim.Finalizers) + cap(slim.OwnerReferences); room > 1 {
			t.Errorf("a server keeps room for %d finalizers and owners of a Checkpoint", room)
		}
		board := checkpointrequests.New()
		if board.Set(slim); len(board.Pending("team", "a", nil)) > 0 {
			t.Error("a Checkpoint of a record is taken for a request")
		}
		return
	}
	t.Fatal("nothing is said of Checkpoints")
}

func TestThePhasesThatTheAgentSetsAreItsOwn(t *testing.T) {
	start := func(change ...func(*clewv1alpha1.Checkpoint)) *clewv1alpha1.Checkpoint {
		own := func(c *clewv1alpha1.Checkpoint) { c.Spec.RequestedBy = "task:a" }
		return checkpoint("a-phase-0123456789", append([]func(*clewv1alpha1.Checkpoint){own}, change...)...)
	}
	by := func(name string) func(*clewv1alpha1.Checkpoint) {
		return func(c *clewv1alpha1.Checkpoint) { c.Spec.RequestedBy = name }
	}
	tests := map[string]struct {
		object    *clewv1alpha1.Checkpoint
		unstamped bool
		want      bool
	}{
		"set by the agent":                             {object: start(), want: true},
		"set by a person":                              {object: start(by("alice"))},
		"set by the agent of another task":             {object: start(by("task:b"))},
		"another checkpoint":                           {object: checkpoint("mine", by("task:a"))},
		"where anybody may say who has asked for what": {object: start(), unstamped: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			board := checkpointrequests.New()
			board.Stamped = !tt.unstamped
			board.Set(tt.object)
			if pending := board.Pending("team", "a", nil); len(pending) != 1 || pending[0].Phase != tt.want {
				t.Errorf("it is requested as %+v, want Phase %t", pending, tt.want)
			}
		})
	}
}
