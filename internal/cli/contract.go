package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

// contractView is how a contract stands.
type contractView struct {
	Name string `json:"name"`
	// Phase is the current one, since Since; Phases are all of them, in their order.
	Phase  string       `json:"phase,omitempty"`
	Since  *metav1.Time `json:"since,omitempty"`
	Phases []string     `json:"phases,omitempty"`
	// Supervisor leads the contract, or did last; empty if there is none.
	Supervisor string `json:"supervisor,omitempty"`
	// Tasks is how many there are, and States how many of them are in each state.
	Tasks  int            `json:"tasks"`
	States map[string]int `json:"states,omitempty"`
	// Waiting are the tasks that neither work nor have ended, the oldest first.
	Waiting []waitingTask `json:"waiting,omitempty"`
	Budget  []budgetUse   `json:"budget,omitempty"`
}

// waitingTask is a task that waits, and why.
type waitingTask struct {
	Name    string       `json:"name"`
	State   string       `json:"state"`
	Since   *metav1.Time `json:"since,omitempty"`
	Message string       `json:"message,omitempty"`
}

// viewOfContract returns how a contract stands.
func viewOfContract(tasks []v1alpha1.Task, name string) *contractView {
	v := &contractView{Name: name, States: map[string]int{}}
	members := membersOf(tasks, name)
	slices.SortStableFunc(members, func(a, b v1alpha1.Task) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	for i := range members {
		t := &members[i]
		v.Tasks++
		state, waits := waitOf(t)
		v.States[state]++
		if waits != nil {
			v.Waiting = append(v.Waiting, *waits)
		}
	}
	if lead := leaderOf(members); lead != nil {
		v.Supervisor, v.Phases, v.Budget = lead.Name, lead.Spec.PhasesOf(), budgetsOf(lead)
		if c := lead.Status.Contract; c != nil {
			v.Phase, v.Since = c.Phase, c.Since
		}
		v.Budget = slices.DeleteFunc(v.Budget, func(u budgetUse) bool { return u.Scope != "Contract" })
	}
	return v
}

// membersOf returns the tasks of a contract. One that waits for its place there is known by its spec, or by
// the contract of its parent.
func membersOf(tasks []v1alpha1.Task, name string) (members []v1alpha1.Task) {
	byName := map[string]*v1alpha1.Task{}
	for i := range tasks {
		byName[tasks[i].Name] = &tasks[i]
	}
	for i := range tasks {
		contract := ""
		for t, depth := &tasks[i], 0; t != nil && contract == "" && depth <= v1alpha1.MaxTaskDepth; t, depth = byName[parentOf(t)], depth+1 {
			switch {
			case t.Status.Contract != nil:
				contract = t.Status.Contract.Name
			case t.Spec.Contract != nil:
				contract = t.Spec.Contract.Name
			}
		}
		if contract == name {
			members = append(members, tasks[i])
		}
	}
	return members
}

// leaderOf returns the supervisor that leads the contract, or else the newest one that has begun, or else
// the oldest; nil for none.
func leaderOf(members []v1alpha1.Task) (lead *v1alpha1.Task) {
	rank := func(t *v1alpha1.Task) int {
		switch {
		case t.Status.Contract != nil && t.Status.Contract.LeadingSince != nil:
			return 2
		case len(t.Status.Attempts) > 0:
			return 1
		}
		return 0
	}
	for i := range members {
		t := &members[i]
		if t.Spec.Role == v1alpha1.RoleSupervisor && (lead == nil || rank(t) > rank(lead) || rank(t) == 1 && rank(lead) == 1) {
			lead = t
		}
	}
	return lead
}

// waitOf returns the state of a task, and why it waits; nil if it works or has ended.
func waitOf(t *v1alpha1.Task) (string, *waitingTask) {
	c := apimeta.FindStatusCondition(t.Status.Conditions, v1alpha1.TaskSucceeded)
	if c == nil {
		return v1alpha1.ReasonPending, &waitingTask{Name: t.Name, State: v1alpha1.ReasonPending, Message: "the manager has not looked at it yet"}
	}
	works := []string{
		v1alpha1.ReasonRunning, v1alpha1.ReasonPreparing, v1alpha1.ReasonCompleting, v1alpha1.ReasonRewinding,
		v1alpha1.ReasonSuspending, v1alpha1.ReasonStopping,
	}
	if c.Status != metav1.ConditionUnknown || slices.Contains(works, c.Reason) {
		return c.Reason, nil
	}
	since := c.LastTransitionTime
	return c.Reason, &waitingTask{Name: t.Name, State: c.Reason, Since: &since, Message: c.Message}
}

// head prints the contract above its tasks.
func (v *contractView) head(o *tree, w io.Writer) {
	line := "contract " + oneLine(v.Name)
	if v.Phase != "" {
		line += " is in phase " + oneLine(v.Phase)
		if v.Since != nil {
			line += " since " + o.stamp(v.Since.Time)
		}
		line += " (" + oneLine(strings.Join(v.Phases, ", ")) + ")"
	}
	fmt.Fprintln(w, line)
	switch {
	case v.Supervisor == "":
		fmt.Fprintln(w, "no supervisor leads it")
	default:
		fmt.Fprintln(w, "led by "+oneLine(v.Supervisor))
	}
	var states []string
	for _, state := range slices.Sorted(maps.Keys(v.States)) {
		states = append(states, fmt.Sprintf("%d %s", v.States[state], oneLine(state)))
	}
	fmt.Fprintf(w, "%s: %s\n", plural(int64(v.Tasks), "task"), strings.Join(states, ", "))
	if len(v.Budget) > 0 {
		fmt.Fprintf(w, "budget: %s\n", budgetCell(v.Budget, true))
	}
	fmt.Fprintln(w)
}

// foot prints, below the tasks of a contract, which of them wait and why.
func (v *contractView) foot(o *tree, w io.Writer) error {
	if len(v.Waiting) == 0 {
		return nil
	}
	var rows [][]string
	for _, t := range v.Waiting {
		rows = append(rows, []string{oneLine(t.Name), oneLine(t.State), o.age(t.Since), cmp.Or(clip.Runes(oneLine(t.Message), 160), "-")})
	}
	fmt.Fprintln(w)
	return table(w, []string{"WAITING", "STATE", "FOR", "WHY"}, rows)
}
