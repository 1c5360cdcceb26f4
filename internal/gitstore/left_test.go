package gitstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// TestWhatEarlierNamespacesHaveLeftCountsBeyondOneQuotaOnly: the next namespace of the name is not
// refused for it; but who makes and deletes a namespace again and again gets no more than two quotas.
func TestWhatEarlierNamespacesHaveLeftCountsBeyondOneQuotaOnly(t *testing.T) {
	limits := Limits{NamespaceBytes: 1 << 20}
	first := newTestServer(t, limits)
	keys := []gitstoreapi.Namespace{team(uidOfTeam, "team")}
	// pushed stores 0.8 MiB, of which the quota leaves no room for a second time.
	pushed := func(server *testServer, uid string) {
		t.Helper()
		if uid != uidOfTeam {
			keys = append(keys, team(uid, "team@"+uid))
		}
		server.tell(keys...)
		task := server.client(fmt.Sprintf("task:team:fix:uid-%s:1", uid))
		task.commit("a", noise(1_600_000))
		task.push(fmt.Sprintf("HEAD:refs/clew/uid-%s/code/1", uid))
		task.commit("b", noise(1_600_000))
		task.refusedPush(gitstoreapi.QuotaExceeded, "the rest of namespace team's quota of 1048576 bytes", fmt.Sprintf("HEAD:refs/clew/uid-%s/code/2", uid))
	}
	pushed(first, uidOfTeam)
	second := serveNamespace(t, first.store, limits, wordOfToken{uid: uidAnew})
	pushed(second, uidAnew)

	third := serveNamespace(t, first.store, limits, wordOfToken{uid: "uid-of-third"})
	third.tell(append(keys, team("uid-of-third", "team@third"))...)
	greedy := third.client("task:team:fix:uid-third:1")
	greedy.commit("a", noise(1_600_000))
	greedy.refusedPush(gitstoreapi.QuotaExceeded, "quota of 1048576 bytes beside what earlier namespaces of this name have left", "HEAD:refs/clew/uid-third/code/1")

	// An operator sees what is left.
	for n := range keys {
		keys[n].Gone = true
	}
	third.tell(append(keys, team("uid-of-third", "team@third"))...)
	third.handler.measureLeft(t.Context(), third.handler.log)
	if bytes := testutil.ToFloat64(third.handler.metrics.left); bytes < 1_600_000 || bytes > 2_000_000 {
		t.Errorf("what is gone takes %v bytes, says the metric", bytes)
	}
	third.tell(keys...)
	third.handler.measureLeft(t.Context(), third.handler.log)
	if bytes := testutil.ToFloat64(third.handler.metrics.left); bytes < 1_600_000 || bytes > 2_000_000 {
		t.Errorf("without a namespace of the name, what is gone takes %v bytes, says the metric", bytes)
	}
	// It is the present one's once it is granted.
	fourth := serveNamespace(t, first.store, limits, wordOfToken{uid: uidAnew})
	fourth.tell(team(uidOfTeam, "team"), team(uidAnew, "team"))
	late := fourth.client("task:team:other:uid-other:1")
	late.commit("a", "small")
	late.refusedPush(gitstoreapi.QuotaExceeded, "and its quota is 1048576; delete Tasks", "HEAD:refs/clew/uid-other/code/1")
}

func TestWhatIsLeftIsMeasuredInTheBackgroundAndSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l left
		count := int64(0)
		ask := func() (int64, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			return l.of(ctx, namespaceOf{"team", uidAnew}, func(context.Context) int64 {
				time.Sleep(50 * time.Second)
				count++
				return 100 * count
			})
		}
		expect := func(when string, want int64) {
			t.Helper()
			if bytes, err := ask(); bytes != want || err != nil {
				t.Errorf("%s, %d bytes are left: %v", when, bytes, err)
			}
		}
		for range 2 {
			if _, err := ask(); !errors.Is(err, errMeasuring) {
				t.Errorf("while it is measured: %v", err)
			}
		}
		expect("when the first measurement ends", 100)
		time.Sleep(83 * time.Minute)
		expect("before it has rested a hundred times as long", 100)
		time.Sleep(2 * time.Minute)
		expect("while it is measured again", 100)
		time.Sleep(2 * time.Minute)
		expect("then", 200)
	})
}

// TestWhatIsLeftIsMeasuredForOneNamespaceAtATime, however many were made anew at once.
func TestWhatIsLeftIsMeasuredForOneNamespaceAtATime(t *testing.T) {
	var l left
	var running, most atomic.Int32
	release := make(chan struct{})
	measure := func(context.Context) int64 {
		now := running.Add(1)
		defer running.Add(-1)
		most.Store(max(most.Load(), now))
		<-release
		return 7
	}
	hurried, cancel := context.WithCancel(t.Context())
	cancel()
	of := func(ctx context.Context, i int) (int64, error) {
		return l.of(ctx, namespaceOf{fmt.Sprintf("team-%d", i), uidAnew}, measure)
	}
	for i := range 20 {
		if _, err := of(hurried, i); !errors.Is(err, errMeasuring) {
			t.Fatalf("the first answer is %v, want %v", err, errMeasuring)
		}
	}
	close(release)
	for i := range 20 {
		if bytes, err := of(t.Context(), i); bytes != 7 || err != nil {
			t.Errorf("namespace %d: %d, %v", i, bytes, err)
		}
	}
	if most.Load() != 1 {
		t.Errorf("%d measurements ran at once, want one", most.Load())
	}
}

// TestNobodyWaitsForTheMeasurementsOfOthers: until it is a namespace's turn, it may store what it may
// at most afterwards.
func TestNobodyWaitsForTheMeasurementsOfOthers(t *testing.T) {
	limits := Limits{NamespaceBytes: 1 << 20}
	first := newTestServer(t, limits)
	first.tell(team(uidOfTeam, "team"))
	old := first.client("task:team:fix:uid-old:1")
	old.commit("a", noise(800_000))
	old.push("HEAD:refs/clew/uid-old/code/1")

	server := serveNamespace(t, first.store, limits, wordOfToken{uid: uidAnew})
	server.tell(team(uidOfTeam, "team"), team(uidAnew, "team@"+uidAnew))
	hurried, cancel := context.WithCancel(t.Context())
	cancel()
	_, _ = server.handler.left.of(hurried, namespaceOf{"slow", uidAnew}, func(context.Context) int64 { <-t.Context().Done(); return 0 })
	task := server.client("task:team:fix:uid-new:1")
	task.commit("a", noise(1_600_000))
	task.push("HEAD:refs/clew/uid-new/code/1")
	task.commit("b", noise(2_000_000))
	task.refusedPush(gitstoreapi.QuotaExceeded, "beside what earlier namespaces of this name have left", "HEAD:refs/clew/uid-new/code/2")
}

// TestNothingIsMeasuredAfterTheHandlerIsClosed: neither for those whose turn has yet to come, nor for the
// one in progress, for which Close waits.
func TestNothingIsMeasuredAfterTheHandlerIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l left
		var measured []string
		ended := false
		for _, name := range []string{"first", "second", "third"} {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_, _ = l.of(ctx, namespaceOf{name, uidAnew}, func(ctx context.Context) int64 {
				measured = append(measured, name)
				<-ctx.Done()
				time.Sleep(time.Second)
				ended = true
				return 7
			})
			synctest.Wait()
		}
		l.stop()
		if _, err := l.of(t.Context(), namespaceOf{"late", uidAnew}, func(context.Context) int64 { return 7 }); !errors.Is(err, errMeasuring) {
			t.Errorf("afterwards: %v", err)
		}
		if want := []string{"first"}; !slices.Equal(measured, want) || !ended {
			t.Errorf("it was measured for %v, want %v; the measurement has ended: %t", measured, want, ended)
		}
	})
}

// TestNothingIsMeasuredForANamespaceThatIsGone: neither one whose turn has yet to come, nor one in progress.
func TestNothingIsMeasuredForANamespaceThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l left
		var measured []string
		ask := func(name, uid string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := l.of(ctx, namespaceOf{name, uid}, func(ctx context.Context) int64 {
				measured = append(measured, name+" "+uid)
				<-ctx.Done()
				return 7
			})
			if !errors.Is(err, errMeasuring) {
				t.Errorf("%s %s: %v", name, uid, err)
			}
		}
		ask("slow", "1")
		ask("team", "1")
		ask("team", "2")
		ask("slow", "2")
		time.Sleep(2 * leftTimeout)
		synctest.Wait()
		slices.Sort(measured[1:])
		if want := []string{"slow 1", "slow 2", "team 2"}; !slices.Equal(measured, want) {
			t.Errorf("it was measured for %v, want %v", measured, want)
		}
		for _, who := range []namespaceOf{{"slow", "2"}, {"team", "2"}} {
			if bytes, err := l.bytes(l.known[who]); bytes != 7 || err != nil {
				t.Errorf("%v: %d, %v", who, bytes, err)
			}
		}
	})
}
