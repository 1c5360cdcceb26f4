package controller_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/builders"
)

// firstWrite returns the index of the first write whose method and path have this prefix and
// suffix; -1 if there is none.
func firstWrite(writes []string, prefix, suffix string) int {
	return slices.IndexFunc(writes, func(w string) bool { return strings.HasPrefix(w, prefix) && strings.HasSuffix(w, suffix) })
}

// objectsOf lists the numbers in the names of the Checkpoints that exist.
func (w *world) objectsOf(task string) map[string]bool {
	w.Helper()
	list := &v1alpha1.CheckpointList{}
	w.Expect(w.client.List(w.ctx, list, client.InNamespace(w.namespace), client.MatchingLabels{v1alpha1.LabelTask: task})).To(Succeed())
	names := map[string]bool{}
	for _, c := range list.Items {
		names[c.Name] = true
	}
	return names
}

func (w *world) recordMany(name string, n int) {
	w.Helper()
	rows := make([]history.Checkpoint, n)
	for i := range rows {
		rows[i] = history.Checkpoint{Attempt: 1, Trigger: string(v1alpha1.TriggerToolCalls), Time: time.Now(), Durable: true}
	}
	w.store.AddCheckpoints(w.id(name), rows...)
}

var _ = Describe("the share of a namespace", func() {
	It("prevents a task from waiting for those of another namespace", Serial, func() {
		t := GinkgoTB()
		const crowd = 60
		w := newWorld()
		w.neighbour = w.newNamespace()
		w.restartManager()
		// Nothing is written until the whole crowd is queued, and the neighbour behind it.
		release := make(chan struct{})
		w.requests.setSpoil(func(*http.Request) error { <-release; return nil })
		for n := range crowd {
			w.apply(fmt.Sprintf("crowd-%d", n))
		}
		w.Eventually(w.requests.list).ShouldNot(BeEmpty())
		quiet := builders.Task("quiet", builders.InNamespace(w.neighbour))
		w.Expect(w.client.Create(w.ctx, quiet)).To(Succeed())
		close(release)

		status := "PUT /apis/clew.dev/v1alpha1/namespaces/"
		w.Eventually(func() int { return firstWrite(w.requests.list(), status+w.neighbour, "/quiet/status") }).Should(BeNumerically(">=", 0))
		writes := w.requests.list()
		before := map[string]bool{}
		for _, path := range writes[:firstWrite(writes, status+w.neighbour, "/quiet/status")] {
			if strings.HasPrefix(path, status+w.namespace) {
				before[path] = true
			}
		}
		if len(before) > crowd/4 {
			t.Errorf("%d of %d tasks of another namespace had their status first", len(before), crowd)
		}
	})

	It("leaves workers to other namespaces, however long its tasks take", Serial, func() {
		const crowd = 20 // more than there are workers
		w := newWorld()
		w.neighbour, w.workers = w.newNamespace(), 4
		w.restartManager()
		release := make(chan struct{})
		w.requests.setSpoil(func(r *http.Request) error {
			if strings.Contains(r.URL.Path, "/namespaces/"+w.namespace+"/") {
				<-release
			}
			return nil
		})
		DeferCleanup(func() { close(release) })
		for n := range crowd {
			w.apply(fmt.Sprintf("crowd-%d", n))
		}
		w.Eventually(w.requests.list).ShouldNot(BeEmpty())
		quiet := builders.Task("quiet", builders.InNamespace(w.neighbour))
		w.Expect(w.client.Create(w.ctx, quiet)).To(Succeed())
		w.Eventually(w.objects.Object(quiet)).Should(HaveField("Status.Conditions", ContainElement(HaveField("Type", v1alpha1.TaskSucceeded))))
		ofCrowd := func(write string) bool { return strings.Contains(write, "/namespaces/"+w.namespace+"/") }
		w.Expect(slices.DeleteFunc(w.requests.list(), func(write string) bool { return !ofCrowd(write) })).To(HaveLen(3), "three of the four workers wait for a first write of the crowd")
	})

	It("gets objects for thousands of checkpoints page by page", Label("slow"), func() {
		t := GinkgoTB()
		w := newWorld()
		w.running("busy")
		w.recordMany("busy", 4000)
		w.Eventually(w.current).WithArguments("busy").Should(HaveField("Status.LatestCheckpoint", HaveValue(HaveField("Number", BeEquivalentTo(4000)))))
		task := w.task("busy")
		w.Expect(task.Status.CheckpointObjectsThrough).NotTo(BeNil())
		w.Expect(task.Status.LatestCheckpoint.Name).To(Equal("busy-4000"))
		w.Expect(w.objectsOf("busy")).To(HaveKey("busy-4000"))

		// Each status write follows after few objects.
		writes := w.requests.list()
		made := 0
		for _, write := range writes[firstWrite(writes, "POST", "/pods"):] {
			switch {
			case strings.HasPrefix(write, "POST") && strings.HasSuffix(write, "/checkpoints"):
				made++
			case strings.HasPrefix(write, "PUT") && strings.HasSuffix(write, "/tasks/busy/status"):
				made = 0
			}
			if made > 60 {
				t.Fatalf("%d objects were created for one task at a time", made)
			}
		}
		// Another task is reconciled in the meantime.
		w.running("other")
		if through := w.task("busy").Status.CheckpointObjectsThrough; through == nil {
			t.Error("4000 objects were created before another task of the namespace ran")
		}
	})

	It("gets an object for every checkpoint, however many there are", func() {
		w := newWorld()
		w.SetDefaultEventuallyTimeout(time.Minute)
		w.running("busy")
		w.recordMany("busy", 120)
		w.Eventually(w.current).WithArguments("busy").Should(SatisfyAll(
			HaveField("Status.LatestCheckpoint", Not(BeNil())),
			HaveField("Status.CheckpointObjectsThrough", BeNil()),
		))
		names := w.objectsOf("busy")
		for n := range 120 {
			w.Expect(names).To(HaveKey(fmt.Sprintf("busy-%d", n+1)))
		}
	})
})
