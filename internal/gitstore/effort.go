package gitstore

import (
	"context"
	"math"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/clew-dev/clew/internal/capacity"
)

const (
	// effortHalfLife is the time after which used processor time counts half.
	effortHalfLife = 10 * time.Second
	// effortInterval is how often the usage of running processes is sampled.
	effortInterval = 500 * time.Millisecond
	// maxNice is the niceness of git for a namespace that uses all of the processor time.
	maxNice = 19
	// freeRate is how many processors a namespace may use before its git processes get any
	// niceness: niceness cannot be lowered again, and a short push ends soon.
	freeRate = 0.1
	// busyFraction is the fraction of the processors above which git's use counts as a shortage,
	// however idle the node is: the container may have a limit.
	busyFraction = 0.75
	// requestTime and readTime are the processor time that this process itself spends on a
	// request, and on each read of a push that it discards; both were measured. The client
	// decides how much a read returns, usually 16 KiB and a byte at worst. drainStep is the
	// number of reads between two checks of whether the namespace has to wait.
	requestTime = 4 * time.Millisecond
	readTime    = 10 * time.Microsecond
	drainStep   = 64
	// forgottenRate is the rate below which a namespace is forgotten after effortHalfLife.
	forgottenRate = 0.001
)

// effort tracks the processor time that git recently used for each namespace, running
// processes included, and an estimate of what this process itself used. When processors
// are short, git works first for the namespaces that use little; and a namespace
// that uses more than its share waits while others have work for git. So a namespace that
// sends one costly push after another does not slow down the small pushes of the others.
type effort struct {
	now func() time.Time
	// processors is how many this process may use. They are short when git uses most of
	// them, or when the node is busy.
	processors float64
	// share is how many of them one namespace may use while they are short and others use
	// some as well.
	share float64
	busy  func() bool

	mu      sync.Mutex
	used    map[string]usedTime
	running map[int]*runningGroup // by the process group's id
}

// usedTime is processor time that decays from the time at.
type usedTime struct {
	time time.Duration
	at   time.Time
}

// runningGroup is a running git process and its children.
type runningGroup struct {
	namespace string
	counted   time.Duration // already counted in used
	nice      int
}

// newEffort returns an effort for the given number of processors. A namespace may use a
// sixteenth of them while they are short and others use some as well. With two processors
// that suffices for some ten tasks that push small checkpoints every six seconds, by a
// measurement with five tasks.
func newEffort(now func() time.Time, processors int) *effort {
	return &effort{now: now, processors: float64(processors), share: float64(processors) / 16, busy: capacity.NodeBusy, used: map[string]usedTime{}, running: map[int]*runningGroup{}}
}

// rate returns the usage in processors. At a steady rate the decayed sum converges to that
// rate times the mean lifetime, effortHalfLife/ln 2.
func (u usedTime) rate(now time.Time) float64 {
	left := float64(u.time) * math.Exp2(-float64(now.Sub(u.at))/float64(effortHalfLife))
	return left / (float64(effortHalfLife) / math.Ln2)
}

// add adds processor time to a namespace. The caller holds the lock.
func (e *effort) add(namespace string, used time.Duration) {
	now := e.now()
	u := e.used[namespace]
	left := time.Duration(u.rate(now) * float64(effortHalfLife) / math.Ln2)
	e.used[namespace] = usedTime{time: left + used, at: now}
	for name, u := range e.used {
		if now.Sub(u.at) > effortHalfLife && u.rate(now) < forgottenRate {
			delete(e.used, name)
		}
	}
}

// rates returns how many processors a namespace uses, and all others together. The caller
// holds the lock.
func (e *effort) rates(namespace string) (own, others float64) {
	now := e.now()
	for name, u := range e.used {
		if name == namespace {
			own = u.rate(now)
		} else {
			others += u.rate(now)
		}
	}
	return own, others
}

// nice returns the niceness of git for a namespace: the larger its fraction of the total
// use, the nicer. The caller holds the lock.
func (e *effort) nice(namespace string) int {
	own, others := e.rates(namespace)
	if own < freeRate {
		return 0
	}
	return int(math.Round(own / (own + others) * maxNice))
}

// wait returns how long an idle namespace takes to decay to its share. It is 0 while no
// other namespace has work for git, or processors are not short.
func (e *effort) wait(namespace string) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	own, others := e.rates(namespace)
	short := own+others >= e.processors*busyFraction || e.busy()
	if own <= e.share || others < forgottenRate || !short {
		return 0
	}
	return time.Duration(math.Log2(own/e.share) * float64(effortHalfLife))
}

// await waits until a namespace may have git work for it; its error is that of ctx. It checks
// again every second, since the others may have finished their work.
func (e *effort) await(ctx context.Context, namespace string) error {
	for {
		wait := e.wait(namespace)
		if wait == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(wait, time.Second)):
		}
	}
}

// charge counts processor time that this process itself spent on a namespace.
func (e *effort) charge(namespace string, used time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.add(namespace, used)
}

// start starts a git process for the namespace. command must give it a process group of
// its own, which its children join.
func (e *effort) start(namespace string, command *exec.Cmd) error {
	if err := command.Start(); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	group := &runningGroup{namespace: namespace}
	e.running[command.Process.Pid] = group
	e.setNice(command.Process.Pid, group)
	return nil
}

// setNice raises the niceness of a process group where needed. It never lowers it, since
// that needs a privilege that this process lacks.
func (e *effort) setNice(id int, group *runningGroup) {
	if n := e.nice(group.namespace); n > group.nice {
		group.nice = n
		_ = syscall.Setpriority(syscall.PRIO_PGRP, id, n) // the group may have exited
	}
}

// ended counts the processor time of a process that has exited, and of the children that
// it waited for.
func (e *effort) ended(command *exec.Cmd) {
	e.mu.Lock()
	defer e.mu.Unlock()
	group := e.running[command.Process.Pid]
	if group == nil {
		return
	}
	delete(e.running, command.Process.Pid)
	if state := command.ProcessState; state != nil {
		e.add(group.namespace, max(state.UserTime()+state.SystemTime()-group.counted, 0))
	}
}

// watch samples the processor time of running processes until ctx ends: a process that is
// killed is not waited for by its parent, and one may run for hours.
func (e *effort) watch(ctx context.Context) {
	ticks := time.NewTicker(effortInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			e.sample()
		}
	}
}

// sample counts what the running process groups have used since the last sample.
func (e *effort) sample() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.running) == 0 {
		return
	}
	times := groupTimes()
	for id, group := range e.running {
		if used := times[id]; used > group.counted {
			e.add(group.namespace, used-group.counted)
			group.counted = used
		}
		e.setNice(id, group)
	}
}
