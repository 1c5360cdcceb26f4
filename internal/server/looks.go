package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
)

const (
	// tasksOfPage is how many Tasks are looked at in one request: each may hold as much
	// as the API server stores of an object.
	tasksOfPage = 20
	// After a look there is a pause: a quarter of the time that it took, leastRest at
	// least. lookTimeout bounds one look.
	restPart    = 4
	leastRest   = time.Second
	lookTimeout = 2 * time.Minute
	// pageTries is how often a look asks for its pages although it gets an error, and
	// pagePause how long it waits then: many imports depend on one look.
	pageTries = 3
	pagePause = time.Second
)

// looks are those at all Tasks of the cluster. Whoever may import histories into one
// namespace can ask for any number of them. So there is one at a time, after each there
// is none for a while, and all who have asked before one begins share it.
type looks struct {
	client metadata.Interface

	mu      sync.Mutex
	next    *look // has not begun yet; nil if nobody has asked for it
	running bool
}

// look is one of them, for some UIDs.
type look struct {
	uids map[string]int // how many wait for each; it changes no more when the look begins
	done chan struct{}  // closed when the rest is known
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
		l.leave(mine, uid)
		return false, fmt.Errorf("wait for a look at all Tasks: %w", ctx.Err())
	}
}

// join asks for the next look to look for a UID as well.
func (l *looks) join(uid string) *look {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil {
		l.next = &look{uids: map[string]int{}, done: make(chan struct{})}
	}
	l.next.uids[uid]++
	if !l.running {
		l.running = true
		go l.run()
	}
	return l.next
}

// leave has a look that has not begun forget a UID that nobody waits for any more:
// whoever breaks off and asks again must not fill it. Nobody makes one for nobody.
func (l *looks) leave(left *look, uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next != left {
		return // it has begun
	}
	if left.uids[uid]--; left.uids[uid] == 0 {
		delete(left.uids, uid)
	}
	if len(left.uids) == 0 {
		l.next = nil
	}
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
		<-time.After(max(leastRest, time.Since(began)/restPart))
	}
}

func (l *looks) find(uids map[string]int) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
	defer cancel()
	found, options := map[string]bool{}, metav1.ListOptions{Limit: tasksOfPage}
	for tries := pageTries; ; {
		page, err := l.client.Resource(clewv1alpha1.GroupVersion.WithResource("tasks")).List(ctx, options)
		if err != nil {
			if tries--; tries == 0 || ctx.Err() != nil {
				return nil, fmt.Errorf("look at all Tasks: %w", err)
			}
			if apierrors.IsResourceExpired(err) {
				options.Continue = "" // what was found stays found
			}
			select {
			case <-ctx.Done():
			case <-time.After(pagePause):
			}
			continue
		}
		for i := range page.Items {
			if uid := string(page.Items[i].UID); uids[uid] > 0 {
				found[uid] = true
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return found, nil
		}
	}
}
