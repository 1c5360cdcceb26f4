package controller_test

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/go-logr/logr/testr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/namespaced"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/namespaceid"
	"github.com/clew-dev/clew/internal/testing/builders"
	"github.com/clew-dev/clew/internal/testing/pgtest"
)

// openPostgres returns a history store in a database of its own.
func openPostgres(t testing.TB) *postgres.Store {
	t.Helper()
	g := NewWithT(t)
	server, err := pgtest.Start(t.Context(), postgres.Migrate)
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { _ = server.Stop() })
	store, err := postgres.OpenPool(t.Context(), server.Database(t), testr.NewWithInterface(t, testr.Options{}), postgres.Pool{})
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(store.Close)
	return store
}

// namesOf returns the history store for users who name namespaces.
func namesOf(store *postgres.Store) *namespaced.Store {
	GinkgoHelper()
	names, err := namespaceid.New(server.Config)
	Expect(err).NotTo(HaveOccurred())
	return namespaced.New(store, names, GinkgoLogr)
}

// workRecorded returns the records of a checkpoint as a daemon ships them, with the files that
// changed.
func workRecorded(number int64) history.Record {
	c := &history.Checkpoint{
		Number: number, Trigger: string(v1alpha1.TriggerToolCalls), Time: time.Now(), Durable: true,
		Commit: fmt.Sprintf("%040x", number), Tree: fmt.Sprintf("%040x", number+1<<20), StateCommit: fmt.Sprintf("%040x", number+1<<21),
		FilesChanged: 60, LinesAdded: 300, LinesRemoved: 40, Files: 500, Bytes: 1 << 20, GitBranch: "main", DirtyFileCount: 60,
	}
	for i := range 60 {
		path := fmt.Sprintf("internal/some/folder/file_%d_%d.go", number, i)
		c.Changes = append(c.Changes, history.FileChange{Path: path, Action: string(v1alpha1.FileModified)})
		c.DirtyFiles = append(c.DirtyFiles, path)
	}
	return history.Record{Checkpoint: c}
}

// recordMany records this many checkpoints, a page at a time.
func recordMany(w *world, store *postgres.Store, task history.Task, many int64) {
	w.Helper()
	state, err := store.Begin(w.ctx, task, 1, nil, history.BeginOptions{})
	w.Expect(err).NotTo(HaveOccurred())
	sequence := state.LastSequence
	for number := int64(1); number <= many; {
		var page []history.Record
		for ; len(page) < 100 && number <= many; number++ {
			record := workRecorded(number)
			sequence++
			record.Sequence, record.Attempt, record.Time = sequence, 1, time.Now()
			page = append(page, record)
		}
		w.Expect(store.Append(w.ctx, task, 1, page)).To(Equal(sequence))
	}
}

// objectBytes returns how many objects the namespace's Checkpoints are, and how many bytes etcd
// stores for them.
func (w *world) objectBytes() (count, bytes int) {
	w.Helper()
	list := &v1alpha1.CheckpointList{}
	w.Expect(w.client.List(w.ctx, list, client.InNamespace(w.namespace))).To(Succeed())
	for i := range list.Items {
		text, err := json.Marshal(&list.Items[i])
		w.Expect(err).NotTo(HaveOccurred())
		count, bytes = count+1, bytes+len(text)
	}
	return count, bytes
}

// The checkpoints are 120, with CLEW_SOAK=1 1,000.
var _ = Describe("A task with many more checkpoints than its policy keeps", Label("slow"), func() {
	It("has 20 objects, all of them in its history, and a way back to each", func() {
		many := int64(120)
		if os.Getenv("CLEW_SOAK") == "1" {
			many = 1000
		}
		w := newWorld()
		w.stop()
		store := openPostgres(GinkgoTB())
		w.real, w.settle = namesOf(store), time.Second
		w.startManager()
		w.SetDefaultEventuallyTimeout(2 * time.Minute)
		w.running("work", builders.KeepLast(20))
		task := w.id("work")
		recordMany(w, store, task, many)

		var want []string
		for number := many - 19; number <= many; number++ {
			want = append(want, fmt.Sprintf("work-%d", number))
		}
		w.Eventually(w.checkpointNames).Should(ConsistOf(want))
		w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.CheckpointCount", many))
		rows := int64(0)
		for after := int64(0); ; rows = after {
			page, err := store.CheckpointsAfter(w.ctx, task.UID, after, 500)
			w.Expect(err).NotTo(HaveOccurred())
			if len(page) == 0 {
				break
			}
			after += int64(len(page))
		}
		w.Expect(rows).To(Equal(many), "checkpoints in the history")
		w.checkpoint(fmt.Sprintf("work-%d", many))
		count, bytes := w.objectBytes()
		GinkgoTB().Logf("%d checkpoints: %d objects with %d bytes in etcd; all of them would have %d", many, count, bytes, int(many)*bytes/count)
		w.Expect(bytes/count).To(BeNumerically("<", 16<<10), "bytes of an object")

		w.create(&v1alpha1.Checkpoint{ObjectMeta: metav1.ObjectMeta{Name: "third"}, Spec: v1alpha1.CheckpointSpec{
			TaskRef: v1alpha1.NameReference{Name: "work"}, Number: ptr.To[int64](3), Retention: v1alpha1.CheckpointKept,
		}})
		w.Expect(w.checkpoint("third").Status).To(And(HaveField("Number", BeEquivalentTo(3)), HaveField("Commit", workRecorded(3).Checkpoint.Commit)))
		w.Consistently(w.checkpointNames, 3*time.Second).Should(ConsistOf(append(want, "third")))

		writes := len(w.checkpointWrites())
		w.change("work", func(t *v1alpha1.Task) {
			builders.Rewind("by-number", "")(t)
			t.Spec.Rewind.To = v1alpha1.RewindTarget{CheckpointNumber: ptr.To[int64](5)}
		})
		w.Eventually(w.current).WithArguments("work").Should(HaveField("Status.Rewind", And(
			Not(BeNil()), HaveField("State", v1alpha1.OperationInProgress), HaveField("ToCheckpoint", BeEquivalentTo(5)))))
		w.Expect(w.checkpointWrites()).To(HaveLen(writes), "a rewind by number makes no object")
	})
})
