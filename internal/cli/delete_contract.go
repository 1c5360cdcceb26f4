package cli

import (
	"cmp"
	"maps"
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// deletionOfContract returns what a deletion of all tasks of a contract does, and the tasks in the order in
// which they are deleted: a supervisor before its children, of which its agent would make new ones.
func (b belongings) deletionOfContract(contract string, members []v1alpha1.Task) (*deletion, []*v1alpha1.Task) {
	d := &deletion{Contract: contract, Namespace: members[0].Namespace}
	goes, tasks := map[string]bool{}, []*v1alpha1.Task{}
	walk(members, func(t *v1alpha1.Task, lines string) {
		tasks = append(tasks, t)
		state, _ := waitOf(t)
		d.tree = append(d.tree, []string{"  " + lines + oneLine(t.Name), oneLine(state)})
		b.add(d, t, goes)
	})
	d.Orphans = nil // they go as well
	return b.complete(d, goes), tasks
}

// walk visits tasks, each after its parent, supervisors first, and with the lines that are drawn before its name.
func walk(tasks []v1alpha1.Task, visit func(t *v1alpha1.Task, lines string)) {
	below, names := map[string][]*v1alpha1.Task{}, map[string]bool{}
	for i := range tasks {
		names[tasks[i].Name] = true
	}
	for i := range tasks {
		parent := parentOf(&tasks[i])
		if !names[parent] {
			parent = ""
		}
		below[parent] = append(below[parent], &tasks[i])
	}
	var visitBelow func(parent, rest string)
	visitBelow = func(parent, rest string) {
		children := below[parent]
		delete(below, parent)
		slices.SortFunc(children, func(a, b *v1alpha1.Task) int {
			return cmp.Or(cmp.Compare(a.Spec.Role, b.Spec.Role), cmp.Compare(a.Name, b.Name))
		})
		for i, t := range children {
			first, next := rest+"├─ ", rest+"│  "
			switch {
			case parent == "":
				first, next = "", ""
			case i == len(children)-1:
				first, next = rest+"└─ ", rest+"   "
			}
			visit(t, first)
			visitBelow(t.Name, next)
		}
	}
	visitBelow("", "")
	for _, parent := range slices.Sorted(maps.Keys(below)) { // tasks that name each other as parents
		visitBelow(parent, "")
	}
}
