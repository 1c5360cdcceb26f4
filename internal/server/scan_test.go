package server

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onsi/gomega"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
)

// pages is a cluster with a Task on each of two pages. It counts the scans.
type pages struct {
	metadata.Getter
	scans int
	takes time.Duration
	fails []error // of requests for the second page, in order
}

func (p *pages) Resource(schema.GroupVersionResource) metadata.Getter { return p }

func (p *pages) List(_ context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	list, uid := &metav1.PartialObjectMetadataList{}, types.UID("first")
	if options.Continue == "" {
		p.scans++
		list.Continue = "more"
	} else {
		uid = "second"
		advance(p.takes)
		if len(p.fails) > 0 {
			err := p.fails[0]
			p.fails = p.fails[1:]
			return nil, err
		}
	}
	list.Items = []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{UID: uid}}}
	return list, nil
}

// advance lets time pass in a synctest bubble, where the clock is fake: the pace of scans is
// what these tests are about. At the end of a test it lets the scanner finish.
func advance(d time.Duration) { time.Sleep(d) }

func TestATaskIsFoundByItsUIDOnAnyPage(t *testing.T) {
	tasks := newLiveTasks(&pages{})
	for uid, want := range map[string]bool{"first": true, "second": true, "none": false} {
		g := gomega.NewWithT(t)
		found, err := tasks.HasUID(t.Context(), uid)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(found).To(gomega.Equal(want), uid)
	}
}

func TestTheTasksThatExistAreListed(t *testing.T) {
	g := gomega.NewWithT(t)
	found, err := newLiveTasks(&pages{}).liveUIDs(t.Context())
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(found).To(gomega.ConsistOf("first", "second"))
}

// Histories are deleted of Tasks that are not listed.
func TestAListOfTasksThatEndsEarlyIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := apierrors.NewTooManyRequests("later", 1)
		_, err := newLiveTasks(&pages{fails: []error{refused, refused, refused}}).liveUIDs(t.Context())
		gomega.NewWithT(t).Expect(err).To(gomega.HaveOccurred())
	})
}

// Whoever may import into one namespace must not be able to make the API server list all
// Tasks over and over.
func TestScansOfAllTasksArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		cluster := &pages{takes: 8 * time.Second}
		tasks := newLiveTasks(cluster)
		began := time.Now()
		for range 10 {
			_, err := tasks.HasUID(t.Context(), "none")
			g.Expect(err).NotTo(gomega.HaveOccurred())
		}
		g.Expect(cluster.scans).To(gomega.Equal(10))
		g.Expect(time.Since(began)).To(gomega.Equal(98*time.Second), "pauses of a quarter of a scan's duration")
		var all sync.WaitGroup
		for n := range 100 {
			all.Go(func() {
				uid := []string{"second", fmt.Sprint(n)}[n%2]
				found, err := tasks.HasUID(t.Context(), uid)
				g.Expect(err).NotTo(gomega.HaveOccurred())
				g.Expect(found).To(gomega.Equal(n%2 == 0))
			})
		}
		all.Wait()
		g.Expect(cluster.scans).To(gomega.Equal(11), "all waiting callers share one scan")
		advance(time.Minute)
	})
}

// Callers that cancel and ask again must not fill the memory with UIDs that nobody waits
// for.
func TestUIDsThatNobodyWaitsForAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		cluster := &pages{takes: 8 * time.Second}
		tasks := newLiveTasks(cluster)
		go func() { _, _ = tasks.HasUID(t.Context(), "first") }()
		synctest.Wait() // the scan has begun
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var all sync.WaitGroup
		for n := range 100 {
			all.Go(func() {
				_, err := tasks.HasUID(ctx, fmt.Sprint(n%50))
				g.Expect(err).To(gomega.MatchError(context.DeadlineExceeded))
			})
		}
		stays := make(chan bool, 1)
		go func() {
			patient, end := context.WithTimeout(t.Context(), 2*time.Second)
			defer end()
			_, err := tasks.HasUID(patient, "0")
			stays <- err != nil
		}()
		all.Wait()
		g.Expect(tasks.scans.next.uids).To(gomega.Equal(map[string]int{"0": 1}))
		g.Expect(<-stays).To(gomega.BeTrue())
		g.Expect(tasks.scans.next).To(gomega.BeNil())
		advance(time.Minute)
		g.Expect(cluster.scans).To(gomega.Equal(1), "nobody waits for a second scan")
		found, err := tasks.HasUID(t.Context(), "second")
		g.Expect(found, err).To(gomega.BeTrue(), "scans continue")
		advance(time.Minute)
	})
}

// One error must not fail the imports of all callers that share a scan.
func TestAScanSurvivesErrorsOfSinglePages(t *testing.T) {
	refused := apierrors.NewTooManyRequests("later", 1)
	for name, test := range map[string]struct {
		fails  []error
		begins int
		fit    bool
	}{
		"an error":                         {[]error{refused}, 1, true},
		"the rest of the list has expired": {[]error{apierrors.NewResourceExpired("too old"), refused}, 2, true},
		"errors do not end":                {[]error{refused, refused, refused}, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := gomega.NewWithT(t)
				cluster := &pages{fails: test.fails}
				tasks := newLiveTasks(cluster)
				found, err := tasks.HasUID(t.Context(), "second")
				g.Expect(err == nil).To(gomega.Equal(test.fit))
				g.Expect(found).To(gomega.Equal(test.fit))
				g.Expect(cluster.scans).To(gomega.Equal(test.begins))
				advance(time.Minute)
			})
		})
	}
}
