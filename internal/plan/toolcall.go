package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/reason"
	"github.com/clew-dev/clew/internal/resources"
	"github.com/clew-dev/clew/internal/toolcall"
)

// A call of a supervisor's tool is decided on again whenever something that it depends on has changed,
// until it has an answer. A decision asks for one write at most, and recognises a write that was made
// before: so the call takes effect once, however often a manager is killed in between. What is made is
// known by its name and by what it asks for, what is requested by its id, and what anybody may undo by what
// was noted of the call before.

// ObservedCall is everything that a decision about a call depends on.
type ObservedCall struct {
	Call history.ToolCall
	// Wish is what the call asks for. See ReadWish.
	Wish Wish
	// Task is the supervisor; nil if it is gone.
	Task *v1alpha1.Task
	// Named are those tasks that the call names (see Wish.Names) and that are children of the
	// supervisor, by what the call names them.
	Named map[string]*v1alpha1.Task
	// Taken are the tasks that have one of the names that those that the call wants to make would be known
	// by, whoever made them, by that name. See ObservedCall.NewNames.
	Taken map[string]*v1alpha1.Task
	// Fork is the one that has the name of the Fork to make; nil for none.
	Fork *v1alpha1.Fork
	// Children is how many children the supervisor has, and Members how many tasks its contract.
	Children, Members int
	// Latest are the numbers of the newest checkpoints, by what the call names the tasks, or
	// toolcall.Self; 0 for none. See Wish.Sources.
	Latest map[string]int64
	// Checkpoints are the objects of the task that is to be published.
	Checkpoints []v1alpha1.Checkpoint
	// Holders are other tasks, of the supervisor's children and itself, whose work was pushed to the branch that
	// the supervisor publishes to. They are needed once a checkpoint was to be published.
	Holders []BranchHolder
	// Behind is true while the history store lacks what the supervisor's status knows of: it was put back to
	// an older copy, and may have lost that the call was answered, or taken back.
	Behind bool
	// Stamped is true when an admission policy writes requesters into applied objects.
	Stamped bool
}

// BranchHolder is a task of which a checkpoint is at a branch of its repository.
type BranchHolder struct {
	// Task is who it is; no more of it need be known than its name, its parent and its repository.
	Task *v1alpha1.Task
	// Checkpoint is the number of the checkpoint.
	Checkpoint int64
}

// NewNames returns the names by which the Tasks would be known that the call wants to make: those of their
// objects, and short ones, by which the agent must mean no other child.
func (o *ObservedCall) NewNames() (names []string) {
	switch w := o.Wish; {
	case o.Task == nil:
	case w.Create != nil:
		names = toolcall.ObjectNames(o.Task.Name, w.Create.Name)
	case w.Fork != nil:
		for _, v := range w.Fork.Variants {
			names = append(names, toolcall.ObjectNames(o.Task.Name, v.Name)...)
		}
	}
	return names
}

// CallPlan is what to do about a call. If it has neither a write nor an answer, the call is decided on
// again when one of the objects changes that were observed.
type CallPlan struct {
	// Answer ends the call; nil while it has none.
	Answer *toolcall.Answer
	// Note is to be kept with the call (see history.ToolCall.Noted); empty for nothing.
	Note string
	// CreateTask and CreateFork are the object to create; nil for none.
	CreateTask *v1alpha1.Task
	CreateFork *v1alpha1.Fork
	// ChangeTask and ChangeCheckpoint are the change of an observed object; nil for none.
	ChangeTask       *Change[v1alpha1.Task]
	ChangeCheckpoint *Change[v1alpha1.Checkpoint]
	// Phase is what the supervisor's own controller has to do; nil for nothing.
	Phase *PhaseCall
}

// Change is an object as it was observed, and as it is to be.
type Change[T any] struct {
	From, To *T
}

// Wish is what a call asks for, in one of its fields.
type Wish struct {
	Create  *toolcall.CreateInput
	Resume  *toolcall.ResumeInput
	Rewind  *toolcall.RewindInput
	Fork    *toolcall.ForkInput
	Stop    *toolcall.StopInput
	Phase   *toolcall.PhaseInput
	Publish *toolcall.PublishInput
}

// ReadWish returns what a call asks for. Its error is a sentence for the agent.
func ReadWish(call history.ToolCall) (w Wish, err error) {
	switch v1alpha1.AgentTool(call.Tool) {
	case v1alpha1.ToolTaskCreate:
		w.Create, err = input[toolcall.CreateInput](call)
	case v1alpha1.ToolTaskResume:
		w.Resume, err = input[toolcall.ResumeInput](call)
	case v1alpha1.ToolTaskRewind:
		w.Rewind, err = input[toolcall.RewindInput](call)
	case v1alpha1.ToolTaskFork:
		w.Fork, err = input[toolcall.ForkInput](call)
	case v1alpha1.ToolTaskStop:
		w.Stop, err = input[toolcall.StopInput](call)
	case v1alpha1.ToolPhaseSet:
		w.Phase, err = input[toolcall.PhaseInput](call)
	case v1alpha1.ToolPublish:
		w.Publish, err = input[toolcall.PublishInput](call)
	default:
		err = errors.New("this version of Clew's manager does not know the tool: upgrade it, or use another tool")
	}
	if err == nil {
		err = w.bounded()
	}
	return w, err
}

// bounded returns why a wish names more than can be looked at; nil if it does not.
func (w Wish) bounded() error {
	switch {
	case w.Create != nil && len(w.Create.DependsOn) > maxDependencies:
		return fmt.Errorf("the call names %d tasks in depends_on, and %d are possible: name those that end last", len(w.Create.DependsOn), maxDependencies)
	case w.Fork != nil && len(w.Fork.Variants) > toolcall.MaxVariants:
		return fmt.Errorf("the fork has %d variants, and %d are possible: make it in two calls", len(w.Fork.Variants), toolcall.MaxVariants)
	}
	return nil
}

// input returns the arguments of a call.
func input[T any](call history.ToolCall) (*T, error) {
	in := new(T)
	decoder := json.NewDecoder(bytes.NewReader(call.Arguments))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(in)
	if err == nil {
		if _, err = decoder.Token(); errors.Is(err, io.EOF) {
			return in, nil
		}
		err = errors.New("something follows them")
	}
	return nil, fmt.Errorf("the arguments are not those of %s (%w): correct them, and call it again", call.Tool, err)
}

// Names returns what the call names its supervisor's children, each once, in the order in which they are
// looked for: nothing is done if one of them is missing.
func (w Wish) Names() (names []string) {
	switch {
	case w.Create != nil:
		names = append(slices.Clone(w.Create.DependsOn), w.Create.StartFrom)
	case w.Resume != nil:
		names = []string{w.Resume.Task}
	case w.Rewind != nil:
		names = []string{w.Rewind.Task}
	case w.Fork != nil:
		names = []string{w.Fork.Task}
	case w.Stop != nil:
		names = []string{w.Stop.Task}
	case w.Publish != nil:
		names = []string{w.Publish.Task}
	}
	seen := map[string]bool{"": true, toolcall.Self: true}
	return slices.DeleteFunc(names, func(name string) bool {
		before := seen[name]
		seen[name] = true
		return before
	})
}

// Sources returns what the call names the tasks of which the newest checkpoint has to be known.
func (w Wish) Sources() []string {
	switch {
	case w.Create != nil && w.Create.StartFrom != "":
		return []string{w.Create.StartFrom}
	case w.Fork != nil:
		return []string{w.Fork.Task}
	case w.Rewind != nil:
		return []string{w.Rewind.Task}
	case w.Publish != nil:
		return []string{orSelf(w.Publish.Task)}
	}
	return nil
}

// orSelf returns the name of the task, or that of the supervisor itself if there is none.
func orSelf(name string) string {
	if name == "" {
		return toolcall.Self
	}
	return name
}

// IsChild reports whether a task is a child of a supervisor, or is about to become one.
func IsChild(supervisor, task *v1alpha1.Task) bool {
	if p := task.Status.Parent; p != nil {
		return p.UID == string(supervisor.UID)
	}
	ref := task.Spec.ParentRef
	return ref != nil && ref.Name == supervisor.Name && task.Namespace == supervisor.Namespace
}

// calling is the state of one call of DecideCall.
type calling struct {
	o ObservedCall
	// lead is the supervisor.
	lead *v1alpha1.Task
}

// DecideCall returns what to do next about a call of a supervisor's tool. It is pure.
func DecideCall(o ObservedCall) CallPlan {
	d := &calling{o: o, lead: o.Task}
	switch lead, tool := o.Task, v1alpha1.AgentTool(o.Call.Tool); {
	case lead == nil:
		return refuse("the task that has called is gone")
	case lead.DeletionTimestamp != nil:
		return refuse("the task %s is being deleted", lead.Name)
	case lead.Spec.Role != v1alpha1.RoleSupervisor:
		return refuse("the task %s is a worker, and only a supervisor has this tool", lead.Name)
	case !slices.Contains(resources.ToolsOf(lead), tool):
		return refuse("the task %s does not have this tool, as its spec.tools says: go on without it", lead.Name)
	case takenBack(&lead.Status, o.Call.Attempt):
		return refuse("the conversation in which it was called is taken back")
	case beingTakenBack(&lead.Status, o.Call.Attempt): // nothing is made by what is withdrawn in a moment
		return CallPlan{}
	case o.Behind: // the daemon sends what is lacking, and the call again if it still waits
		return CallPlan{}
	}
	switch w := o.Wish; {
	case w.Create != nil:
		return d.create(w.Create)
	case w.Resume != nil:
		return d.goOn(w.Resume)
	case w.Rewind != nil:
		return d.takeBack(w.Rewind)
	case w.Fork != nil:
		return d.fork(w.Fork)
	case w.Stop != nil:
		return d.halt(w.Stop)
	case w.Phase != nil:
		return d.moveTo(w.Phase)
	case w.Publish != nil:
		return d.publish(w.Publish)
	}
	return refuse("the call asks for nothing")
}

// CallRefused returns the answer to a call that the API server refused to carry out.
func CallRefused(err error) toolcall.Answer {
	return *refuse("the API server has refused it: %v", err).Answer
}

// Spoken returns an answer as it is said to an agent: in sentences.
func Spoken(answer toolcall.Answer) toolcall.Answer {
	first, size := utf8.DecodeRuneInString(answer.Text)
	answer.Text = string(unicode.ToUpper(first)) + answer.Text[size:]
	if !strings.HasSuffix(answer.Text, ".") {
		answer.Text += "."
	}
	return answer
}

// CallMessage returns what the timeline says about a call and its answer.
func CallMessage(call history.ToolCall, answer toolcall.Answer) string {
	if answer.Refused {
		return statusText(call.Tool + " was refused: " + answer.Text)
	}
	return statusText(call.Tool + ": " + answer.Text)
}

// called is an answer for programs.
type called = toolcall.Done

// about returns an answer for programs about a task.
func (d *calling) about(task *v1alpha1.Task) called {
	return called{Task: d.short(task.Name), Object: task.Name, UID: string(task.UID)}
}

// answer ends a call.
func answer(data called, format string, args ...any) CallPlan {
	encoded, _ := json.Marshal(data) // it has only texts and numbers
	return CallPlan{Answer: &toolcall.Answer{Text: fmt.Sprintf(format, args...), Data: encoded}}
}

// refuse ends a call that was not carried out.
func refuse(format string, args ...any) CallPlan {
	return CallPlan{Answer: &toolcall.Answer{Refused: true, Text: fmt.Sprintf(format, args...)}}
}

// short returns the name by which the agent knows a task.
func (d *calling) short(object string) string {
	return toolcall.ShortName(d.lead.Name, object, d.hasChild)
}

// hasChild reports whether one of the observed tasks is a child with the name of an object.
func (d *calling) hasChild(object string) bool {
	for _, task := range d.o.Named {
		if task != nil && task.Name == object {
			return true
		}
	}
	task := d.o.Taken[object]
	return task != nil && IsChild(d.lead, task)
}

// owner is the field manager of what is written for the call, and who has requested it.
func (d *calling) owner() string { return TaskRequester(d.lead.Name) }

// operation returns the id of the operation that the call requests.
func (d *calling) operation() string { return "tool-" + d.o.Call.ID }

// maxQuoted bounds what an answer quotes of a name, in bytes: nobody needs more of one that is none.
const maxQuoted = 100

// quoted returns what an agent has said as a name, as a part of a sentence. What is no name is quoted, so
// that it is not read as part of the sentence.
func quoted(name string) string {
	if name = clip.Marked(name, maxQuoted); shortName.MatchString(name) {
		return name
	}
	return strconv.Quote(name)
}

// shortName is the form of the names that an agent gives.
var shortName = regexp.MustCompile("^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")

// nameProblem returns why an agent cannot give a name to an object whose name may have so many
// characters; nil if it can.
func (d *calling) nameProblem(name string, longest int) *CallPlan {
	var p CallPlan
	room, said := longest-len(toolcall.ObjectName(d.lead.Name, "")), quoted(name)
	switch {
	case name == toolcall.Self:
		p = refuse("the name %s means the calling task itself: choose another one", said)
	case !shortName.MatchString(name):
		p = refuse("the name %s is not one: use lower-case letters, digits and '-', and begin and end with a letter or digit", said)
	case room < 1:
		p = refuse("the name of the task %s is so long that no name can follow it: go on without this tool", d.lead.Name)
	case len(name) > room:
		p = refuse("the name %s is too long, since it follows that of the task %s: use %d characters at most", said, d.lead.Name, room)
	default:
		return nil
	}
	return &p
}

// child returns the child of a name, or why there is none.
func (d *calling) child(name string) (*v1alpha1.Task, *CallPlan) {
	task := d.o.Named[name]
	var p CallPlan
	switch {
	case name == toolcall.Self:
		p = refuse("the name %s means the calling task itself, and this tool is about its children: name one that task_list shows", name)
	case task == nil:
		p = refuse("the task %s has no child %s: task_list shows those that it has", d.lead.Name, quoted(name))
	case task.DeletionTimestamp != nil:
		p = refuse("the task %s is being deleted", name)
	default:
		return task, nil
	}
	return nil, &p
}

// noRoom returns why the supervisor can have no more children; nil if it can have so many more.
func (d *calling) noRoom(more int) *CallPlan {
	var p CallPlan
	switch most, contract := MaximumOf(d.lead), d.lead.Status.Contract; {
	case depthOf(d.lead) >= v1alpha1.MaxTaskDepth:
		p = refuse("the task %s is nested %d deep, and children are nested no deeper: do the work without new tasks", d.lead.Name, depthOf(d.lead))
	case d.o.Children+more > most:
		p = refuse("the task %s has %d children, and children.maximum allows %d: resume one that has finished with another prompt, or do the work without new tasks", d.lead.Name, d.o.Children, most)
	case contract != nil && d.o.Members+more > v1alpha1.MaxContractTasks:
		p = refuse("the contract %s has %d tasks, and %d are possible: resume one that has finished with another prompt", contract.Name, d.o.Members, v1alpha1.MaxContractTasks)
	default:
		return nil
	}
	return &p
}

// stateOf returns the reason of a task's condition Succeeded, and whether the task has stopped: it has
// ended, or waits for somebody to go on with it.
func stateOf(task *v1alpha1.Task) (state string, stopped bool) {
	c := succeededOf(task)
	if c == nil {
		return v1alpha1.ReasonPending, false
	}
	return c.Reason, c.Status != metav1.ConditionUnknown || reason.Find(c.Reason).Standing == reason.Resting
}
