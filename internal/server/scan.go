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
	// tasksOfPage is the number of Tasks read per request: each may be as large as the
	// API server's limit for an object.
	tasksOfPage = 20
	// After a scan there is a pause of a quarter of the scan's duration, at least
	// leastRest. scanTimeout bounds one scan.
	restPart    = 4
	leastRest   = time.Second
	scanTimeout = 2 * time.Minute
	// pageTries is how often a scan requests its pages despite errors, and pagePause the
	// wait in between: many imports depend on one scan.
	pageTries = 3
	pagePause = time.Second
)

// uidScans are scans of all Tasks of the cluster. Whoever may import histories into one
// namespace can cause any number of them. So there is one at a time, followed by a pause,
// and all callers that have asked before it begins share it.
type uidScans struct {
	client metadata.Interface

	mu      sync.Mutex
	next    *uidScan // has not begun yet; nil if nobody has asked for it
	running bool
}

// uidScan is one scan for some UIDs.
type uidScan struct {
	uids map[string]int // how many callers wait for each; unchanged once the scan has begun
	done chan struct{}  // closed when found and err are set
	// found has those of the UIDs that belong to a Task.
	found map[string]bool
	err   error
}

// has reports whether a Task has that UID, as of this call or later.
func (l *uidScans) has(ctx context.Context, uid string) (bool, error) {
	mine := l.join(uid)
	select {
	case <-mine.done:
		return mine.found[uid], mine.err
	case <-ctx.Done():
		l.leave(mine, uid)
		return false, fmt.Errorf("wait for a scan of all Tasks: %w", ctx.Err())
	}
}

// join adds a UID to the next scan.
func (l *uidScans) join(uid string) *uidScan {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.next == nil {
		l.next = &uidScan{uids: map[string]int{}, done: make(chan struct{})}
	}
	l.next.uids[uid]++
	if !l.running {
		l.running = true
		go l.run()
	}
	return l.next
}

// leave removes a UID that nobody waits for any more from a scan that has not begun:
// callers that cancel and ask again must not fill it. A scan without UIDs is dropped.
func (l *uidScans) leave(left *uidScan, uid string) {
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

// begin returns the scan to run now; nil if nobody has asked for one.
func (l *uidScans) begin() *uidScan {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.next
	l.next, l.running = nil, now != nil
	return now
}

func (l *uidScans) run() {
	for now := l.begin(); now != nil; now = l.begin() {
		began := time.Now()
		now.found, now.err = l.find(now.uids)
		close(now.done)
		<-time.After(max(leastRest, time.Since(began)/restPart))
	}
}

func (l *uidScans) find(uids map[string]int) (map[string]bool, error) {
	found := map[string]bool{}
	err := eachTask(context.Background(), l.client, func(uid string) {
		if uids[uid] > 0 {
			found[uid] = true
		}
	})
	return found, err
}

// eachTask calls each with the UIDs of all Tasks of the cluster, with some perhaps twice.
func eachTask(ctx context.Context, client metadata.Interface, each func(uid string)) error {
	ctx, cancel := context.WithTimeout(ctx, scanTimeout)
	defer cancel()
	options := metav1.ListOptions{Limit: tasksOfPage}
	for tries := pageTries; ; {
		page, err := client.Resource(clewv1alpha1.GroupVersion.WithResource("tasks")).List(ctx, options)
		if err != nil {
			if tries--; tries == 0 || ctx.Err() != nil {
				return fmt.Errorf("list all Tasks: %w", err)
			}
			if apierrors.IsResourceExpired(err) {
				options.Continue = "" // start over: those that were passed on stay
			}
			select {
			case <-ctx.Done():
			case <-time.After(pagePause):
			}
			continue
		}
		for i := range page.Items {
			each(string(page.Items[i].UID))
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return nil
		}
	}
}
