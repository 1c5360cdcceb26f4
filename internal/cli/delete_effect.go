package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// deletion is what goes with a Task, or with the tasks of a contract, and what stays. It is what `delete`
// prints as JSON.
type deletion struct {
	// Task is empty if all tasks of a contract are deleted.
	Task      string `json:"task,omitempty"`
	UID       string `json:"uid,omitempty"`
	Contract  string `json:"contract,omitempty"`
	Namespace string `json:"namespace"`
	// Tasks are those that are deleted: the task, its children, and theirs; or those of the contract.
	Tasks []string `json:"tasks"`
	// Running are those of them whose agents are stopped.
	Running []string `json:"running,omitempty"`
	// Volumes are the tasks whose volumes are deleted, and KeptVolumes those whose volumes stay.
	Volumes     []string `json:"volumes,omitempty"`
	KeptVolumes []string `json:"keptVolumes,omitempty"`
	// Checkpoints and Snapshots are how many objects go; what they stand for stays in the history.
	Checkpoints int `json:"checkpoints"`
	Snapshots   int `json:"snapshots"`
	// Orphans are the children that stay, without a parent.
	Orphans []string `json:"orphans,omitempty"`
	// Others are the tasks of the contract that a supervisor leads which stay, since they are no children of it.
	Others []string `json:"others,omitempty"`
	// Unjoined are the tasks that name one that goes as their parent, and are not its children yet; they stay.
	Unjoined []string `json:"unjoined,omitempty"`
	// Forked are the tasks that started from one that goes; they stay.
	Forked []string `json:"forked,omitempty"`
	// Forks are the Forks of one that goes that have yet to make their tasks.
	Forks []string `json:"forks,omitempty"`
	// Waiting are the tasks that wait for one that goes.
	Waiting []string `json:"waiting,omitempty"`
	// Branches are those at the tasks' repositories that were published, which stay.
	Branches []string `json:"branches,omitempty"`
	// Unsaved are the tasks whose last checkpoint only their volume may have.
	Unsaved []string `json:"unsaved,omitempty"`

	// tree has the name and the state of each task of the contract, drawn below its parent.
	tree [][]string
}

// deletionOf returns what a deletion of a task does.
func (b belongings) deletionOf(task *v1alpha1.Task) *deletion {
	d := &deletion{Task: task.Name, UID: string(task.UID), Namespace: task.Namespace}
	goes := map[string]bool{}
	b.add(d, task, goes)
	if contract := task.Spec.Contract; contract != nil && task.Spec.Role == v1alpha1.RoleSupervisor {
		d.Contract = contract.Name
		for _, t := range membersOf(b.tasks, contract.Name) {
			if !goes[string(t.UID)] && !slices.Contains(d.Orphans, t.Name) && !d.seeks(&t) {
				d.Others = append(d.Others, t.Name)
			}
		}
	}
	return b.complete(d, goes)
}

// seeks reports whether a task names one that is deleted as its parent, and is not its child yet.
func (d *deletion) seeks(t *v1alpha1.Task) bool {
	return t.Status.Parent == nil && t.Spec.ParentRef != nil && slices.Contains(d.Tasks, t.Spec.ParentRef.Name)
}

// complete adds what stays of a deletion.
func (b belongings) complete(d *deletion, goes map[string]bool) *deletion {
	for i := range b.tasks {
		b.addOther(d, &b.tasks[i], goes)
	}
	for i := range b.forks {
		f := &b.forks[i]
		complete := apimeta.IsStatusConditionTrue(f.Status.Conditions, v1alpha1.ForkComplete)
		if !complete && slices.Contains(d.Tasks, f.Spec.SourceRef.Name) {
			d.Forks = append(d.Forks, f.Name)
		}
	}
	for _, names := range []*[]string{&d.Orphans, &d.Others, &d.Unjoined, &d.Forked, &d.Forks, &d.Waiting, &d.Branches} {
		slices.Sort(*names)
		*names = slices.Compact(*names)
	}
	return d
}

// add adds a task that goes, and the children that go with it.
func (b belongings) add(d *deletion, t *v1alpha1.Task, goes map[string]bool) {
	if goes[string(t.UID)] {
		return
	}
	goes[string(t.UID)] = true
	d.Tasks = append(d.Tasks, t.Name)
	if n := len(t.Status.Attempts); n > 0 && t.Status.Attempts[n-1].Outcome == "" {
		d.Running = append(d.Running, t.Name)
	}
	switch {
	case t.Status.ClaimUID == "" || t.Status.Released != nil:
	case t.Spec.Workspace.Retention == v1alpha1.WorkspaceRetain:
		d.KeptVolumes = append(d.KeptVolumes, t.Name)
	default:
		d.Volumes = append(d.Volumes, t.Name)
		if durable := apimeta.FindStatusCondition(t.Status.Conditions, v1alpha1.TaskDurable); durable != nil && durable.Status == metav1.ConditionFalse {
			d.Unsaved = append(d.Unsaved, t.Name)
		}
	}
	if p := t.Spec.Publish; p != nil && apimeta.IsStatusConditionTrue(t.Status.Conditions, v1alpha1.TaskPublished) {
		d.Branches = append(d.Branches, p.Branch)
	}
	for i := range b.checkpoints {
		if ownedBy(&b.checkpoints[i], t.UID) {
			d.Checkpoints++
		}
	}
	for i := range b.snapshots {
		if ownedBy(&b.snapshots[i], t.UID) {
			d.Snapshots++
		}
	}
	orphans := t.Spec.Children != nil && t.Spec.Children.OnDelete == v1alpha1.ChildrenOrphan
	for i := range b.tasks {
		switch child := &b.tasks[i]; {
		case child.Status.Parent == nil || child.Status.Parent.UID != string(t.UID):
		case orphans:
			d.Orphans = append(d.Orphans, child.Name)
		default:
			b.add(d, child, goes)
		}
	}
}

// addOther adds what a task that stays has to do with those that go.
func (b belongings) addOther(d *deletion, t *v1alpha1.Task, goes map[string]bool) {
	if goes[string(t.UID)] {
		return
	}
	if src := t.Status.Source; src != nil && goes[src.TaskUID] {
		d.Forked = append(d.Forked, t.Name)
	}
	if d.seeks(t) {
		d.Unjoined = append(d.Unjoined, t.Name)
	}
	if len(t.Status.Attempts) > 0 {
		return
	}
	for _, on := range t.Spec.DependsOn {
		if slices.Contains(d.Tasks, on.TaskRef.Name) {
			d.Waiting = append(d.Waiting, t.Name)
		}
	}
}

// print prints the deletion for people.
func (d *deletion) print(w io.Writer) error {
	style := styleFor(w)
	subject := " of task " + d.Task
	if d.Task == "" {
		subject = fmt.Sprintf(" of the contract %s, with %s", oneLine(d.Contract), plural(int64(len(d.Tasks)), "task"))
	}
	fmt.Fprintln(w, style.red("Deletion")+style.bold(subject))
	if err := table(w, nil, d.tree); err != nil {
		return err
	}
	var rows [][]string
	add := func(what string, names []string, format string) {
		if len(names) > 0 {
			rows = append(rows, []string{"  " + what, fmt.Sprintf(format, listed(names))})
		}
	}
	if d.Task != "" {
		add("deletes", d.Tasks[1:], "its children %s, and theirs, as children.onDelete says")
	}
	add("stops", d.Running, "the agents of %s, each with a last checkpoint")
	add("deletes", d.Volumes, "the volumes of %s")
	add("keeps", d.KeptVolumes, "the volumes of %s, as workspace.retention says")
	if d.Checkpoints+d.Snapshots > 0 {
		rows = append(rows, []string{"  deletes", fmt.Sprintf("the objects of %s and %s; what they stand for stays in the history",
			plural(int64(d.Checkpoints), "checkpoint"), plural(int64(d.Snapshots), "conversation snapshot"))})
	}
	add(style.red("loses"), d.Unsaved, "what only the volumes of %s may have: their last checkpoint is not in the gitstore yet")
	add("orphans", d.Orphans, "%s, which go on without a parent")
	add("leaves", d.Others, "%s of the contract "+d.Contract+", which are no children of it: `kubectl clew delete --contract "+d.Contract+"` deletes all")
	add("leaves", d.Unjoined, "%s, which name a parent that goes and have yet to become its children: they wait for another one of its name")
	add("keeps", d.Forked, "%s, which started from here, with all that they need")
	add("leaves", d.Forks, "the Forks %s without a Task to start from: they go on from its history")
	add("leaves", d.Waiting, "%s waiting, unless the history says that what they wait for had completed or, where that is enough, failed")
	add("keeps", d.Branches, "the published branches %s at their repository")
	until := "`kubectl clew task delete-history`"
	if d.Task == "" {
		until = "`kubectl clew task delete-history --contract " + d.Contract + "`; a new contract of this name counts on until then from what this one has spent"
	}
	rows = append(rows,
		[]string{"  keeps", "the history, with code, conversation and branches in the gitstore, until " + until},
		[]string{"  keeps", "the Secrets and ConfigMaps that the spec names; Clew has made none"})
	return table(w, nil, rows)
}

// question asks whether to go on.
func (d *deletion) question() string {
	if d.Task == "" && len(d.Tasks) > 1 {
		return fmt.Sprintf("Delete all %d tasks?", len(d.Tasks))
	}
	return "Delete it?"
}

// subject names what is deleted.
func (d *deletion) subject() string {
	if d.Task == "" {
		return fmt.Sprintf("contract %s, with %s,", d.Contract, plural(int64(len(d.Tasks)), "task"))
	}
	return "task.clew.dev/" + d.Task
}

// maxListed is how many names are listed.
const maxListed = 10

// listed lists names; of many, the first ones.
func listed(names []string) string {
	if more := len(names) - maxListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), more)
	}
	return strings.Join(names, ", ")
}
