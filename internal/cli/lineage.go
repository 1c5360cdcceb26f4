package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// States of tasks that have no object.
const (
	stateFailed   = "Failed"
	stateDeleted  = "Deleted"
	stateNotFound = "NotFound"
)

// stateOfGone returns the state of a task that has no object, whose last state in the history is
// given: work that ended stays Completed or Failed, and all other is Deleted, since it can never
// run again.
func stateOfGone(last string) string {
	if last == v1alpha1.ReasonCompleted || last == stateFailed {
		return last
	}
	return stateDeleted
}

// taskTree is what `tree` prints as JSON.
type taskTree struct {
	Namespace string `json:"namespace"`
	// Contract is how the contract stands whose tasks these are, if one was named.
	Contract *contractView `json:"contract,omitempty"`
	Tasks    []*taskNode   `json:"tasks"`
}

// taskNode is a task of a tree, with those that start from it, and its children.
type taskNode struct {
	Name string `json:"name"`
	UID  string `json:"uid,omitempty"`
	// Fork, Checkpoint and Position say where the task starts: for which Fork, and at which
	// checkpoint and message of the task above it.
	Fork       string `json:"fork,omitempty"`
	Checkpoint int64  `json:"checkpoint,omitempty"`
	Position   int64  `json:"position,omitempty"`
	State      string `json:"state"`
	// Parent is the supervisor that the task is a child of, Role and Phase its place in a contract.
	Parent   string `json:"parent,omitempty"`
	Contract string `json:"contract,omitempty"`
	Role     string `json:"role,omitempty"`
	Phase    string `json:"phase,omitempty"`
	// Exists is false if the task has no object: it is deleted, or its Fork has not made it.
	Exists       bool         `json:"exists"`
	Agent        string       `json:"agent,omitempty"`
	Model        string       `json:"model,omitempty"`
	Checkpoints  int64        `json:"checkpoints"`
	Messages     int64        `json:"messages"`
	InputTokens  int64        `json:"inputTokens"`
	OutputTokens int64        `json:"outputTokens"`
	CostMicroUSD int64        `json:"costMicroUSD"`
	Created      *metav1.Time `json:"created,omitempty"`
	// Budgets are what is spent of the limits that the task has, and of those of the contract that it leads.
	Budgets []budgetUse `json:"budgets,omitempty"`
	Tasks   []*taskNode `json:"tasks,omitempty"`

	above *taskNode
	// ended is true of a task that has completed or failed, and of one that has no object any more.
	ended bool
}

// lineage is which tasks of a namespace start from which.
type lineage struct {
	nodes  []*taskNode
	byUID  map[string]*taskNode
	byName map[string]*taskNode // those that exist
	forks  map[string]*taskNode // the source of each Fork
}

// newLineage connects tasks with those that they start from. One that is gone is added, and so
// are the tasks that a Fork has not made yet.
func newLineage(tasks []v1alpha1.Task, forks []v1alpha1.Fork) *lineage {
	l := &lineage{byUID: map[string]*taskNode{}, byName: map[string]*taskNode{}, forks: map[string]*taskNode{}}
	for i := range tasks {
		node := nodeOf(&tasks[i])
		l.nodes, l.byUID[node.UID], l.byName[node.Name] = append(l.nodes, node), node, node
		if a := tasks[i].Status.Adoption; a != nil && a.TaskUID != "" {
			l.byUID[a.TaskUID] = node // what had started from the former task
		}
	}
	for i := range tasks {
		if from := tasks[i].Spec.StartFrom; from != nil {
			l.connect(l.byUID[string(tasks[i].UID)], l.source(uidOf(tasks[i].Status.Source), from.TaskRef.Name))
		}
	}
	l.addFamilies(tasks)
	for i := range forks {
		l.addFork(&forks[i])
	}
	for _, node := range l.nodes {
		slices.SortFunc(node.Tasks, func(a, b *taskNode) int {
			return cmp.Or(cmp.Compare(a.Checkpoint, b.Checkpoint), olderFirst(a, b), cmp.Compare(a.Name, b.Name))
		})
	}
	return l
}

// addFamilies puts tasks that start from no other one below their parents.
func (l *lineage) addFamilies(tasks []v1alpha1.Task) {
	for i := range tasks {
		parent := tasks[i].Spec.ParentRef
		node := l.byUID[string(tasks[i].UID)]
		if parent == nil || tasks[i].Spec.StartFrom != nil {
			continue
		}
		uid := ""
		if found := tasks[i].Status.Parent; found != nil {
			uid = found.UID
		}
		l.connect(node, l.source(uid, parent.Name))
	}
}

// nodeOf returns the node of a task.
func nodeOf(t *v1alpha1.Task) *taskNode {
	n := &taskNode{
		Name: t.Name, UID: string(t.UID), State: "Pending", Exists: true, Agent: string(t.Spec.Agent.Type), Model: t.Spec.Agent.Model,
		Checkpoints: t.Status.CheckpointCount, Messages: t.Status.MessageCount, InputTokens: t.Status.InputTokens,
		OutputTokens: t.Status.OutputTokens, CostMicroUSD: t.Status.CostMicroUSD, Created: &t.CreationTimestamp, Budgets: budgetsOf(t),
	}
	if succeeded := apimeta.FindStatusCondition(t.Status.Conditions, v1alpha1.TaskSucceeded); succeeded != nil {
		n.State, n.ended = succeeded.Reason, succeeded.Status != metav1.ConditionUnknown
	}
	if parent := t.Spec.ParentRef; parent != nil {
		n.Parent = parent.Name
	}
	if t.Spec.Role == v1alpha1.RoleSupervisor {
		n.Role = string(t.Spec.Role)
	}
	if c := t.Status.Contract; c != nil {
		n.Contract, n.Phase = c.Name, c.Phase
	} else if c := t.Spec.Contract; c != nil { // it waits for its place there
		n.Contract = c.Name
	}
	if from := t.Status.Source; from != nil {
		n.Checkpoint, n.Position = from.Checkpoint, from.Position
	}
	if from := t.Spec.StartFrom; from != nil && from.Fork != nil {
		n.Fork = from.Fork.Name
	}
	return n
}

// uidOf returns the UID of the task that was resolved; "" if none was.
func uidOf(resolved *v1alpha1.SourceStatus) string {
	if resolved == nil {
		return ""
	}
	return resolved.TaskUID
}

// source returns the node of the task that another one, or a Fork, names: that with the UID, or
// without one the task that has the name now.
func (l *lineage) source(uid, name string) *taskNode {
	node, state := l.byName[name], stateNotFound
	if uid != "" {
		node, state = l.byUID[uid], stateDeleted
	}
	if node == nil {
		key := cmp.Or(uid, "name "+name)
		if node = l.byUID[key]; node == nil {
			node = &taskNode{Name: name, UID: uid, State: state, ended: true}
			l.nodes, l.byUID[key] = append(l.nodes, node), node
		}
	}
	return node
}

// connect puts a task below another one, unless that one is below it: two that name each other
// never start.
func (l *lineage) connect(node, above *taskNode) {
	for at := above; at != nil; at = at.above {
		if at == node {
			return
		}
	}
	node.above = above
	above.Tasks = append(above.Tasks, node)
}

// addFork adds the tasks that a Fork has not made yet.
func (l *lineage) addFork(f *v1alpha1.Fork) {
	source := l.source(cmp.Or(uidOf(f.Status.Source), f.Spec.TaskUID), f.Spec.SourceRef.Name)
	l.forks[f.Name] = source
	for _, t := range f.Status.Tasks {
		if node := l.byUID[t.UID]; node != nil {
			node.Fork = f.Name
		}
	}
	complete := apimeta.FindStatusCondition(f.Status.Conditions, v1alpha1.ForkComplete)
	if complete != nil && complete.Status == metav1.ConditionTrue {
		return
	}
	for _, v := range f.Spec.Variants {
		made := slices.ContainsFunc(f.Status.Tasks, func(t v1alpha1.ForkedTask) bool { return t.Name == v.Name })
		if own := l.byName[v.Name]; made || own != nil && own.Fork == f.Name {
			continue
		}
		node := &taskNode{Name: v.Name, Fork: f.Name, State: "Pending"}
		if complete != nil {
			node.State = complete.Reason
		}
		if at := f.Status.Source; at != nil {
			node.Checkpoint, node.Position = at.Checkpoint, at.Position
		}
		l.nodes = append(l.nodes, node)
		l.connect(node, source)
	}
}

// olderFirst orders the children of a supervisor, which are many, by when they were made.
func olderFirst(a, b *taskNode) int {
	if a.Parent == "" || b.Parent == "" || a.Created == nil || b.Created == nil {
		return 0
	}
	return a.Created.Compare(b.Created.Time)
}

// roots returns the tasks that are below no other one, by name.
func (l *lineage) roots() []*taskNode {
	found := []*taskNode{}
	for _, node := range l.nodes {
		if node.above == nil {
			found = append(found, node)
		}
	}
	slices.SortFunc(found, func(a, b *taskNode) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID)) })
	return found
}

// ofContract returns the tasks of a contract that are below none of its others.
func (l *lineage) ofContract(namespace, contract string) ([]*taskNode, error) {
	found := []*taskNode{}
	for _, node := range l.nodes {
		if node.Contract == contract && (node.above == nil || node.above.Contract != contract) {
			found = append(found, node)
		}
	}
	if len(found) == 0 {
		return nil, noSuchContract(namespace, contract)
	}
	slices.SortFunc(found, func(a, b *taskNode) int { return cmp.Or(cmp.Compare(b.Role, a.Role), cmp.Compare(a.Name, b.Name)) })
	return found, nil
}

// noSuchContract is the error for a contract without tasks.
func noSuchContract(namespace, contract string) error {
	return fmt.Errorf("no task of namespace %s belongs to the contract %s; `kubectl clew tree -n %s` draws all tasks", namespace, contract, namespace)
}

// selected returns the tree of one task, or of one Fork.
func (l *lineage) selected(namespace, name string) ([]*taskNode, error) {
	fork, explicit := strings.CutPrefix(name, "fork/")
	if node := l.byName[name]; node != nil && !explicit {
		return []*taskNode{node}, nil
	}
	source := l.forks[fork]
	if source == nil && explicit {
		return nil, fmt.Errorf("there is no fork %q in namespace %s; `kubectl clew tree -n %s` draws all of them", fork, namespace, namespace)
	}
	if source == nil {
		return nil, fmt.Errorf("there is no task and no fork %q in namespace %s; `kubectl clew tree -n %s` draws all of them", name, namespace, namespace)
	}
	only := *source
	only.Tasks = slices.DeleteFunc(slices.Clone(source.Tasks), func(n *taskNode) bool { return n.Fork != fork })
	return []*taskNode{&only}, nil
}
