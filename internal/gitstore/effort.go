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
	// effortHalfLife is how long it takes until what was used counts half.
	effortHalfLife = 10 * time.Second
	// effortEvery is how often it is looked what running processes have used.
	effortEvery = 500 * time.Millisecond
	// mostNice is the niceness of git for a namespace that uses all of the time.
	mostNice = 19
	// freeRate is how many processors a namespace may use before its git is nice at
	// all: what is nice cannot be made less so, and a short push is over soon.
	freeRate = 0.1
	// mostOf is how much of the processors git uses when they are short for it, however
	// idle the node is: a container may have a limit.
	mostOf = 0.75
	// requestTime and readTime are what this process itself works for a request, and each
	// time that it reads a part of a push for nothing, by a measurement of both. A part is
	// what the client has made it, 16 KiB mostly and a byte at worst. drainStep is after
	// how many of them it is looked whose turn it is.
	requestTime = 4 * time.Millisecond
	readTime    = 10 * time.Microsecond
	drainStep   = 64
	// forgottenRate is how little a namespace uses that is not remembered for longer than
	// effortHalfLife.
	forgottenRate = 0.001
)

// effort is the processor time that git uses for each namespace, and, roughly, what this
// process itself uses: of those who work and those who have worked lately. Where
// processors are short, git works first for those who use little of them; and a namespace
// that uses more than its part waits, if others have work for git as well. So whoever has
// costly pushes taken in, one after the other, does not slow down the small ones of all
// others.
type effort struct {
	now func() time.Time
	// processors is how many this process may use. They are short when git uses most of
	// them, or when the node is busy.
	processors float64
	// part is how many of them one namespace may use while others use some and they are
	// short.
	part float64
	busy func() bool

	mu      sync.Mutex
	used    map[string]usedTime
	running map[int]*groupAtWork // by the process group's id
}

// usedTime counts less and less after the time at.
type usedTime struct {
	time time.Duration
	at   time.Time
}

// groupAtWork is a git process and its children.
type groupAtWork struct {
	namespace string
	noted     time.Duration
	nice      int
}

// newEffort is for so many processors, of which a namespace may use a sixteenth
// while others use some too and there are too few. Of two processors that is enough for
// some ten tasks that push small checkpoints every six seconds, by a measurement of five.
func newEffort(now func() time.Time, processors int) *effort {
	return &effort{now: now, processors: float64(processors), part: float64(processors) / 16, busy: capacity.NodeBusy, used: map[string]usedTime{}, running: map[int]*groupAtWork{}}
}

// rate is in processors: what is used at a steady rate adds up to that rate for the
// half-life's mean time.
func (u usedTime) rate(now time.Time) float64 {
	left := float64(u.time) * math.Exp2(-float64(now.Sub(u.at))/float64(effortHalfLife))
	return left / (float64(effortHalfLife) / math.Ln2)
}

// note adds what was used. The caller holds the lock.
func (e *effort) note(namespace string, used time.Duration) {
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

// rates are how many processors a namespace uses, and all others together.
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

// nice is the niceness of git for a namespace: the larger its part of what is used
// for all, the nicer.
func (e *effort) nice(namespace string) int {
	own, others := e.rates(namespace)
	if own < freeRate {
		return 0
	}
	return int(math.Round(own / (own + others) * mostNice))
}

// wait is how long it takes until a namespace uses no more than its part, if it does
// nothing meanwhile. It is 0 while no other has work for git, or processors are left.
func (e *effort) wait(namespace string) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	own, others := e.rates(namespace)
	short := own+others >= e.processors*mostOf || e.busy()
	if own <= e.part || others < forgottenRate || !short {
		return 0
	}
	return time.Duration(math.Log2(own/e.part) * float64(effortHalfLife))
}

// turn waits until it is a namespace's turn; the error is ctx's. It looks again each
// second, since others may have no work any more.
func (e *effort) turn(ctx context.Context, namespace string) error {
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

// charge notes what this process has worked for a namespace itself.
func (e *effort) charge(namespace string, used time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.note(namespace, used)
}

// start starts a git process for the namespace, in a group of its own, which its
// children join.
func (e *effort) start(namespace string, command *exec.Cmd) error {
	if err := command.Start(); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	group := &groupAtWork{namespace: namespace}
	e.running[command.Process.Pid] = group
	e.setNice(command.Process.Pid, group)
	return nil
}

// setNice never makes it less nice, which needs rights that this process lacks.
func (e *effort) setNice(id int, group *groupAtWork) {
	if n := e.nice(group.namespace); n > group.nice {
		group.nice = n
		_ = syscall.Setpriority(syscall.PRIO_PGRP, id, n) // it may have ended
	}
}

// ended notes what a process has used, and the children that it has waited for.
func (e *effort) ended(command *exec.Cmd) {
	e.mu.Lock()
	defer e.mu.Unlock()
	group := e.running[command.Process.Pid]
	if group == nil {
		return
	}
	delete(e.running, command.Process.Pid)
	if state := command.ProcessState; state != nil {
		e.note(group.namespace, max(state.UserTime()+state.SystemTime()-group.noted, 0))
	}
}

// watch notes what processes use while they run, until ctx ends: one that is broken
// off is not waited for by its parent, and one may run for hours.
func (e *effort) watch(ctx context.Context) {
	ticks := time.NewTicker(effortEvery)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			e.look()
		}
	}
}

// look notes what the groups at work have used since the last look.
func (e *effort) look() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.running) == 0 {
		return
	}
	times := groupTimes()
	for id, group := range e.running {
		if used := times[id]; used > group.noted {
			e.note(group.namespace, used-group.noted)
			group.noted = used
		}
		e.setNice(id, group)
	}
}
