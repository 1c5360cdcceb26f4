package cli

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// recordedCheckpoint is what the history has of a checkpoint.
func recordedCheckpoint(task *v1alpha1.Task, number int64) historyv1.Checkpoint {
	return historyv1.Checkpoint{
		TaskUID: string(task.UID), Number: number, Attempt: 1, Trigger: "ToolCalls", Time: metav1.NewMicroTime(noon.Add(-time.Hour)),
		Message: "after\nsome work", Commit: "c1", Tree: "t1", Base: "b1", Durable: true, FilesChanged: 2, LinesAdded: 3, LinesRemoved: 4,
		Files: 9, Bytes: 2048, SkippedCount: 2, GitHead: "h1", GitBranch: "main", DirtyFileCount: 1, Position: 5, ToolCalls: 2,
		Consistency:  "AgentThawed",
		ChangedFiles: []historyv1.ChangedFile{{Path: "a.go", Action: "Modified"}}, Skipped: []historyv1.SkippedFile{{Path: "big", Reason: "TooLarge", Bytes: 4096}},
	}
}

func TestCheckpointsWithoutAnObject(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonRunning)
	b.checkpoint(task, 3)
	b.get(task)
	task.Status.CheckpointCount = 3
	b.try(server.Client.Status().Update(b.ctx, task))
	_, errOut := b.must("checkpoint", "list", "worker")
	wantText(t, "the hint", "2 checkpoints without an object not listed; add --all to list all of them.\n", errOut)

	one, two := recordedCheckpoint(task, 1), recordedCheckpoint(task, 2)
	two.Lost, two.Durable = true, false
	r := b.withHistory(map[string]any{
		"GET tasks/worker/checkpoints":   historyv1.CheckpointList{Items: []historyv1.Checkpoint{{TaskUID: string(task.UID), Number: 3}, two, one}},
		"GET tasks/worker/checkpoints/1": one,
		"GET tasks/worker/checkpoints/2": two,
	})
	out, errOut := b.must("checkpoint", "list", "worker", "--all", "--no-headers")
	wantParts(t, "the list of all", squeezed(out),
		"1 - ToolCalls yes 2 +3 -4 5 60m after some work\n2 - ToolCalls CheckpointLost 2 +3 -4 5 60m after some work\n3 worker-3 ToolCalls")
	wantText(t, "the hint after all", "", errOut)
	wantText(t, "query", "uid="+string(task.UID), r.query())
	out, _ = b.must("checkpoint", "list", "worker", "--all", "-o", "json")
	if list := decode[v1alpha1.CheckpointList](t, out); len(list.Items) != 3 || list.Items[0].Status.Commit != "c1" {
		t.Errorf("all checkpoints as JSON: %s", out)
	}
	for err, args := range map[string][]string{
		"--all needs a task": {"checkpoint", "list", "--all"}, "have no name": {"checkpoint", "list", "worker", "--all", "-o", "name"},
	} {
		_, _, got := b.clew("", args...)
		wantError(t, got, err)
	}

	out, _ = b.must("checkpoint", "show", "worker", "1")
	wantParts(t, "a checkpoint without an object", out, "none: its object was deleted (`kubectl clew checkpoint restore worker 1 -n "+b.namespace,
		"Message:", "after some work", "True (Pushed)", "branch main at h1, 1 dirty file", "9 files, 2.0 KiB", "the agent continued before all files were read",
		"modified  a.go", "big  TooLarge (4.0 KiB)", "and 1 more")
	out, _ = b.must("checkpoint", "show", "worker", "2")
	wantParts(t, "a lost checkpoint", out, "False (CheckpointLost)")
	_, _, err := b.clew("", "checkpoint", "show", "worker", "7")
	wantError(t, err, "task worker has no checkpoint number 7")

	_, _, err = b.clew("", "snapshot", "create", "worker", "--name", "s", "--checkpoint", "1", "--wait=false")
	b.try(err)
	snapshot := &v1alpha1.ConversationSnapshot{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "s"}}
	b.get(snapshot)
	want := v1alpha1.ConversationSnapshotSpec{TaskRef: v1alpha1.NameReference{Name: "worker"}, CheckpointNumber: ptr.To[int64](1)}
	if diff := cmp.Diff(want, snapshot.Spec); diff != "" {
		t.Errorf("spec of the snapshot (-want +got):\n%s", diff)
	}
}

// While a checkpoint is being taken, the status may count it before its object has the number.
func TestACheckpointThatIsBeingTakenHasAnObject(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonRunning)
	b.checkpoint(task, 1)
	b.managedCheckpoint(task, 0)
	b.get(task)
	task.Status.CheckpointCount = 2
	b.try(server.Client.Status().Update(b.ctx, task))
	_, errOut := b.must("checkpoint", "list", "worker")
	wantText(t, "the hint", "", errOut)
}

func TestCheckpointRestore(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonRunning)
	b.checkpoint(task, 3)
	lost := recordedCheckpoint(task, 2)
	lost.Lost = true
	b.withHistory(map[string]any{"GET tasks/worker/checkpoints/1": recordedCheckpoint(task, 1), "GET tasks/worker/checkpoints/2": lost})
	for text, args := range map[string][]string{
		"neither the gitstore nor":                {"2"},
		"task worker has no checkpoint number 7;": {"7"},
		"task worker has no checkpoint number 0;": {"0"},
		`"x" is not the number of a checkpoint`:   {"x"},
		"missing argument NUMBER":                 {},
		"choose another name":                     {"1", "--name", "worker-3"},
	} {
		_, _, err := b.clew("", append([]string{"checkpoint", "restore", "worker"}, args...)...)
		wantError(t, err, text)
	}
	out, _ := b.must("checkpoint", "restore", "worker", "3")
	wantText(t, "output for one that has an object", "checkpoint.clew.dev/worker-3 exists already: number 3 of worker\n", out)
	out, _ = b.must("checkpoint", "restore", "worker", "1", "--dry-run")
	wantText(t, "output of the dry run", "checkpoint.clew.dev/worker-1 restored: number 1 of worker (server dry run)\n", out)

	playManager(b, &v1alpha1.CheckpointList{}, func(c *v1alpha1.Checkpoint) bool {
		if c.Spec.Number == nil {
			return false
		}
		c.Status = v1alpha1.CheckpointStatus{TaskUID: string(task.UID), Number: *c.Spec.Number, Conditions: []metav1.Condition{
			{Type: v1alpha1.CheckpointReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonTaken, LastTransitionTime: metav1.NewTime(noon)},
		}}
		return true
	})
	out, _ = b.must("checkpoint", "restore", "worker", "1")
	wantText(t, "output", "checkpoint.clew.dev/worker-1 restored: number 1 of worker\n", out)
	restored := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "worker-1"}}
	b.get(restored)
	want := v1alpha1.CheckpointSpec{
		TaskRef: v1alpha1.NameReference{Name: "worker"}, Number: ptr.To[int64](1), Message: "after some work", Scope: v1alpha1.CheckpointOfTask, Retention: v1alpha1.CheckpointKept,
		RequestedBy: "admin",
	}
	if diff := cmp.Diff(want, restored.Spec); diff != "" {
		t.Errorf("spec of the object (-want +got):\n%s", diff)
	}
}

// What makes or publishes a branch of a checkpoint whose object was deleted makes the object again.
func TestBranchesOfCheckpointsWithoutAnObject(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonRunning)
	b.checkpoint(task, 4)
	lost := recordedCheckpoint(task, 2)
	lost.Lost = true
	b.withHistory(map[string]any{"GET tasks/worker/checkpoints/1": recordedCheckpoint(task, 1),
		"GET tasks/worker/checkpoints/2": lost, "GET tasks/worker/checkpoints/3": recordedCheckpoint(task, 3)})
	branch, publish := []string{"checkpoint", "branch", "worker", "1", "--name", "a"}, []string{"publish", "worker", "--checkpoint", "3", "--branch", "a/b"}
	_, _, err := b.clew("", "publish", "worker", "--checkpoint", "2", "--branch", "b")
	wantError(t, err, "checkpoint 2 is lost")
	out, errOut := b.must(append(branch, "--dry-run")...)
	wantText(t, "the dry run", "checkpoint.clew.dev/worker-1 branch a of checkpoint 1 requested (server dry run)\n", out)
	wantText(t, "the note", "The object of checkpoint 1 was deleted: it is made again as worker-1, and kept (server dry run).\n", errOut)

	out, _ = b.must(append(branch, "--checkout", "--wait=false")...)
	wantText(t, "output", "checkpoint.clew.dev/worker-1 branch a of checkpoint 1 requested\n", out)
	pushed := pushes("cli-abcdefgh", v1alpha1.OriginBranchStatus{Reason: v1alpha1.ReasonPublished, Message: "it is there"})
	playManager(b, &v1alpha1.CheckpointList{}, func(c *v1alpha1.Checkpoint) bool { return c.Name == "worker-3" && pushed(c) })
	out, errOut = b.must(publish...)
	wantText(t, "output", "checkpoint.clew.dev/worker-3 published: it is there\n", out)
	wantParts(t, "the note", errOut, "The object of checkpoint 3 was deleted: it is made again as worker-3, and kept.\n")
	for number, want := range map[int64]v1alpha1.CheckpointBranch{
		1: {Name: "a", Push: v1alpha1.PushNever, OnDiverged: v1alpha1.DivergedFail, Checkout: v1alpha1.CheckoutNextStart, ID: "cli-abcdefgh", RequestedBy: "admin"},
		3: {Name: "a/b", Push: v1alpha1.PushOrigin, OnDiverged: v1alpha1.DivergedFail, Checkout: v1alpha1.CheckoutNever, ID: "cli-abcdefgh", RequestedBy: "admin"},
	} {
		c := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: resources.CheckpointName("worker", number)}}
		b.get(c)
		if diff := cmp.Diff([]any{number, v1alpha1.CheckpointKept, want}, []any{*c.Spec.Number, c.Spec.Retention, c.Spec.Branches[0]}); diff != "" {
			t.Errorf("of checkpoint %d (-want +got):\n%s", number, diff)
		}
	}
}

// Another checkpoint's object may have the name that the object had.
func TestAnObjectIsMadeAgainUnderAFreeName(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonRunning)
	b.renamed(b.checkpoint(b.task("another", v1alpha1.ReasonRunning), 9), "worker-1")
	b.withHistory(map[string]any{"GET tasks/worker/checkpoints/1": recordedCheckpoint(task, 1), "GET tasks/worker/checkpoints/2": recordedCheckpoint(task, 2),
		"GET tasks/worker/checkpoints/3": recordedCheckpoint(task, 3)})
	name := resources.CheckpointNameOr(task, 1)
	out, errOut := b.must("publish", "worker", "--checkpoint", "1", "--branch", "a", "--wait=false")
	wantText(t, "output", "checkpoint.clew.dev/"+name+" publishing of checkpoint 1 as branch a requested\n", out)
	wantText(t, "the note", "The object of checkpoint 1 was deleted: it is made again as "+name+", and kept.\n", errOut)

	b.renamed(b.checkpoint(b.task("third", v1alpha1.ReasonRunning), 9), "worker-2")
	b.renamed(b.checkpoint(b.task("fourth", v1alpha1.ReasonRunning), 9), resources.CheckpointNameOr(task, 2))
	_, errOut, err := b.clew("", "checkpoint", "branch", "worker", "2", "--name", "b")
	wantError(t, err, "under another name with `kubectl clew checkpoint restore worker 2 --name NAME -n "+b.namespace+"`")
	wantText(t, "standard error", "", errOut)

	// The manager has just made the object, and not written what it is yet.
	made := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "worker-3"},
		Spec: v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: "worker"}, Number: ptr.To[int64](3)}}
	b.try(server.Client.Create(b.ctx, made))
	_, errOut, err = b.clew("", "checkpoint", "branch", "worker", "3", "--name", "b")
	wantError(t, err, "checkpoint worker-3 has not been taken yet; wait for it")
	wantText(t, "standard error", "", errOut)
}

// managedCheckpoint creates the object of a checkpoint as the manager does, without a requester.
func (b *bench) managedCheckpoint(task *v1alpha1.Task, number int64) {
	b.Helper()
	config := rest.CopyConfig(server.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:clew-system:clew-manager", Groups: []string{"system:masters"}}
	manager, err := client.New(config, client.Options{Scheme: server.Scheme})
	b.try(err)
	labels := resources.Labels(task)
	labels[v1alpha1.LabelCheckpoint] = strconv.FormatInt(number, 10)
	c := &v1alpha1.Checkpoint{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.namespace, Name: resources.CheckpointName(task.Name, number), Labels: labels,
			OwnerReferences: []metav1.OwnerReference{resources.Owner(task)},
		},
		Spec: v1alpha1.CheckpointSpec{TaskRef: v1alpha1.NameReference{Name: task.Name}},
	}
	b.try(manager.Create(b.ctx, c))
	c.Status = v1alpha1.CheckpointStatus{TaskUID: string(task.UID), Number: number, Trigger: v1alpha1.TriggerInterval}
	b.try(manager.Status().Update(b.ctx, c))
}

func TestCheckpointPrune(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonRunning)
	b.get(task)
	builders.KeepLast(4)(task)
	b.try(server.Client.Update(b.ctx, task))
	for n := int64(1); n <= 6; n++ {
		b.managedCheckpoint(task, n)
	}
	b.checkpoint(b.task("another", v1alpha1.ReasonRunning), 1)
	kept := &v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "worker-2"}}
	b.get(kept)
	kept.Spec.Retention = v1alpha1.CheckpointKept
	b.try(server.Client.Update(b.ctx, kept))
	names := func() string {
		out, _ := b.must("checkpoint", "list", "-o", "name")
		return strings.ReplaceAll(out, "checkpoint.clew.dev/", "")
	}
	before := names()

	out, errOut := b.must("checkpoint", "prune", "worker", "--dry-run")
	wantText(t, "output of the dry run", "checkpoint.clew.dev/worker-1 deleted (server dry run)\n", out)
	wantParts(t, "the preview", errOut, "worker-1", "1 object to delete; the policy keeps 4, and 1 is kept whatever it says.")
	for text, test := range map[string]struct {
		answer string
		args   []string
	}{
		"cancelled: nothing was changed":             {"n\n", nil},
		"add --yes to proceed":                       {"", nil},
		"--keep-last to at least 1, or --keep-for":   {"", []string{"--keep-last", "0", "--yes"}},
		"--keep-last is -1; it must not be negative": {"", []string{"--keep-last", "-1", "--yes"}},
		"--keep-for is -1h; it must not be negative": {"", []string{"--keep-for", "-1h", "--yes"}},
		"--keep-for is -2d; it must not be negative": {"", []string{"--keep-for", "-2d", "--yes"}},
		`--keep-for is "soon"; it must be a duratio`: {"", []string{"--keep-for", "soon", "--yes"}},
		`there is no task "nobody"`:                  {"", nil},
	} {
		name := "worker"
		if strings.Contains(text, "nobody") {
			name = "nobody"
		}
		_, _, err := b.clew(test.answer, append([]string{"checkpoint", "prune", name}, test.args...)...)
		wantError(t, err, text)
	}
	wantText(t, "the checkpoints, of which none was to be deleted", before, names())

	b.must("checkpoint", "prune", "worker", "--yes")
	wantText(t, "the checkpoints", "another-1\nworker-2\nworker-3\nworker-4\nworker-5\nworker-6\n", names())
	_, errOut = b.must("checkpoint", "prune", "worker", "--yes")
	wantParts(t, "the message", errOut, "Nothing to delete")
	_, errOut = b.must("checkpoint", "prune", "worker", "--keep-last", "1", "--keep-for", "36500d", "--yes")
	wantParts(t, "the message about young ones", errOut, "Nothing to delete")
	b.try(server.Client.Create(b.ctx, &v1alpha1.Fork{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: "f"}, Spec: v1alpha1.ForkSpec{
		SourceRef: v1alpha1.NameReference{Name: "worker"}, CheckpointRef: &v1alpha1.NameReference{Name: "worker-3"}, Variants: []v1alpha1.ForkVariant{{Name: "v"}},
	}}))
	out, _, err := b.clew("y\n", "checkpoint", "prune", "worker", "--keep-last", "1")
	b.try(err)
	wantText(t, "output", "checkpoint.clew.dev/worker-4 deleted\ncheckpoint.clew.dev/worker-5 deleted\n", out)
	wantText(t, "the checkpoints", "another-1\nworker-2\nworker-3\nworker-6\n", names())
}
