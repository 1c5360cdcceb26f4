// Command hostile attacks Clew. The end-to-end tests run it beside honest tasks.
//
//	hostile agent     runs as a task's agent: floods its output, its worktree, its
//	                  repository and the daemon's socket
//	hostile accomplice
//	                  runs in a pod, and floods Clew's server and the gitstore with
//	                  invented tokens and with those of the task HOSTILE_TASK, for
//	                  which it requests checkpoints all the time
//	hostile tenant    runs in a pod with the rights of a user who may edit a
//	                  namespace: does the same, creates tasks and forks, and reads
//	                  all the history that it may read
//
// Each flood continues until the program is stopped. Every ten seconds it prints to
// stderr how often it did what.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var floods func(context.Context) map[string]flood
	switch {
	case len(os.Args) == 2 && os.Args[1] == "agent":
		floods = func(context.Context) map[string]flood { return agentFloods() }
	case len(os.Args) == 2 && (os.Args[1] == "accomplice" || os.Args[1] == "tenant"):
		t, err := newTenant()
		if err != nil {
			fmt.Fprintln(os.Stderr, "hostile:", err)
			os.Exit(1)
		}
		floods = t.floods
		if os.Args[1] == "accomplice" {
			floods = t.taskFloods
		}
	default:
		fmt.Fprintln(os.Stderr, "usage: hostile agent|accomplice|tenant")
		os.Exit(2)
	}
	run(ctx, floods(ctx))
}

// flood is an action that a number of workers repeat.
type flood struct {
	// workers is how many do it at once.
	workers int
	// pause is how long a worker waits between two tries; 0 for no pause.
	pause time.Duration
	// once does it once.
	once func(ctx context.Context, worker, i int) error
}

// run runs all floods until ctx ends.
func run(ctx context.Context, floods map[string]flood) {
	tally := &tally{done: map[string]int{}, failed: map[string]int{}, last: map[string]string{}}
	var all sync.WaitGroup
	for name, f := range floods {
		for worker := range f.workers {
			all.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					err := f.once(ctx, worker, i)
					tally.count(name, err)
					wait := f.pause
					if err != nil {
						wait = max(wait, 10*time.Millisecond)
					}
					rest(ctx, wait)
				}
			})
		}
	}
	all.Go(func() {
		for ctx.Err() == nil {
			rest(ctx, 10*time.Second)
			tally.print()
		}
	})
	all.Wait()
}

// rest waits for the pause, or until ctx ends.
func rest(ctx context.Context, pause time.Duration) {
	if pause == 0 {
		return
	}
	select {
	case <-time.After(pause):
	case <-ctx.Done():
	}
}

// tally counts the actions of each flood.
type tally struct {
	mu           sync.Mutex
	done, failed map[string]int
	// last is the last error of each flood.
	last map[string]string
}

func (t *tally) count(name string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil {
		t.done[name]++
		return
	}
	t.failed[name]++
	t.last[name] = err.Error()
}

func (t *tally) print() {
	t.mu.Lock()
	defer t.mu.Unlock()
	names := maps.Clone(t.done)
	maps.Copy(names, t.failed)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(os.Stderr, "%-14s %9d done %9d refused  %.160s\n", name, t.done[name], t.failed[name], t.last[name])
	}
}
