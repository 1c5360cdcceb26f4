package cli

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// tasks returns the names of the tasks that there are.
func (b *bench) tasks() string {
	b.Helper()
	list := &v1alpha1.TaskList{}
	b.try(server.Client.List(b.ctx, list, client.InNamespace(b.namespace)))
	return strings.Join(namesOf(list.Items), " ")
}

// extra creates a task that names the contract "port" without a parent.
func (b *bench) extra(name string) {
	b.Helper()
	b.try(server.Client.Create(b.ctx, builders.Task(name, builders.InNamespace(b.namespace), func(t *v1alpha1.Task) {
		t.Spec.Contract = &v1alpha1.Contract{Name: "port"}
	})))
}

func TestDeleteNamesTheTasksOfTheContractThatStay(t *testing.T) {
	b := newBench(t)
	contractOf(b)
	b.extra("loose")
	out, _ := b.must("delete", "lead", "--dry-run")
	wantParts(t, "the preview", squeezed(out), "leaves loose of the contract port, which are no children of it: `kubectl clew delete --contract port` deletes all")
	out, _ = b.must("delete", "lead-done", "--dry-run")
	if strings.Contains(out, "loose") {
		t.Errorf("the preview of a worker's deletion names other tasks of the contract:\n%s", out)
	}
}

func TestDeleteOfAContract(t *testing.T) {
	b := newBench(t)
	contractOf(b, func(t *v1alpha1.Task) { t.Spec.Children = &v1alpha1.Children{OnDelete: v1alpha1.ChildrenOrphan} })
	b.extra("loose")
	_, errOut, err := b.clew("n\n", "delete", "--contract", "port")
	wantError(t, err, "cancelled")
	wantParts(t, "the preview", squeezed(errOut),
		"Deletion of the contract port, with 4 tasks\n",
		"lead Running\n", "├─ lead-busy Running\n", "└─ lead-done Completed\n", "loose Pending\n",
		"stops the agents of lead, lead-busy,", "deletes the volumes of lead, lead-busy", "keeps the volumes of lead-done",
		"deletes the objects of 1 checkpoint", "loses what only the volumes of lead-busy may have",
		"keeps spin-off, which started from here", "leaves after-busy waiting",
		"until `kubectl clew task delete-history --contract port`; a new contract of this name counts on until then",
		"Delete all 4 tasks?")
	if strings.Contains(errOut, "orphans") {
		t.Errorf("the preview says that children stay:\n%s", errOut)
	}
	_, _, err = b.clew("", "delete", "--contract", "port")
	wantError(t, err, "add --yes to proceed")
	b.must("delete", "--contract", "port", "--dry-run")
	out, _ := b.must("delete", "--contract", "port", "--dry-run=client", "-o", "json")
	if d := decode[deletion](t, out); d.Contract != "port" || d.Task != "" || len(d.Tasks) != 4 || d.Tasks[0] != "lead" {
		t.Errorf("the JSON is %s", out)
	}
	wantText(t, "what there is before the answer", "after-busy lead lead-busy lead-done loose spin-off", b.tasks())

	out, _, err = b.clew("y\n", "delete", "--contract", "port")
	b.try(err)
	wantText(t, "output", "contract port, with 4 tasks, deleted\n", out)
	wantText(t, "what is left", "after-busy spin-off", b.tasks())
	_, _, err = b.clew("y\n", "delete", "--contract", "port")
	wantError(t, err, "belongs to the contract port")
}

func TestWhichDeletionsMakeNoSense(t *testing.T) {
	b := newBench(t)
	for _, command := range [][]string{{"delete"}, {"task", "delete-history"}} {
		for _, args := range [][]string{nil, {"lead", "--contract", "port"}} {
			_, _, err := b.clew("", append(command, args...)...)
			wantError(t, err, "name either a task, or a contract with --contract CONTRACT")
		}
	}
	_, _, err := b.clew("", "task", "delete-history", "--contract", "port", "--uid", "u1")
	wantError(t, err, "use only one of --contract and --uid")
}

// A task that was made while the others were deleted is nobody's to delete who has not seen it.
func TestATaskThatJoinsAContractWhileItIsDeletedIsNamed(t *testing.T) {
	b := newBench(t)
	b.extra("loose")
	c, err := client.NewWithWatch(server.Config, client.Options{Scheme: newScheme()})
	b.try(err)
	o := &remove{plugin: &plugin{}, contract: "port", wait: waitFlags{wait: true}}
	err = o.checkNewer(b.ctx, &session{plugin: o.plugin, client: c, namespace: b.namespace})
	wantError(t, err, "the contract port has got new tasks meanwhile: loose; run the command again")
}

func TestTasksThatNameEachOtherAsParentsAreDeletedOnce(t *testing.T) {
	child := func(name, parent string) v1alpha1.Task {
		return *builders.Task(name, func(t *v1alpha1.Task) { t.Spec.ParentRef = &v1alpha1.NameReference{Name: parent} })
	}
	var visited []string
	walk([]v1alpha1.Task{child("a", "b"), child("b", "a"), *builders.Task("c"), child("d", "elsewhere")}, func(t *v1alpha1.Task, _ string) { visited = append(visited, t.Name) })
	wantText(t, "the order", "c d b a", strings.Join(visited, " "))
}

func TestDeleteHistoryOfAContract(t *testing.T) {
	b := newBench(t)
	lead, worker := taskHistoryOf("lead", "u1"), taskHistoryOf("lead-a", "u2")
	event := func(task, uid string) historyv1.TimelineEvent {
		return historyv1.TimelineEvent{Task: task, TaskUID: uid, Type: "task", Reason: v1alpha1.EventTaskJoined}
	}
	r := b.withHistory(map[string]any{
		"GET timelines":               historyv1.TimelineEventList{Items: []historyv1.TimelineEvent{event("lead-a", "u2"), event("lead", "u1"), event("lead", "u1")}},
		"GET taskhistories/lead":      lead,
		"GET taskhistories/lead-a":    worker,
		"DELETE taskhistories/lead":   historyv1.HistoryDeletion{Messages: 30, Checkpoints: 4, Events: 20},
		"DELETE taskhistories/lead-a": historyv1.HistoryDeletion{Messages: 8, Checkpoints: 4, Events: 9},
	})
	_, errOut, err := b.clew("n\n", "task", "delete-history", "--contract", "port")
	wantError(t, err, "nothing was changed")
	wantParts(t, "the preview", squeezed(errOut), "Permanent deletion of the histories of 2 tasks of the contract port\n",
		"lead u1 40 messages 4 checkpoints\n", "lead-a u2 40 messages 4 checkpoints\n",
		"deletes the conversations of 80 messages, 8 checkpoints with their code, and all events", "Delete them permanently? [y/N]")
	wantParts(t, "the requests", strings.Join(r.asked, "\n"), "GET timelines", "GET taskhistories/lead", "GET taskhistories/lead-a")
	if asked := strings.Join(r.asked, "\n"); strings.Contains(asked, "DELETE") {
		t.Errorf("it asked %s without a confirmation", asked)
	}
	out, _ := b.must("task", "delete-history", "--contract", "port", "--yes")
	wantParts(t, "output", out, "history of task lead deleted: the conversation, with 30 messages", "\nhistory of task lead-a deleted: the conversation, with 8 messages")
	wantText(t, "query", "uid=u2", r.query())
	out, _ = b.must("task", "delete-history", "--contract", "port", "--yes", "-o", "json")
	if d := decode[contractDeletion](t, out); d.Contract != "port" || len(d.Items) != 2 || d.Items[1].Name != "lead-a" || d.Items[0].Messages != 30 {
		t.Errorf("the JSON is %s", out)
	}

	r.answers["DELETE taskhistories/lead-a"] = metav1.Status{Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Message: "the gitstore cannot be reached"}
	_, _, err = b.clew("", "task", "delete-history", "--contract", "port", "--yes")
	wantError(t, err, "the deletion stopped at the history of task lead-a, after 1 of 2: ")
	task := b.task("lead", v1alpha1.ReasonCompleted)
	r.answers["GET timelines"] = historyv1.TimelineEventList{Items: []historyv1.TimelineEvent{event("lead", string(task.UID))}}
	r.answers["GET taskhistories/lead"] = taskHistoryOf("lead", string(task.UID))
	_, _, err = b.clew("", "task", "delete-history", "--contract", "port", "--yes")
	wantError(t, err, "of the contract port these tasks still exist: lead; delete them before the history, with `kubectl clew delete --contract port -n "+b.namespace+"`")
	r.answers["GET timelines"] = historyv1.TimelineEventList{}
	_, _, err = b.clew("", "task", "delete-history", "--contract", "port", "--yes")
	wantError(t, err, "has no task of the contract port")
}
