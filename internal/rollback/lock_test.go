package rollback_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clew-dev/clew/internal/rollback"
	"github.com/clew-dev/clew/internal/testing/apiserver"
)

var server *apiserver.Server

func TestMain(m *testing.M) { apiserver.Main(m, &server) }

const patience = 30 * time.Second

// world is a namespace with a lease.
type world struct {
	*testing.T
	*gomega.WithT
	namespace string
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, WithT: gomega.NewWithT(t)}
	w.SetDefaultEventuallyTimeout(patience)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "lease-"}}
	w.Expect(server.Client.Create(t.Context(), namespace)).To(gomega.Succeed())
	w.namespace = namespace.Name
	return w
}

// lock returns the lock of another process each time.
func (w *world) lock(pod string) *rollback.Lock {
	w.Helper()
	lock, err := rollback.NewLock(server.Config, w.namespace, pod, patience)
	w.Expect(err).NotTo(gomega.HaveOccurred())
	return lock
}

func (w *world) read() *coordinationv1.Lease {
	w.Helper()
	lease := &coordinationv1.Lease{}
	w.Expect(server.Client.Get(w.Context(), client.ObjectKey{Namespace: w.namespace, Name: rollback.LeaseName}, lease)).To(gomega.Succeed())
	return lease
}

// putBack restores an older state of the lease, except for its resource version, which is
// newer than any that was seen.
func (w *world) putBack(older *coordinationv1.Lease) {
	w.Helper()
	w.Eventually(func() error {
		lease := w.read()
		lease.Annotations, lease.Spec = older.Annotations, *older.Spec.DeepCopy()
		return server.Client.Update(w.Context(), lease)
	}).Should(gomega.Succeed())
}

// lead creates the lease, takes it over or renews it, as client-go's leader election does
// with this lock and clock.
func (w *world) lead(lock *rollback.Lock, clock time.Time) {
	w.Helper()
	record := resourcelock.LeaderElectionRecord{HolderIdentity: lock.Identity(), LeaseDurationSeconds: 60, RenewTime: metav1.NewTime(clock), AcquireTime: metav1.NewTime(clock)}
	found, _, err := lock.Get(w.Context())
	if client.IgnoreNotFound(err) == nil && err != nil {
		w.Expect(lock.Create(w.Context(), record)).To(gomega.Succeed())
		return
	}
	w.Expect(err).NotTo(gomega.HaveOccurred())
	record.LeaderTransitions = found.LeaderTransitions
	if found.HolderIdentity != lock.Identity() {
		record.LeaderTransitions++
	}
	w.Expect(lock.Update(w.Context(), record)).To(gomega.Succeed())
}

func TestAHolderWhoseLeaseWasRolledBackEndsAndLeavesItAlone(t *testing.T) {
	w := newWorld(t)
	lock := w.lock("manager-0")
	ctx, stop := context.WithCancel(t.Context())
	leads := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 3 * patience, RenewDeadline: 2 * patience, RetryPeriod: 50 * time.Millisecond, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { close(leads) }, OnStoppedLeading: func() {}},
	})
	w.Expect(err).NotTo(gomega.HaveOccurred())
	stopped := make(chan struct{})
	go func() { defer close(stopped); elector.Run(ctx) }()
	ended := make(chan error, 1)
	go func() { ended <- lock.Start(ctx) }()
	w.Eventually(leads).Should(gomega.BeClosed())
	older := w.read()
	w.Eventually(func() time.Time { return w.read().Spec.RenewTime.Time }).Should(gomega.BeTemporally(">", older.Spec.RenewTime.Time), "it is renewed")

	w.putBack(older)
	w.Eventually(ended).Should(gomega.Receive(gomega.MatchError(gomega.ContainSubstring("state was restored"))))
	stop()
	w.Eventually(stopped).Should(gomega.BeClosed())
	w.Expect(lock.Update(t.Context(), resourcelock.LeaderElectionRecord{})).NotTo(gomega.Succeed())
	w.Expect(lock.Create(t.Context(), resourcelock.LeaderElectionRecord{})).NotTo(gomega.Succeed())
	w.Expect(w.read().Spec).To(gomega.Equal(older.Spec), "the lease is unchanged, so that others notice")
}

func TestOthersNoticeAfterTheNextManagerHasTakenTheLeaseOver(t *testing.T) {
	for next, pod := range map[string]string{"in the same pod": "manager-0", "in another pod": "manager-1"} {
		t.Run(next, func(t *testing.T) {
			w := newWorld(t)
			holder, waiting := w.lock("manager-0"), w.lock("manager-2")
			now := time.Now()
			w.lead(holder, now)
			w.lead(holder, now.Add(time.Second))
			older := w.read()
			w.lead(holder, now.Add(2*time.Second))
			_, _, err := waiting.Get(t.Context())
			w.Expect(err).NotTo(gomega.HaveOccurred())
			seen := w.read()

			w.putBack(older)
			successor := w.lock(pod)
			w.lead(successor, now.Add(time.Minute))
			w.lead(successor, now.Add(2*time.Minute))
			_, _, err = waiting.Get(t.Context())
			w.Expect(err).To(gomega.MatchError(gomega.ContainSubstring("state was restored")), "a manager that waits for the lease")
			w.Expect(watch(t, sighting{lease: seen}, sighting{lease: w.read()})).To(gomega.MatchError(gomega.ContainSubstring("state was restored")), "a process that watches")
		})
	}
}

func TestTheLifeOfALeaseEndsNothing(t *testing.T) {
	w := newWorld(t)
	waiting := w.lock("manager-9")
	var life []sighting
	observe := func(what string) {
		t.Helper()
		_, _, err := waiting.Get(t.Context())
		w.Expect(err).NotTo(gomega.HaveOccurred(), what)
		life = append(life, sighting{lease: w.read()})
	}
	now := time.Now()
	first := w.lock("manager-0")
	w.lead(first, now)
	observe("it is created")
	w.lead(first, now.Add(time.Second))
	observe("it is renewed")
	w.lead(first, now.Add(-time.Hour))
	observe("its holder's clock is set back")
	w.lead(w.lock("manager-0"), now.Add(-time.Hour))
	observe("the next process in the pod takes it over")
	second := w.lock("manager-1")
	w.lead(second, now.Add(-time.Hour))
	observe("another pod, whose clock is slow, takes it over")
	w.Expect(second.Update(t.Context(), resourcelock.LeaderElectionRecord{LeaderTransitions: 1, RenewTime: metav1.NewTime(now), LeaseDurationSeconds: 1})).To(gomega.Succeed())
	observe("it is released")
	w.lead(w.lock("manager-0"), now.Add(time.Minute))
	observe("it is taken over after that")
	w.Expect(server.Client.Delete(t.Context(), w.read())).To(gomega.Succeed())
	w.lead(w.lock("manager-1"), now)
	observe("it is deleted and created again")
	w.Expect(watch(t, life...)).To(gomega.Succeed())
}

// Resource versions are no evidence here: they only grow.
func TestAWatchDetectsThatTheLeaseWasRolledBack(t *testing.T) {
	w := newWorld(t)
	holder := w.lock("manager-0")
	now := time.Now()
	w.lead(holder, now)
	older := w.read()
	w.lead(holder, now.Add(time.Second))

	watch, err := rollback.New(server.Config, w.namespace, logr.Discard())
	w.Expect(err).NotTo(gomega.HaveOccurred())
	watch.Interval = 10 * time.Millisecond
	read, seen := watch.Lease, make(chan struct{}, 1)
	watch.Lease = func(ctx context.Context) (*coordinationv1.Lease, error) {
		lease, err := read(ctx)
		if err == nil {
			select {
			case seen <- struct{}{}:
			default:
			}
		}
		return lease, err
	}
	ended := make(chan error, 1)
	go func() { ended <- watch.Start(t.Context()) }()
	w.Eventually(seen).Should(gomega.Receive())
	w.putBack(older)
	w.Eventually(ended).Should(gomega.Receive(gomega.MatchError(gomega.ContainSubstring("state was restored"))))
}
