package controller_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/testing/apiserver"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// crowdTasks is the number of tasks that BenchmarkShares applies in one namespace.
const crowdTasks = 4000

// BenchmarkShares measures how long a task of one namespace waits for its first
// status (other-ms) when 4,000 of another namespace were applied before it, and
// how long those take (crowd-s).
func BenchmarkShares(b *testing.B) {
	server, err := apiserver.Start()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = server.Stop() })
	for b.Loop() {
		b.StopTimer()
		w := newWorldOf(b, server)
		w.SetDefaultEventuallyTimeout(10 * time.Minute)
		w.neighbour = w.newNamespace()
		w.stop()
		var group sync.WaitGroup
		for part := range 16 {
			group.Go(func() {
				for n := part; n < crowdTasks; n += 16 {
					w.apply(fmt.Sprintf("crowd-%d", n))
				}
			})
		}
		group.Wait()
		w.startManager()
		begin := time.Now()
		b.StartTimer()
		w.Eventually(w.withStatus).Should(BeNumerically(">", 0))
		applied := time.Now()
		quiet := builders.Task("quiet", builders.InNamespace(w.neighbour))
		w.Expect(w.client.Create(w.ctx, quiet)).To(Succeed())
		w.Eventually(w.objects.Object(quiet)).Should(HaveField("Status.Conditions", ContainElement(HaveField("Type", v1alpha1.TaskSucceeded))))
		b.ReportMetric(float64(time.Since(applied).Milliseconds()), "other-ms")
		b.ReportMetric(float64(w.withStatus()), "crowd-before")
		w.Eventually(w.withStatus, 10*time.Minute, time.Second).Should(Equal(crowdTasks))
		b.ReportMetric(time.Since(begin).Seconds(), "crowd-s")
	}
}

// withStatus returns the number of tasks in the world's namespace that have a status.
func (w *world) withStatus() (count int) {
	list := &v1alpha1.TaskList{}
	w.Expect(w.client.List(w.ctx, list, client.InNamespace(w.namespace))).To(Succeed())
	for _, t := range list.Items {
		if len(t.Status.Conditions) > 0 {
			count++
		}
	}
	return count
}
