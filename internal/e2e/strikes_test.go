//go:build e2e && soak

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// Several tasks work at once while something is killed every two seconds, and in a soak
// often two things at the same instant: their pods and the processes in them, every
// component of Clew, the node's kubelet and containerd. Meanwhile one task is forked, one
// is rewound again and again, and one is suspended and resumed.
//
// Serial: it kills components that every task needs.
var _ = Describe("tasks among which something is killed every two seconds", Serial, Label("kill", "slow", "soak"), func() {
	w := newWorld()

	It("lose and repeat no call, and every durable checkpoint restores exactly", SpecTimeout(pick(30*time.Minute, 6*time.Hour)), func(ctx SpecContext) {
		calls, lasting, kills := pick(18, 150), pick(20*time.Second, 10*time.Minute), pick(0, 500)
		random := dice()
		c := newCrowd(w, random)
		c.begin(ctx, calls, pick(1200*time.Millisecond, 3*time.Second))

		struck := newStrikes(ctx, w, random)
		begin := time.Now()
		for tick := 0; time.Since(begin) < lasting || struck.total() < kills; tick++ {
			pause(ctx, time.Until(begin.Add(time.Duration(tick)*2*time.Second+time.Duration(random.IntN(1000))*time.Millisecond)))
			Expect(ctx.Err()).NotTo(HaveOccurred(), "after %d kills", struck.total())
			for range pick(1, 1+random.IntN(2)) {
				struck.one()
			}
			c.act(ctx, tick)
		}
		struckFor := time.Since(begin)
		Expect(struck.node.repaired()).To(Succeed())
		w.untilSystemReady(ctx, restartTime)
		c.untilCompleted(ctx)

		for _, name := range c.tasks {
			w.expectCallsOnce(ctx, name, calls)
			for _, ckpt := range w.untilListed(ctx, name) {
				w.untilDurable(ctx, ckpt.Name) // no volume was lost
			}
			c.observe(ctx, name)
		}
		w.expectDurableCheckpointsExact(ctx, calls, c.tasks...)
		reportKills(struck.count)
		AddReportEntry("kills", fmt.Sprintf("%d kills in %s, %d attempts of %d tasks, %d rewinds, %d suspensions",
			struck.total(), struckFor.Round(time.Second), len(c.pods), len(c.tasks), c.rewinds, c.suspensions))
		// In the short version, on a slow machine, the tasks may complete before much is killed.
		Expect(struck.total()).To(BeNumerically(">=", pick(3, kills)), "kills")
		Expect(c.rewinds).To(BeNumerically(">=", pick(0, 3)), "rewinds")
		Expect(c.suspensions).To(BeNumerically(">=", pick(0, 3)), "suspensions")
	})
})

// crowd is a set of tasks at work, and the users who rewind, suspend and resume them.
type crowd struct {
	*world
	tasks                         []string
	source, rewound, slept, fork  string
	random                        *rand.Rand
	pods                          map[string]string    // the pod's UID by task and attempt
	seen                          map[string]durables  // by task
	waits                         map[string]time.Time // since when a task has waited for a restart
	asked                         map[string]time.Time // when a task was last resumed
	rewinds, suspensions, resumes int
	// rewindAt and sleepAt are the strikes at which they are next due.
	rewindAt, sleepAt int
}

func newCrowd(w *world, random *rand.Rand) *crowd {
	c := &crowd{world: w, rewindAt: 1, sleepAt: 3, source: "source", rewound: "rewound", slept: "slept", fork: "forked", random: random,
		pods: map[string]string{}, seen: map[string]durables{}, waits: map[string]time.Time{}, asked: map[string]time.Time{}}
	c.tasks = pick([]string{c.source, c.rewound}, []string{c.source, c.rewound, c.slept, "fourth", "fifth"})
	if !soak() {
		c.slept = c.source
	}
	return c
}

// begin creates the tasks, and the fork of one of them.
func (c *crowd) begin(ctx context.Context, calls int, delay time.Duration) {
	GinkgoHelper()
	for _, name := range c.tasks {
		task := c.newTask(name, replay(calls, delay)...)
		task.Spec.BackoffLimit = ptr.To[int32](100)
		c.create(ctx, task)
	}
	c.untilToolCalls(ctx, c.source, 1, 2*time.Minute)
	c.take(ctx, c.source, "split")
	c.take(ctx, c.rewound, "begun")
	Expect(c.apply(ctx, newFork(c.namespace, "to-"+c.fork, c.source, "split", c.fork))).To(Succeed(), "apply fork")
	c.tasks = append(c.tasks, c.fork) // it is created while things are killed
}

// act does what is due while things are killed. It never waits.
func (c *crowd) act(ctx context.Context, tick int) {
	GinkgoHelper()
	c.observe(ctx, c.tasks[tick%len(c.tasks)])
	const every = 12
	for _, name := range c.tasks {
		task := &clewv1.Task{}
		err := c.get(ctx, name, task)
		if name == c.fork && apierrors.IsNotFound(err) {
			continue // it is not created yet
		}
		Expect(err).NotTo(HaveOccurred())
		switch {
		case c.dueForRewind(name, tick) && c.rewindIt(ctx, task):
			c.rewindAt = tick + every
		case c.atRest(task):
			c.resumeAtRest(ctx, task)
		case c.dueForSleep(name, tick) && state(task) == clewv1.ReasonRunning:
			c.sleepAt = tick + every
			c.suspend(ctx, task)
		case c.inLongBackoff(task):
			c.suspend(ctx, task)
		}
	}
}

func (c *crowd) dueForRewind(name string, tick int) bool {
	return name == c.rewound && tick >= c.rewindAt
}

func (c *crowd) dueForSleep(name string, tick int) bool { return name == c.slept && tick >= c.sleepAt }

// observe records the attempts and the durable checkpoints of a task: an attempt's number
// belongs to one pod for good, and a durable checkpoint never changes.
func (c *crowd) observe(ctx context.Context, name string) {
	GinkgoHelper()
	task := &clewv1.Task{}
	if err := c.get(ctx, name, task); err != nil {
		return // the fork is not created yet
	}
	for _, a := range task.Status.Attempts {
		key := fmt.Sprintf("%s/%d", name, a.Number)
		Expect(c.pods).To(Or(Not(HaveKey(key)), HaveKeyWithValue(key, a.PodUID)), "the pod of attempt %s", key)
		if a.PodUID != "" {
			c.pods[key] = a.PodUID
		}
	}
	if c.seen[name] == nil {
		c.seen[name] = durables{}
	}
	c.seen[name].add(ctx, c.world, name)
}

// inLongBackoff reports whether a task has backed off for long because its agent was killed often:
// a user would restart it now.
func (c *crowd) inLongBackoff(task *clewv1.Task) bool {
	if state(task) != clewv1.ReasonRetrying {
		delete(c.waits, task.Name)
		return false
	}
	if c.waits[task.Name].IsZero() {
		c.waits[task.Name] = time.Now()
	}
	return time.Since(c.waits[task.Name]) > 8*time.Second
}

// rewindIt requests a rewind to one of the newest durable checkpoints, unless the
// previous one is in progress.
func (c *crowd) rewindIt(ctx context.Context, task *clewv1.Task) bool {
	GinkgoHelper()
	if is := task.Status.Rewind; is != nil {
		Expect(*is).To(HaveField("State", BeElementOf(clewv1.OperationPending, clewv1.OperationInProgress, clewv1.OperationCompleted)), "the rewind of task %s", task.Name)
	}
	durable := slices.DeleteFunc(c.checkpoints(ctx, task.Name), func(ckpt clewv1.Checkpoint) bool {
		return !meta.IsStatusConditionTrue(ckpt.Status.Conditions, clewv1.CheckpointDurable)
	})
	stopped := []string{clewv1.ReasonSuspended, clewv1.ReasonCompleted}
	if slices.Contains(stopped, state(task)) {
		return false
	}
	if rewinding(task) || len(durable) == 0 {
		return false
	}
	c.rewinds++
	to := durable[max(0, len(durable)-1-c.random.IntN(4))]
	c.requestRewind(ctx, task.Name, fmt.Sprintf("back-%d", c.rewinds), to.Name)
	return true
}

// untilCompleted resumes the tasks until they are completed.
func (c *crowd) untilCompleted(ctx context.Context) {
	GinkgoHelper()
	for _, name := range c.tasks {
		c.eventually(ctx, func() error {
			task := c.task(ctx, name)
			if c.atRest(task) {
				c.resumeAtRest(ctx, task)
			}
			if rewinding(task) || state(task) != clewv1.ReasonCompleted {
				return fmt.Errorf("the task is %s: %s; its rewind is %+v", state(task), conditionMessage(task), task.Status.Rewind)
			}
			return nil
		}).WithTimeout(restartTime+5*time.Minute).Should(Succeed(), "task %s is Completed", name)
	}
}

// atRest reports whether a task waits to be resumed: it was suspended, or had completed
// before it was rewound.
func (c *crowd) atRest(task *clewv1.Task) bool {
	return !rewinding(task) && slices.Contains([]string{clewv1.ReasonSuspended, clewv1.ReasonRewound}, state(task))
}

func (c *crowd) suspend(ctx context.Context, task *clewv1.Task) {
	GinkgoHelper()
	c.suspensions++
	spec := map[string]any{"operatingMode": "Suspended"}
	if asked := task.Spec.Rewind; rewinding(task) {
		// Leaving it out would withdraw it, which is refused while it is in progress.
		spec["rewind"] = clewv1.Rewind{ID: asked.ID, To: asked.To}
	}
	c.patchSpec(ctx, task.Name, spec)
}

// resumeAtRest resumes a task at rest. The task may still seem to be at rest, so a resume is not
// repeated at once.
func (c *crowd) resumeAtRest(ctx context.Context, task *clewv1.Task) {
	GinkgoHelper()
	if time.Since(c.asked[task.Name]) < 5*time.Second {
		return
	}
	c.asked[task.Name] = time.Now()
	c.resumes++
	id := fmt.Sprintf("on-%d", c.resumes)
	c.patchSpec(ctx, task.Name, map[string]any{"operatingMode": "Running", "resume": map[string]any{"id": id}})
}
