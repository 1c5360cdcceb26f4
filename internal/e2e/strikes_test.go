//go:build e2e && soak

package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// Several tasks work at once while something is struck every two seconds, in a
// soak often two things at the same instant: their pods and what runs in them,
// every part of Clew, the node's kubelet and containerd. Meanwhile one task is
// forked, one is rewound again and again, and one suspended and resumed. Not
// parallel: it kills what every task needs.
func TestTasksSurviveAStrikeEveryTwoSeconds(t *testing.T) {
	w, g := newWorld(t), gomega.NewWithT(t)
	random := dice(t)
	calls, delay := pick(18, 150), pick(1200*time.Millisecond, 3*time.Second)
	lasting, kills := pick(20*time.Second, 10*time.Minute), pick(0, 500)
	c := &crowd{world: w, rewindAt: 1, sleepAt: 3, source: "source", rewound: "rewound", slept: "slept", fork: "forked", random: random,
		pods: map[string]string{}, seen: map[string]durables{}, waits: map[string]time.Time{}, asked: map[string]time.Time{}}
	c.tasks = pick([]string{c.source, c.rewound}, []string{c.source, c.rewound, c.slept, "fourth", "fifth"})
	if !soak() {
		c.slept = c.source
	}
	for _, name := range c.tasks {
		task := w.newTask(name, replay(calls, delay)...)
		task.Spec.BackoffLimit = ptr.To[int32](100)
		w.create(task)
	}
	w.untilToolCalls(c.source, 1, 2*time.Minute)
	w.take(c.source, "split")
	w.take(c.rewound, "begun")
	if err := w.apply(newFork(w.namespace, "to-"+c.fork, c.source, "split", c.fork)); err != nil {
		t.Fatalf("apply fork: %v", err)
	}
	c.tasks = append(c.tasks, c.fork) // it is made while strikes fall

	struck := newStrikes(w, random)
	begin := time.Now()
	for tick := 0; time.Since(begin) < lasting || struck.total() < kills; tick++ {
		time.Sleep(time.Until(begin.Add(time.Duration(tick)*2*time.Second + time.Duration(random.IntN(1000))*time.Millisecond)))
		for range pick(1, 1+random.IntN(2)) {
			struck.one()
		}
		c.live(tick)
	}

	struckFor := time.Since(begin)
	if err := struck.node.mended(); err != nil {
		t.Fatal(err)
	}
	w.untilSystemReady(restartTime)
	c.untilCompleted()
	for _, name := range c.tasks {
		w.expectCallsOnce(name, calls)
		for _, ckpt := range w.untilListed(name) {
			w.untilDurable(ckpt.Name) // no volume was lost
		}
		c.look(name)
	}
	w.expectDurableCheckpointsExact(calls, c.tasks...)
	w.tellKills(struck.count)
	t.Logf("%d kills in %s, %d attempts of %d tasks, %d rewinds, %d suspensions", struck.total(), struckFor.Round(time.Second), len(c.pods), len(c.tasks), c.rewinds, c.suspensions)
	// In the short test tasks on a slow machine may be done before much is struck.
	g.Expect(struck.total()).To(gomega.BeNumerically(">=", pick(3, kills)))
	g.Expect(c.rewinds).To(gomega.BeNumerically(">=", pick(0, 3)))
	g.Expect(c.suspensions).To(gomega.BeNumerically(">=", pick(0, 3)))
}

// crowd are tasks at work, and people who do with them what people do.
type crowd struct {
	*world
	tasks                         []string
	source, rewound, slept, fork  string
	random                        *rand.Rand
	pods                          map[string]string    // the pod's UID by task and attempt
	seen                          map[string]durables  // by task
	waits                         map[string]time.Time // since when a task waits to be started again
	asked                         map[string]time.Time // when a task was last told to go on
	rewinds, suspensions, resumes int
	// rewindAt and sleepAt are the strikes at which it is next time for them.
	rewindAt, sleepAt int
}

// live does what is due while strikes fall: nothing here waits for anything.
func (c *crowd) live(tick int) {
	c.Helper()
	c.look(c.tasks[tick%len(c.tasks)])
	const every = 12
	for _, name := range c.tasks {
		task := &clewv1.Task{}
		if err := c.get(name, task); err != nil {
			if client.IgnoreNotFound(err) != nil || name != c.fork {
				c.Fatal(err)
			}
			continue // it is not made yet
		}
		switch {
		case name == c.rewound && tick >= c.rewindAt && c.rewindIt(task):
			c.rewindAt = tick + every
		case c.atRest(task):
			c.goOn(task)
		case name == c.slept && tick >= c.sleepAt && state(task) == clewv1.ReasonRunning:
			c.sleepAt = tick + every
			c.suspend(task)
		case c.tired(task):
			c.suspend(task)
		}
	}
}

// look notes the attempts and the durable checkpoints of a task: a number is one
// pod's for good, a durable checkpoint stays what it is.
func (c *crowd) look(name string) {
	c.Helper()
	task := &clewv1.Task{}
	if err := c.get(name, task); err != nil {
		return // the fork is not made yet
	}
	for _, a := range task.Status.Attempts {
		key := fmt.Sprintf("%s/%d", name, a.Number)
		if was := c.pods[key]; was != "" && was != a.PodUID {
			c.Fatalf("attempt %s was pod %s and is pod %q", key, was, a.PodUID)
		}
		if a.PodUID != "" {
			c.pods[key] = a.PodUID
		}
	}
	if c.seen[name] == nil {
		c.seen[name] = durables{}
	}
	c.seen[name].add(c.world, name)
}

// tired says that a task waits longer and longer to be started again, because
// its agent was killed so often: a person starts it now.
func (c *crowd) tired(task *clewv1.Task) bool {
	if state(task) != clewv1.ReasonRetrying {
		delete(c.waits, task.Name)
		return false
	}
	if c.waits[task.Name].IsZero() {
		c.waits[task.Name] = time.Now()
	}
	return time.Since(c.waits[task.Name]) > 8*time.Second
}

func rewinding(task *clewv1.Task) bool {
	asked, is := task.Spec.Rewind, task.Status.Rewind
	return asked != nil && (is == nil || is.ID != asked.ID || is.State == clewv1.OperationInProgress)
}

// rewindIt asks for a rewind to one of the newest durable checkpoints, unless
// the one before is under way.
func (c *crowd) rewindIt(task *clewv1.Task) bool {
	c.Helper()
	if is := task.Status.Rewind; is != nil && (is.State == clewv1.OperationFailed || is.State == clewv1.OperationRefused) {
		c.Fatalf("rewind %s of task %s ended %s: %s: %s", is.ID, task.Name, is.State, is.Reason, is.Message)
	}
	durable := slices.DeleteFunc(c.checkpoints(task.Name), func(ckpt clewv1.Checkpoint) bool {
		return !meta.IsStatusConditionTrue(ckpt.Status.Conditions, clewv1.CheckpointDurable)
	})
	if rewinding(task) || len(durable) == 0 || state(task) == clewv1.ReasonSuspended || state(task) == clewv1.ReasonCompleted {
		return false
	}
	c.rewinds++
	to := durable[max(0, len(durable)-1-c.random.IntN(4))]
	c.requestRewind(task.Name, fmt.Sprintf("back-%d", c.rewinds), to.Name)
	return true
}

// untilCompleted lets the tasks come to their end.
func (c *crowd) untilCompleted() {
	c.Helper()
	for _, name := range c.tasks {
		c.until("task "+name+" is Completed", restartTime+5*time.Minute, func() error {
			task := c.task(name)
			if c.atRest(task) {
				c.goOn(task)
			}
			if rewinding(task) || state(task) != clewv1.ReasonCompleted {
				return fmt.Errorf("it is %s: %s; its rewind is %+v", state(task), conditionMessage(task), task.Status.Rewind)
			}
			return nil
		})
	}
}

// atRest says that a task waits for somebody to let it go on: it was suspended,
// or it had come to its end before it was taken back.
func (c *crowd) atRest(task *clewv1.Task) bool {
	return !rewinding(task) && (state(task) == clewv1.ReasonSuspended || state(task) == clewv1.ReasonRewound)
}

func (c *crowd) suspend(task *clewv1.Task) {
	c.Helper()
	c.suspensions++
	spec := map[string]any{"operatingMode": "Suspended"}
	if asked := task.Spec.Rewind; rewinding(task) {
		// Left out, it would be taken back, and that is refused while it is under way.
		spec["rewind"] = clewv1.Rewind{ID: asked.ID, To: asked.To}
	}
	c.patchSpec(task.Name, spec)
}

// goOn lets a task at rest go on. It may just be on its way, so nobody asks again
// at once.
func (c *crowd) goOn(task *clewv1.Task) {
	c.Helper()
	if time.Since(c.asked[task.Name]) < 5*time.Second {
		return
	}
	c.asked[task.Name] = time.Now()
	c.resumes++
	id := fmt.Sprintf("on-%d", c.resumes)
	c.patchSpec(task.Name, map[string]any{"operatingMode": "Running", "resume": map[string]any{"id": id}})
}
