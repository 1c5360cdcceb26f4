// Command hostile means harm. The end-to-end tests run it beside honest tasks.
//
//	hostile agent     is a task's agent: floods its output, its worktree, its
//	                  repository and the daemon's socket
//	hostile accomplice
//	                  is a pod that floods Clew's server and the gitstore by tokens
//	                  that it makes up and by those of the task HOSTILE_TASK, of
//	                  which it has checkpoints taken all the time
//	hostile tenant    is a pod with the rights that somebody has who may edit a
//	                  namespace: does the same, makes tasks and forks, and reads
//	                  all the history that it may read
//
// Each flood goes on until the program is ended. It says on stderr, every ten
// seconds, how often it did what.
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

// flood is one thing that is done again and again, by so many at once.
type flood struct {
	workers int
	// pause is how long a worker waits between two tries; 0 for not at all.
	pause time.Duration
	once  func(ctx context.Context, worker, i int) error
}

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

func rest(ctx context.Context, pause time.Duration) {
	if pause == 0 {
		return
	}
	select {
	case <-time.After(pause):
	case <-ctx.Done():
	}
}

// tally counts what was done.
type tally struct {
	mu           sync.Mutex
	done, failed map[string]int
	last         map[string]string
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
