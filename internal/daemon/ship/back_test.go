package ship_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/go-logr/logr"
	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/ship"
	"github.com/clew-dev/clew/internal/daemon/spool"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// memory is a server that keeps records, and may be restored from an older copy. It refuses
// records of a task that has not begun.
type memory struct {
	began   bool
	records []*daemonv1.Record
	wrong   error // what it answers to every batch; nil for nothing
}

func last(records []*daemonv1.Record) (int64, uint64) {
	if len(records) == 0 {
		return 0, 0
	}
	r := records[len(records)-1]
	return max(r.GetSequence(), r.GetGap().GetThrough()), r.GetId()
}

func (m *memory) Begin(context.Context) (*daemonv1.BeginResponse, error) {
	m.began = true
	sequence, id := last(m.records)
	return &daemonv1.BeginResponse{LastSequence: sequence, LastRecordId: id}, nil
}

func (m *memory) Append(_ context.Context, records []*daemonv1.Record) (int64, error) {
	if m.wrong != nil {
		return 0, m.wrong
	}
	if !m.began {
		return 0, gatewayclient.ErrNotFound
	}
	for _, r := range records {
		through, _ := last(m.records)
		if r.GetSequence() > through+1 {
			return 0, gatewayclient.ErrGap
		}
		if r.GetSequence() == through+1 {
			m.records = append(m.records, r)
		}
	}
	through, _ := last(m.records)
	return through, nil
}

// back restores the server to its first n records; with n = 0, to before the task began.
func (m *memory) back(n int) { m.records, m.began = m.records[:n:n], n > 0 }

// told lists what the server has, with a gap as its two ends.
func (m *memory) told() (out []string) {
	for _, r := range m.records {
		if g := r.GetGap(); g != nil {
			out = append(out, fmt.Sprintf("gap %d-%d", r.GetSequence(), g.GetThrough()))
			continue
		}
		text, _, _ := strings.Cut(r.GetMessage().GetText(), " ")
		out = append(out, text)
	}
	return out
}

func say(t *testing.T, s *spool.Spool, text string) {
	t.Helper()
	m := &daemonv1.Message{Text: text}
	if err := s.Append(nil, &daemonv1.Record{Body: &daemonv1.Record_Message{Message: m}}); err != nil {
		t.Fatal(err)
	}
}

func drain(t *testing.T, srv *memory, s *spool.Spool) {
	t.Helper()
	if err := ship.New(srv, s, logr.Discard()).Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestAServerThatWentBack restores the server at random, within the margin and beyond it:
// it ends with every record once and in order, except those lost everywhere, which are
// counted exactly.
func TestAServerThatWentBack(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 7))
			s := filled(t, 0)
			s.SetMargin(spool.Margin{Bytes: 12 << 20, Age: time.Hour})
			srv := &memory{}
			shipper := ship.New(srv, s, logr.Discard())
			said, gone := int64(0), map[int64]bool{}
			pad := strings.Repeat("x", 1<<20)
			for range 60 {
				said++
				say(t, s, fmt.Sprint(said, " ", pad))
				if random.IntN(3) > 0 {
					continue
				}
				if err := shipper.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
				if random.IntN(4) == 0 {
					srv.back(random.IntN(len(srv.records) + 1))
					through, _ := last(srv.records)
					for n := through + 1; n < s.First(); n++ {
						gone[n] = true
					}
				}
				if random.IntN(4) == 0 { // the daemon starts again
					shipper = ship.New(srv, s, logr.Discard())
				}
			}
			drain(t, srv, s)
			next := int64(1)
			for _, r := range srv.records {
				if r.GetSequence() != next {
					t.Fatalf("%d follows %d: %v", r.GetSequence(), next-1, srv.told())
				}
				through := max(next, r.GetGap().GetThrough())
				for ; next <= through; next++ {
					if lost := r.GetGap() != nil; lost != gone[next] {
						t.Fatalf("record %d: told as lost %v, is lost %v: %v", next, lost, gone[next], srv.told())
					}
				}
			}
			if next != said+1 {
				t.Fatalf("%d records of %d: %v", next-1, said, srv.told())
			}
		})
	}
}

// watcher calls itself with what Shipped is given.
type watcher struct {
	shipped func(error)
	back    func()
}

func (w watcher) Shipped(err error) {
	if w.shipped != nil {
		w.shipped(err)
	}
}

func (w watcher) WentBack() { w.back() }

// TestAServerThatIsOlderThanTheTask does not know the task: it is begun again there, and
// gets every record again, even if there was none to send at that time.
func TestAServerThatIsOlderThanTheTask(t *testing.T) {
	for _, had := range []int{0, 1, 3} {
		t.Run(fmt.Sprint("which had sent ", had), func(t *testing.T) {
			s, srv := filled(t, had), &memory{}
			s.SetMargin(spool.Margin{Bytes: 1 << 20, Age: time.Hour})
			lost := 0
			shipper := ship.NewWatched(srv, s, logr.Discard(), watcher{back: func() { lost++ }}, 0)
			if err := shipper.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			srv.back(0)
			say(t, s, "next")
			if err := shipper.Drain(t.Context()); err != nil {
				t.Fatal(err)
			}
			if len(srv.records) != had+1 || (lost > 0) != (had > 0) {
				t.Errorf("%v; told of a loss %d times", srv.told(), lost)
			}
		})
	}
}

// TestPersistentRefusalIsReported: only refusals by the server are reported, and for as long as
// they last.
func TestPersistentRefusalIsReported(t *testing.T) {
	for name, tt := range map[string]struct {
		wrong error
		told  bool
	}{
		"it does not know the task, whatever it is told": {fmt.Errorf("append: %w: %w", gatewayclient.ErrNotFound, connect.NewError(connect.CodeNotFound, nil)), true},
		"it fails":                      {connect.NewError(connect.CodeInternal, nil), true},
		"it cannot be reached":          {connect.NewError(connect.CodeUnavailable, nil), false},
		"it is full, as it says itself": {connect.NewError(connect.CodeResourceExhausted, nil), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := &refusing{}
			srv.wrong = tt.wrong
			s := filled(t, 1)
			told := make(chan error, 100)
			shipper := ship.NewWatched(srv, s, logr.Discard(), watcher{shipped: func(err error) { told <- err }}, time.Millisecond)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			done := make(chan error, 1)
			go func() { done <- shipper.Run(ctx) }()
			srv.until(t, 4)
			srv.relent()
			if err := shipper.WaitStored(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			stop()
			<-done
			close(told)
			var all []error
			for err := range told {
				all = append(all, err)
			}
			if was := len(all) > 1 && errors.Is(all[0], tt.wrong); was != tt.told || all[len(all)-1] != nil {
				t.Errorf("told: %v", all)
			}
		})
	}
}

func TestRecordsOfAnotherWriterAreNotTakenForTheSpools(t *testing.T) {
	for name, tt := range map[string]struct{ own, theirs int }{
		"as many":    {2, 2},
		"fewer":      {4, 2},
		"more":       {1, 3},
		"and no own": {0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			s, other, srv := filled(t, 3), filled(t, 3), &memory{}
			for n := range tt.theirs {
				say(t, other, fmt.Sprint("theirs", n))
			}
			drain(t, srv, other)
			for n := range tt.own {
				say(t, s, fmt.Sprint("own", n))
			}
			before := len(srv.records)
			err := ship.New(srv, s, logr.Discard()).Run(t.Context())
			if !errors.Is(err, ship.ErrForeign) || len(srv.records) != before {
				t.Fatalf("the error is %v, want ErrForeign, and the server has %v", err, srv.told())
			}
		})
	}
}

// refusing is a memory for a shipper that runs in the background.
type refusing struct {
	memory

	mu    sync.Mutex
	asked int
}

func (r *refusing) Begin(ctx context.Context) (*daemonv1.BeginResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.memory.Begin(ctx)
}

func (r *refusing) Append(ctx context.Context, records []*daemonv1.Record) (int64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	return r.memory.Append(ctx, records)
}

func (r *refusing) until(t *testing.T, asked int) {
	t.Helper()
	gomega.NewWithT(t).Eventually(func() int {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.asked
	}).WithTimeout(time.Minute).Should(gomega.BeNumerically(">=", asked))
}

func (r *refusing) relent() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wrong = nil
}

// unheard is a memory whose answers are lost.
type unheard struct {
	*memory
	lost bool
}

func (u *unheard) Append(ctx context.Context, records []*daemonv1.Record) (int64, error) {
	through, err := u.memory.Append(ctx, records)
	if u.lost {
		return 0, errors.New("connection reset")
	}
	return through, err
}

// TestAGapOfWhichTheServerHasTheBeginning: the answer to a batch was lost, and then the
// disk lost the records of that batch, and one more.
func TestAGapOfWhichTheServerHasTheBeginning(t *testing.T) {
	g, dir := gomega.NewWithT(t), t.TempDir()
	s, err := spool.Open(dir)
	g.Expect(err).NotTo(gomega.HaveOccurred())
	t.Cleanup(func() { s.Close() })
	say(t, s, "1")
	srv := &unheard{memory: &memory{}}
	shipper := ship.New(srv, s, logr.Discard())
	g.Expect(shipper.Drain(t.Context())).To(gomega.Succeed())
	segments, err := filepath.Glob(filepath.Join(dir, "*.log"))
	g.Expect(err).NotTo(gomega.HaveOccurred())
	g.Expect(segments).To(gomega.HaveLen(1))
	intact, err := os.Stat(segments[0])
	g.Expect(err).NotTo(gomega.HaveOccurred())
	say(t, s, "2")
	srv.lost = true
	g.Expect(shipper.Drain(t.Context())).NotTo(gomega.Succeed())
	srv.lost = false
	say(t, s, "3")
	g.Expect(os.Truncate(segments[0], intact.Size())).To(gomega.Succeed())
	g.Expect(shipper.Drain(t.Context())).To(gomega.Succeed())
	g.Expect(srv.told()).To(gomega.Equal([]string{"1", "2", "gap 3-3"}))
}
