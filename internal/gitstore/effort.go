package gitstore

import (
	"math"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

const (
	// effortHalfLife is how long it takes until what was used counts half.
	effortHalfLife = time.Minute
	// leastNice and mostNice are the niceness of git for a namespace that has used
	// next to nothing of the processor time, and for one that has used all of it.
	leastNice, mostNice = 0, 19
	// effortKept is what a namespace must have used, in seconds, to be remembered.
	effortKept = 0.001
)

// effort is the processor time that git has lately used for each namespace. Where
// processors are short, git works first for those who have used little of it: one
// namespace that has costly pushes taken in, one after the other, does not slow down
// the small ones of all others.
type effort struct {
	now func() time.Time

	mu   sync.Mutex
	used map[string]usedTime
}

// usedTime is in seconds; it counts less and less after the time at.
type usedTime struct {
	seconds float64
	at      time.Time
}

func newEffort(now func() time.Time) *effort {
	return &effort{now: now, used: map[string]usedTime{}}
}

func (u usedTime) left(now time.Time) float64 {
	return u.seconds * math.Exp2(-float64(now.Sub(u.at))/float64(effortHalfLife))
}

// note adds what a git process and its children have used.
func (e *effort) note(namespace string, used time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := e.now()
	e.used[namespace] = usedTime{seconds: e.used[namespace].left(now) + used.Seconds(), at: now}
	for name, u := range e.used {
		if u.left(now) < effortKept {
			delete(e.used, name)
		}
	}
}

// nice is the niceness of git for a namespace: the larger its part of what was used
// for all, the nicer.
func (e *effort) nice(namespace string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	now, all := e.now(), 0.0
	for _, u := range e.used {
		all += u.left(now)
	}
	if all == 0 {
		return leastNice
	}
	return leastNice + int(math.Round(e.used[namespace].left(now)/all*(mostNice-leastNice)))
}

// start starts a git process for the namespace.
func (e *effort) start(namespace string, command *exec.Cmd) error {
	if err := command.Start(); err != nil {
		return err
	}
	if n := e.nice(namespace); n > leastNice {
		// It has a group of its own, which its children join. It may have ended already.
		_ = syscall.Setpriority(syscall.PRIO_PGRP, command.Process.Pid, n)
	}
	return nil
}

// ended notes what a process has used that was waited for.
func (e *effort) ended(namespace string, command *exec.Cmd) {
	if state := command.ProcessState; state != nil {
		e.note(namespace, state.UserTime()+state.SystemTime())
	}
}
