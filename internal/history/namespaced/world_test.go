package namespaced_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/namespaced"
	"github.com/clew-dev/clew/internal/history/postgres"
	"github.com/clew-dev/clew/internal/namespaceid"
	"github.com/clew-dev/clew/internal/testing/apiserver"
	"github.com/clew-dev/clew/internal/testing/pgtest"
)

var (
	pg      *pgtest.Server
	cluster kubernetes.Interface
	names   func() *namespaceid.Reader
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m, &pg, postgres.Migrate)) }

func TestSpecs(t *testing.T) {
	RegisterFailHandler(Fail)
	server, err := apiserver.Start()
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() { NewWithT(t).Expect(server.Stop()).To(Succeed()) })
	if cluster, err = kubernetes.NewForConfig(server.Config); err != nil {
		t.Fatal(err)
	}
	names = func() *namespaceid.Reader {
		reader, err := namespaceid.New(server.Config)
		Expect(err).NotTo(HaveOccurred())
		return reader
	}
	RunSpecs(t, "Histories of namespaces")
}

// world has a history in Postgres, and namespaces in an API server.
type world struct {
	keyed *postgres.Store
	log   []string
	code  told
	// goneBytes is the metric; nil for none.
	goneBytes prometheus.Gauge
}

// told is a store of code that notes which keys it is told, by name and UID.
type told struct {
	down      bool
	keys      map[string]string
	gone      []string
	unclaimed []string
}

func (c *told) TellNamespaces(_ context.Context, namespaces []history.Namespace) ([]string, error) {
	if c.down {
		return nil, errors.New("the gitstore is down")
	}
	c.keys, c.gone = map[string]string{}, nil
	for _, namespace := range namespaces {
		if namespace.Gone {
			c.gone = append(c.gone, namespace.UID)
		}
		c.keys[namespace.Name+"@"+namespace.UID] = namespace.Key
	}
	return c.unclaimed, nil
}

func newWorld(ctx context.Context) *world {
	GinkgoHelper()
	w := &world{}
	var err error
	w.keyed, err = postgres.Open(ctx, pg.Database(GinkgoTB()), GinkgoLogr)
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(w.keyed.Close)
	return w
}

// store returns the store of a process that starts now, and knows nothing yet.
func (w *world) store() *namespaced.Store {
	log := funcr.New(func(_, line string) { w.log = append(w.log, line) }, funcr.Options{})
	return namespaced.New(w.keyed, names(), log)
}

// grant carries grants out, as a server that starts now.
func (w *world) grant(ctx context.Context, grants ...string) {
	GinkgoHelper()
	parsed, err := namespaced.ParseGrants(grants)
	Expect(err).NotTo(HaveOccurred())
	log := funcr.New(func(_, line string) { w.log = append(w.log, line) }, funcr.Options{})
	(&namespaced.Grants{Store: w.keyed, Names: names(), Code: &w.code, Grants: parsed, GoneBytes: w.goneBytes, Log: log}).CarryOut(ctx)
}

// create makes a namespace and returns its UID.
func create(ctx context.Context, name string) string {
	GinkgoHelper()
	made, err := cluster.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	Expect(err).NotTo(HaveOccurred())
	return string(made.UID)
}

// remove removes a namespace, as the API server's controller does once its objects are gone.
func remove(ctx context.Context, name string) {
	GinkgoHelper()
	Expect(cluster.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{})).To(Succeed())
	gone, err := cluster.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	Expect(err).NotTo(HaveOccurred())
	gone.Spec.Finalizers = nil
	Expect(cluster.CoreV1().Namespaces().Finalize(ctx, gone, metav1.UpdateOptions{})).Error().NotTo(HaveOccurred())
	_, err = cluster.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	Expect(apierrors.IsNotFound(err)).To(BeTrue(), "the namespace is gone: %v", err)
}

// remake makes a namespace anew under its name, and returns its new UID.
func remake(ctx context.Context, name string) string {
	GinkgoHelper()
	remove(ctx, name)
	return create(ctx, name)
}

func task(namespace, name, uid string) history.Task {
	return history.Task{Namespace: namespace, Name: name, UID: uid}
}

const secret = "xylophone"

// work records a task with one attempt, a text in pieces, a rewind and two checkpoints.
func work(ctx context.Context, store *namespaced.Store, t history.Task) {
	GinkgoHelper()
	Expect(store.Begin(ctx, t, 1, nil, history.BeginOptions{SnapshotEveryMessages: 1})).Error().NotTo(HaveOccurred())
	var records []history.Record
	add := func(r history.Record) {
		r.Sequence, r.Attempt, r.Time = int64(len(records)+1), 1, time.Now()
		records = append(records, r)
	}
	whole := longText(t.UID)
	cut := &conversation.Pieces{Hashes: [][]byte{conversation.PieceHash(whole)}, Bytes: int64(len(whole))}
	add(history.Record{Message: &conversation.Message{Role: conversation.RoleUser, Text: "play the " + secret + " of " + t.UID}})
	add(history.Record{Piece: []byte(whole)})
	add(history.Record{Message: &conversation.Message{Role: conversation.RoleAssistant, Text: whole[:20], TextPieces: cut}})
	for n := int64(1); n <= 2; n++ {
		add(history.Record{Checkpoint: &history.Checkpoint{Number: n, Trigger: "ToolCalls", Time: time.Now(), Commit: fmt.Sprintf("c%d", n), Durable: true}})
	}
	Expect(store.Append(ctx, t, 1, records)).To(BeEquivalentTo(len(records)))
	Expect(store.MoveConversation(ctx, t, 1, history.MoveOperation{ID: "Rewind/r/done", Checkpoint: 2, Reason: "Rewind"})).Error().NotTo(HaveOccurred())
	Expect(store.RecordEvents(ctx, []history.Event{started(t)})).To(Succeed())
	Expect(store.KeepSpec(ctx, t.Key(), history.KeptSpec{Spec: "{}"})).To(Succeed())
}

func longText(seed string) string {
	text := ""
	for len(text) < 20<<10 {
		text += seed + " "
	}
	return text
}

func started(t history.Task) history.Event {
	return history.Event{ID: history.EventID(t.UID, 1), Transition: 1, Oldest: true, Task: t, Time: time.Now(), Type: history.EventTypeTask, Reason: "TaskStarted", State: "Running",
		Publication: &history.Publication{Ref: "refs/heads/work", Commit: "c1"}}
}

// lines are those of an export.
func lines(all []history.ExportLine) iter.Seq2[history.ExportLine, error] {
	return func(yield func(history.ExportLine, error) bool) {
		for _, line := range all {
			if !yield(line, nil) {
				return
			}
		}
	}
}
