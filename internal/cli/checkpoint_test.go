package cli

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
)

func TestCheckpointCreate(t *testing.T) {
	b := newBench(t)
	b.task("worker", v1alpha1.ReasonRunning)
	playManager(b, &v1alpha1.CheckpointList{}, func(c *v1alpha1.Checkpoint) bool {
		c.Status = takenCheckpoint(5, "any").Status
		for i := range c.Status.Conditions {
			c.Status.Conditions[i].LastTransitionTime = metav1.NewTime(noon)
		}
		return true
	})
	out, progress := b.must("checkpoint", "create", "worker", "-m", "Before lunch")
	wantText(t, "output", "checkpoint.clew.dev/worker-abcdefgh created: number 5 of worker, 3 files changed\n", out)
	wantParts(t, "progress", progress, "durable in the gitstore\n")
	if strings.Contains(progress, "\x1b") {
		t.Errorf("progress contains escape sequences without a terminal: %q", progress)
	}
	out, _ = b.must("checkpoint", "create", "worker", "--name", "other", "--dry-run=server", "-o", "jsonpath={.kind} {.metadata.name} {.spec.taskRef.name}")
	wantText(t, "output of the dry run", "Checkpoint other worker", out)
	out, _ = b.must("checkpoint", "create", "worker", "--name", "other", "--dry-run=client")
	wantText(t, "output of the client's dry run", "checkpoint.clew.dev/other created (dry run)\n", out)
	err := server.Client.Get(b.ctx, client.ObjectKey{Namespace: b.namespace, Name: "other"}, &v1alpha1.Checkpoint{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("a dry run created the Checkpoint: %v", err)
	}
	_, _, err = b.clew("", "checkpoint", "create", "nobody")
	wantError(t, err, "kubectl get tasks.clew.dev -n "+b.namespace)
	_, _, err = b.clew("", "checkpoint", "create", "worker", "--name", "worker-abcdefgh")
	wantError(t, err, "choose another name")
	_, _, err = b.clew("", "checkpoint", "create", "worker", "--name", "Bad_Name")
	wantError(t, err, `--name is "Bad_Name": a name has only lower-case letters, digits, '-' and '.'`)
	_, _, err = b.clew("", "checkpoint", "create")
	wantError(t, err, "missing argument TASK; usage: kubectl clew checkpoint create TASK")
}

func TestCheckpointListAndShow(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonRunning)
	b.checkpoint(task, 2)
	b.checkpoint(task, 1)
	b.checkpoint(b.task("another", v1alpha1.ReasonRunning), 1)
	out, _ := b.must("checkpoint", "list", "worker", "-o", "name")
	wantText(t, "names", "checkpoint.clew.dev/worker-1\ncheckpoint.clew.dev/worker-2\n", out)
	out, _ = b.must("checkpoint", "list", "--no-headers")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 3 || !strings.HasPrefix(lines[0], "another") {
		t.Errorf("checkpoint list printed %q; want three lines, the first of task another", out)
	}
	out, _ = b.must("checkpoint", "list", "worker", "-o", "json")
	list := decode[v1alpha1.CheckpointList](t, out)
	wantText(t, "kind of the list", "CheckpointList", list.Kind)
	if len(list.Items) != 2 {
		t.Errorf("the list has %d checkpoints; want 2:\n%s", len(list.Items), out)
	}
	byName, _ := b.must("checkpoint", "show", "worker-2")
	byNumber, _ := b.must("checkpoint", "show", "worker", "2")
	wantText(t, "a checkpoint shown by number", byName, byNumber)
	wantParts(t, "a checkpoint shown by name", byName, "Number:         2\n")
	_, _, err := b.clew("", "checkpoint", "list", "nobody")
	wantError(t, err, `there is no task "nobody"`)
	_, errOut := b.must("checkpoint", "list", "-n", "default")
	wantText(t, "message about an empty list", "No checkpoints found in namespace default.\n", errOut)
}

// What is said of a list without rows depends on what the task has.
func TestAnEmptyListOfCheckpoints(t *testing.T) {
	for want, got := range map[string]string{
		"No checkpoints found in namespace team.":                                                  noCheckpoints("team", "", 0),
		"Task a has no checkpoints yet: take one with `kubectl clew checkpoint create a -n team`.": noCheckpoints("team", "a", 0),
		"None of the 3 checkpoints of task a has an object; add --all to list them.":               noCheckpoints("team", "a", 3),
	} {
		wantText(t, "message", want, got)
	}
}
