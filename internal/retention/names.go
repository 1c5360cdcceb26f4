package retention

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// Names are the Checkpoints that the objects of a namespace name. Nothing names a Checkpoint
// of another namespace. The latest checkpoint of each task is not among them: Decide keeps it all the
// same.
type Names struct {
	// objects are named by their name.
	objects map[string]bool
	// numbers are named by the UID of the task and the number, ofNamed by the name of the task.
	numbers map[point]bool
	ofNamed map[namedPoint]bool
}

// point identifies a checkpoint by the UID of its task and its number.
type point struct {
	task   types.UID
	number int64
}

// namedPoint identifies a checkpoint by the name of its task and its number.
type namedPoint struct {
	task   string
	number int64
}

// NewNames returns no names; objects add some.
func NewNames() Names {
	return Names{objects: map[string]bool{}, numbers: map[point]bool{}, ofNamed: map[namedPoint]bool{}}
}

// NamesIn returns the Checkpoints that these objects of one namespace name.
func NamesIn(tasks []v1alpha1.Task, forks []v1alpha1.Fork, snapshots []v1alpha1.ConversationSnapshot) Names {
	n := NewNames()
	n.AddTasks(tasks)
	n.AddForks(forks)
	n.AddSnapshots(snapshots)
	return n
}

// AddTasks adds what tasks name.
func (n Names) AddTasks(tasks []v1alpha1.Task) {
	for i := range tasks {
		n.ofTask(&tasks[i])
		if from := tasks[i].Spec.StartFrom; from != nil {
			n.start(from.TaskRef.Name, from.CheckpointRef, from.At)
		}
	}
}

// AddForks adds what forks name.
func (n Names) AddForks(forks []v1alpha1.Fork) {
	for i := range forks {
		from := &forks[i].Spec
		n.start(from.SourceRef.Name, from.CheckpointRef, from.At)
		n.source(forks[i].Status.Source)
	}
}

// AddSnapshots adds what snapshots name.
func (n Names) AddSnapshots(snapshots []v1alpha1.ConversationSnapshot) {
	for i := range snapshots {
		if number := snapshots[i].Spec.CheckpointNumber; number != nil {
			n.ofNamed[namedPoint{snapshots[i].Spec.TaskRef.Name, *number}] = true
		}
		n.ref(snapshots[i].Spec.CheckpointRef)
	}
}

// Has reports whether something names the Checkpoint.
func (n Names) Has(c *v1alpha1.Checkpoint) bool {
	return n.objects[c.Name] || n.numbers[point{types.UID(c.Status.TaskUID), c.Status.Number}] ||
		n.ofNamed[namedPoint{c.Spec.TaskRef.Name, c.Status.Number}]
}

// ref adds a reference by name.
func (n Names) ref(r *v1alpha1.NameReference) {
	if r != nil {
		n.objects[r.Name] = true
	}
}

// source adds the checkpoint that a task or fork started from.
func (n Names) source(s *v1alpha1.SourceStatus) {
	if s != nil {
		n.numbers[point{types.UID(s.TaskUID), s.Checkpoint}] = true
	}
}

// start adds the Checkpoint that a fork or startFrom names, by name or by number. Once it is
// resolved, it is in the status as well; see source.
func (n Names) start(source string, ref *v1alpha1.NameReference, at *v1alpha1.StartPoint) {
	n.ref(ref)
	if at == nil {
		return
	}
	n.ref(at.CheckpointRef)
	if at.CheckpointNumber != nil {
		n.ofNamed[namedPoint{source, *at.CheckpointNumber}] = true
	}
}

// number adds the checkpoint of a task with a number.
func (n Names) number(task types.UID, number *int64) {
	if number != nil {
		n.numbers[point{task, *number}] = true
	}
}

// ofTask adds the checkpoints that a Task names.
func (n Names) ofTask(t *v1alpha1.Task) {
	if p := t.Status.Parent; p != nil && p.Rewind != nil {
		n.number(t.UID, &p.Rewind.Checkpoint)
	}
	if t.Spec.Rewind != nil {
		n.ref(t.Spec.Rewind.To.CheckpointRef)
		n.number(t.UID, t.Spec.Rewind.To.CheckpointNumber)
	}
	if t.Spec.Resume != nil {
		n.ref(t.Spec.Resume.CheckpointRef)
		n.number(t.UID, t.Spec.Resume.CheckpointNumber)
	}
	n.source(t.Status.Source)
	if rewind := t.Status.Rewind; rewind != nil {
		n.numbers[point{t.UID, rewind.FromCheckpoint}] = true
		n.numbers[point{t.UID, rewind.ToCheckpoint}] = true
	}
}
