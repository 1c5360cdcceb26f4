package server

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
)

// pages are a cluster with a Task on each of two pages. They count the looks at all.
type pages struct {
	metadata.Getter
	looks int
	takes time.Duration
}

func (p *pages) Resource(schema.GroupVersionResource) metadata.Getter { return p }

func (p *pages) List(_ context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	list, uid := &metav1.PartialObjectMetadataList{}, types.UID("first")
	if options.Continue == "" {
		p.looks++
		list.Continue = "more"
	} else {
		uid = "second"
		time.Sleep(p.takes)
	}
	list.Items = []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{UID: uid}}}
	return list, nil
}

func TestATaskIsFoundByItsUIDOnAnyPage(t *testing.T) {
	tasks := newLiveTasks(&pages{})
	for uid, want := range map[string]bool{"first": true, "second": true, "none": false} {
		g := gomega.NewWithT(t)
		found, err := tasks.HasUID(t.Context(), uid)
		g.Expect(err).NotTo(gomega.HaveOccurred())
		g.Expect(found).To(gomega.Equal(want), uid)
	}
}

// Whoever may import into one namespace must not have the API server list all Tasks
// again and again.
func TestLooksAtAllTasksHaveAPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		cluster := &pages{takes: 3 * time.Second}
		tasks := newLiveTasks(cluster)
		began := time.Now()
		for range 10 {
			_, err := tasks.HasUID(t.Context(), "none")
			g.Expect(err).NotTo(gomega.HaveOccurred())
		}
		g.Expect(cluster.looks).To(gomega.Equal(10))
		g.Expect(time.Since(began)).To(gomega.Equal(57*time.Second), "as long between them as they took")
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
		g.Expect(cluster.looks).To(gomega.Equal(11), "all who wait share one")
		time.Sleep(time.Minute)
	})
}
