// Package live brings the files of a running task, as they are at this moment, to the
// gitstore, where they can be compared.
//
// The task's daemon pushes them when it is asked to, and the server that somebody asks need
// not be the one that the daemon is connected to. So requests and answers pass through a Bus
// that connects all servers. It promises:
//
//   - A task's daemon is asked by each server at most once at a time, however many callers
//     wait. What a caller gets was asked for after its call, so that it has what was written
//     before.
//   - All servers that wait for a task get an answer: one to a request is also one to all
//     requests before it, which the daemon may have skipped. All servers see requests in the
//     same order.
//   - A request reaches a daemon that reconnects while somebody waits.
//   - Nothing is stored: what is lost on the way ends as an error after patience, and may be
//     asked for again.
package live

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/clew-dev/clew/internal/history"
)

const (
	// patience is how long a daemon may take.
	patience = 20 * time.Second
)

// Bus carries messages to all servers, the sender included.
type Bus interface {
	NotifyLive(ctx context.Context, m history.LiveMessage) error
	ListenLive(ctx context.Context, callback func(history.LiveMessage)) error
}

// Broker asks daemons. Create one with New; its methods are safe for concurrent use.
type Broker struct {
	bus      Bus
	patience time.Duration

	mu sync.Mutex
	// publications are those in progress, by the task's UID.
	publications map[string]*publication
	// asked holds the requests of all servers that are not answered, oldest first, by the
	// task's UID.
	asked map[string][]string
	// daemons are the streams to daemons at this server, by the task's UID.
	daemons map[string]map[chan string]struct{}
}

// publication is a request and its answer.
type publication struct {
	id     string
	done   chan struct{} // closed when commit or err is set
	commit string
	err    error
}

// New returns a Broker. Run must run.
func New(bus Bus) *Broker {
	return &Broker{bus: bus, patience: patience, publications: map[string]*publication{},
		asked: map[string][]string{}, daemons: map[string]map[chan string]struct{}{}}
}

// Run passes on requests and answers until ctx ends.
func (b *Broker) Run(ctx context.Context) error { return b.bus.ListenLive(ctx, b.handle) }

// Publish makes the task's daemon push its files as they are, and returns the commit that the
// task's ref Live has then. Errors: history.ErrNoAnswer, a *history.LiveProblem, those of the
// Bus.
func (b *Broker) Publish(ctx context.Context, taskUID string) (commit string, err error) {
	// The one in progress may have read the files before this call.
	if err := wait(ctx, b.inProgress(taskUID)); err != nil {
		return "", err
	}
	b.mu.Lock()
	p := b.publications[taskUID]
	if p == nil {
		p = &publication{id: rand.Text(), done: make(chan struct{})}
		b.publications[taskUID] = p
		// The request is not only this caller's.
		go b.request(context.WithoutCancel(ctx), taskUID, p)
	}
	b.mu.Unlock()
	if err := wait(ctx, p); err != nil {
		return "", err
	}
	return p.commit, p.err
}

// inProgress returns the publication that is in progress; nil for none.
func (b *Broker) inProgress(taskUID string) *publication {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.publications[taskUID]
}

// wait waits for the end of a publication, if there is one.
func wait(ctx context.Context, p *publication) error {
	if p == nil {
		return nil
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// request sends a request, and sees to it that it ends.
func (b *Broker) request(ctx context.Context, taskUID string, p *publication) {
	ctx, cancel := context.WithTimeout(ctx, b.patience)
	defer cancel()
	if err := b.bus.NotifyLive(ctx, history.LiveMessage{TaskUID: taskUID, ID: p.id}); err != nil {
		b.finish(taskUID, p.id, "", fmt.Errorf("ask the task's daemon for its files: %w", err))
		return
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		b.finish(taskUID, p.id, "", history.ErrNoAnswer)
	}
}

// finish ends the publication of that id, if there is one.
func (b *Broker) finish(taskUID, id, commit string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p := b.publications[taskUID]
	if p == nil || p.id != id {
		return
	}
	p.commit, p.err = commit, err
	delete(b.publications, taskUID)
	close(p.done)
}

// handle passes a message on to whom it concerns at this server.
func (b *Broker) handle(m history.LiveMessage) {
	if !m.Answered {
		b.ask(m.TaskUID, m.ID)
		return
	}
	// Its own request may have been lost on the way to this server.
	b.conclude(m, append(b.answered(m.TaskUID, m.ID), m.ID))
}

// conclude ends the publications of the requests that a message answers.
func (b *Broker) conclude(m history.LiveMessage, ids []string) {
	var err error
	if m.Commit == "" {
		err = &history.LiveProblem{Problem: m.Problem, RetryAfterSeconds: m.RetryAfterSeconds}
	}
	for _, id := range ids {
		b.finish(m.TaskUID, id, m.Commit, err)
	}
}

// ask sends a request to the daemon, now or when it connects.
func (b *Broker) ask(taskUID, id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked[taskUID] = append(b.asked[taskUID], id)
	time.AfterFunc(b.patience, func() { b.answered(taskUID, id) })
	for daemon := range b.daemons[taskUID] {
		replace(daemon, id)
	}
}

// answered ends a request and all before it, and returns them.
func (b *Broker) answered(taskUID, id string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	asked := b.asked[taskUID]
	n := slices.Index(asked, id) + 1
	if n == len(asked) {
		delete(b.asked, taskUID)
	} else {
		b.asked[taskUID] = asked[n:]
	}
	return slices.Clone(asked[:n])
}

// replace sends the newest id on a channel of capacity 1 that has no other sender.
func replace(c chan string, id string) {
	select {
	case <-c:
	default:
	}
	c <- id
}

// Requests returns a channel that receives the ids of requests for the task's files, until
// leave is called.
func (b *Broker) Requests(taskUID string) (ids <-chan string, leave func()) {
	c := make(chan string, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if asked := b.asked[taskUID]; len(asked) > 0 {
		c <- asked[len(asked)-1]
	}
	if b.daemons[taskUID] == nil {
		b.daemons[taskUID] = map[chan string]struct{}{}
	}
	b.daemons[taskUID][c] = struct{}{}
	return c, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.daemons[taskUID], c)
		if len(b.daemons[taskUID]) == 0 {
			delete(b.daemons, taskUID)
		}
	}
}

// Answer passes on what a task's daemon says: the commit that it has pushed, or the problem
// that prevented it. An answer that nobody has asked the task for, or to which there was one,
// is ignored, so that a daemon cannot flood the Bus.
func (b *Broker) Answer(ctx context.Context, m history.LiveMessage) error {
	answered := b.answered(m.TaskUID, m.ID)
	if len(answered) == 0 {
		return nil
	}
	m.Answered = true
	err := b.bus.NotifyLive(ctx, m)
	b.conclude(m, answered) // when the message comes back, this server knows none of them
	return err
}
