package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
)

const (
	// tasksOfPage is how many Tasks are looked at in one request: each may hold as much
	// as the API server stores of an object.
	tasksOfPage = 20
	// leastRest is how long there is no look after one, at least. lookTimeout bounds one.
	leastRest   = time.Second
	lookTimeout = 2 * time.Minute
)

// looks are those at all Tasks of the cluster. Whoever may import histories into one
// namespace can ask for any number of them. So there is one at a time, after each there
// is none for as long as it took, and all who have asked before one begins share it.
type looks struct {
	client metadata.Interface

	mu      sync.Mutex
	next    *look // has not begun yet; nil if nobody has asked for it
	running bool
}

// look is one of them, for some UIDs.
type look struct {
	uids map[string]bool
	done chan struct{} // closed when the rest is known
	// found are those of the UIDs that a Task has.
	found map[string]bool
	err   error
}

// has looks whether a Task has that UID, now or later.
func (l *looks) has(ctx context.Context, uid string) (bool, error) {
	mine := l.join(uid)
	select {
	case <-mine.done:
		return mine.found[uid], mine.err
	case <-ctx.Done():
		return false, fmt.Errorf("wait for a look at all Tasks: %w", ctx.Err())
	}
}

// join asks for the next look to look for a UID as well.
func (l *looks) join(uid string) *look {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil {
		l.next = &look{uids: map[string]bool{}, done: make(chan struct{})}
	}
	l.next.uids[uid] = true
	if !l.running {
		l.running = true
		go l.run()
	}
	return l.next
}

// begin is the look to carry out now; nil if nobody has asked for one.
func (l *looks) begin() *look {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.next
	l.next, l.running = nil, now != nil
	return now
}

func (l *looks) run() {
	for now := l.begin(); now != nil; now = l.begin() {
		began := time.Now()
		now.found, now.err = l.find(now.uids)
		close(now.done)
		<-time.After(max(leastRest, time.Since(began)))
	}
}

func (l *looks) find(uids map[string]bool) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	found, options := map[string]bool{}, metav1.ListOptions{Limit: tasksOfPage}
	for {
		page, err := l.client.Resource(clewv1alpha1.GroupVersion.WithResource("tasks")).List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("look at all Tasks: %w", err)
		}
		for i := range page.Items {
			if uid := string(page.Items[i].UID); uids[uid] {
				found[uid] = true
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return found, nil
		}
	}
}
