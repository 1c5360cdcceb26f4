package cli

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// member creates a task of the contract "port", a child of a parent if there is one.
func (b *bench) member(name string, parent *v1alpha1.Task, reason string, options ...builders.TaskOption) *v1alpha1.Task {
	b.Helper()
	options = append([]builders.TaskOption{builders.InNamespace(b.namespace), func(t *v1alpha1.Task) {
		if parent != nil {
			t.Spec.ParentRef = &v1alpha1.NameReference{Name: parent.Name}
			return
		}
		t.Spec.Role, t.Spec.Contract = v1alpha1.RoleSupervisor, &v1alpha1.Contract{Name: "port"}
	}}, options...)
	task := builders.Task(name, options...)
	b.try(server.Client.Create(b.ctx, task))
	setSucceeded(task, reason)
	task.Status.ClaimUID = "claim-of-" + name
	task.Status.Contract = &v1alpha1.ContractStatus{Name: "port", Phase: v1alpha1.PhaseExecute}
	if parent != nil {
		task.Status.Parent = &v1alpha1.ParentStatus{Name: parent.Name, UID: string(parent.UID), Depth: 1}
	}
	if reason == v1alpha1.ReasonRunning {
		task.Status.Attempts = []v1alpha1.Attempt{{Number: 1, PodName: name + "-1", Trigger: v1alpha1.AttemptStart}}
	}
	b.try(server.Client.Status().Update(b.ctx, task))
	return task
}

// contractOf creates a supervisor with two workers, one of which runs, a task that started from one of them,
// and one that waits for it.
func contractOf(b *bench, options ...builders.TaskOption) *v1alpha1.Task {
	b.Helper()
	lead := b.member("lead", nil, v1alpha1.ReasonRunning, options...)
	busy := b.member("lead-busy", lead, v1alpha1.ReasonRunning)
	done := b.member("lead-done", lead, v1alpha1.ReasonCompleted, func(t *v1alpha1.Task) { t.Spec.Workspace.Retention = v1alpha1.WorkspaceRetain })
	apimeta.SetStatusCondition(&busy.Status.Conditions, metav1.Condition{Type: v1alpha1.TaskDurable, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNotPushed})
	b.try(server.Client.Status().Update(b.ctx, busy))
	c := b.checkpoint(done, 1)
	c.OwnerReferences = []metav1.OwnerReference{{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Task", Name: done.Name, UID: done.UID}}
	b.try(server.Client.Update(b.ctx, c))
	b.starts("spin-off", "lead-done", string(done.UID), "")
	b.try(server.Client.Create(b.ctx, builders.Task("after-busy", builders.InNamespace(b.namespace), func(t *v1alpha1.Task) {
		t.Spec.DependsOn = []v1alpha1.Dependency{{TaskRef: v1alpha1.NameReference{Name: "lead-busy"}}}
	})))
	return lead
}

func TestDeleteShowsWhatGoesAndWhatStays(t *testing.T) {
	b := newBench(t)
	lead := contractOf(b)
	out, _ := b.must("delete", "lead", "--dry-run")
	wantParts(t, "the preview", squeezed(out),
		"Deletion of task lead",
		"deletes its children lead-busy, lead-done, and theirs",
		"stops the agents of lead, lead-busy,",
		"deletes the volumes of lead, lead-busy",
		"keeps the volumes of lead-done, as workspace.retention says",
		"deletes the objects of 1 checkpoint and 0 conversation snapshots",
		"loses what only the volumes of lead-busy may have",
		"keeps spin-off, which started from here",
		"leaves after-busy waiting",
		"keeps the history",
		"Clew has made none",
		"task.clew.dev/lead deletion requested (server dry run)")
	b.get(lead) // it is still there

	out, _ = b.must("delete", "lead", "--dry-run=client", "-o", "json")
	if d := decode[deletion](t, out); len(d.Tasks) != 3 || len(d.Running) != 2 || d.Checkpoints != 1 || d.UID != string(lead.UID) {
		t.Errorf("the JSON is %s", out)
	}
}

// TestDeleteTakesAForkOfAChildAlong: it is a child as well, and no task that merely started from here.
func TestDeleteTakesAForkOfAChildAlong(t *testing.T) {
	b := newBench(t)
	lead := contractOf(b)
	source := builders.Task("lead-done", builders.InNamespace(b.namespace))
	b.get(source)
	fork := b.member("try-other", lead, v1alpha1.ReasonRunning, builders.StartFrom("lead-done", ""))
	fork.Status.Source = &v1alpha1.SourceStatus{TaskUID: string(source.UID), Checkpoint: 1, Commit: "c0ffee", Position: 12}
	b.try(server.Client.Status().Update(b.ctx, fork))
	out, _ := b.must("delete", "lead", "--dry-run")
	wantParts(t, "the preview", squeezed(out), "deletes its children lead-busy, lead-done, try-other, and theirs", "keeps spin-off, which started from here")
	out, _ = b.must("delete", "lead-done", "--dry-run")
	wantParts(t, "the preview for the source alone", squeezed(out), "keeps spin-off, try-other, which started from here")
}

// TestDeleteNamesWhoIsNoChildYet: such a task has no place among the children, and waits for the next parent
// of that name.
func TestDeleteNamesWhoIsNoChildYet(t *testing.T) {
	b := newBench(t)
	contractOf(b)
	b.try(server.Client.Create(b.ctx, builders.Task("the-21st", builders.InNamespace(b.namespace), func(t *v1alpha1.Task) {
		t.Spec.ParentRef = &v1alpha1.NameReference{Name: "lead"}
	})))
	out, _ := b.must("delete", "lead", "--dry-run")
	wantParts(t, "the preview", squeezed(out), "leaves the-21st, which name a parent that goes and have yet to become its children")
	if strings.Contains(out, "no children of it") {
		t.Errorf("the preview names it twice:\n%s", out)
	}
}

func TestDeleteAsksFirst(t *testing.T) {
	b := newBench(t)
	lead := contractOf(b)
	_, _, err := b.clew("", "delete", "lead")
	wantError(t, err, "add --yes to proceed")
	_, _, err = b.clew("n\n", "delete", "lead")
	wantError(t, err, "cancelled")
	b.get(lead)
	out, _, err := b.clew("y\n", "delete", "lead")
	b.try(err)
	wantText(t, "output", "task.clew.dev/lead deleted\n", out)
	if err := server.Client.Get(b.ctx, client.ObjectKeyFromObject(lead), lead); !apierrors.IsNotFound(err) {
		t.Errorf("after the deletion: %v", err)
	}
}

func TestOrphansAreNamed(t *testing.T) {
	b := newBench(t)
	contractOf(b, func(t *v1alpha1.Task) { t.Spec.Children = &v1alpha1.Children{OnDelete: v1alpha1.ChildrenOrphan} })
	out, _ := b.must("delete", "lead", "--dry-run")
	wantParts(t, "the preview", squeezed(out), "orphans lead-busy, lead-done, which go on without a parent", "deletes the volumes of lead")
	if strings.Contains(out, "its children") {
		t.Errorf("the preview says that children go:\n%s", out)
	}
}

// TestADeletionIsOfTheTaskThatWasShown: a later one of the same name is left as it is.
func TestADeletionIsOfTheTaskThatWasShown(t *testing.T) {
	b := newBench(t)
	task := b.task("fix-login", v1alpha1.ReasonCompleted)
	shown := *task
	shown.UID = types.UID("an-earlier-one")
	c, err := client.NewWithWatch(server.Config, client.Options{Scheme: newScheme()})
	b.try(err)
	o := &remove{plugin: &plugin{}}
	err = o.send(b.ctx, &session{plugin: o.plugin, client: c, namespace: b.namespace}, &shown)
	wantError(t, err, "was replaced by another one")
	b.get(task)
}
