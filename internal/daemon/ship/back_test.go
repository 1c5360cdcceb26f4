package ship_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/daemon/gateway"
	"github.com/clew-dev/clew/internal/daemon/ship"
	"github.com/clew-dev/clew/internal/daemon/spool"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// memory is a server that keeps records, and may be put back to an older copy.
type memory struct {
	records []*daemonv1.Record
}

func last(records []*daemonv1.Record) (int64, uint64) {
	if len(records) == 0 {
		return 0, 0
	}
	r := records[len(records)-1]
	return max(r.GetSequence(), r.GetGap().GetThrough()), r.GetId()
}

func (m *memory) Begin(context.Context, *daemonv1.Source) (*daemonv1.BeginResponse, error) {
	sequence, id := last(m.records)
	return &daemonv1.BeginResponse{LastSequence: sequence, LastRecordId: id}, nil
}

func (m *memory) Append(_ context.Context, records []*daemonv1.Record) (int64, error) {
	for _, r := range records {
		through, _ := last(m.records)
		if r.GetSequence() > through+1 {
			return 0, gateway.ErrGap
		}
		if r.GetSequence() == through+1 {
			m.records = append(m.records, r)
		}
	}
	through, _ := last(m.records)
	return through, nil
}

// back puts the server back to its first n records.
func (m *memory) back(n int) { m.records = m.records[:n:n] }

// told is what the server has, a gap as its two ends.
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

// TestAServerThatWentBack is put back at random, within the margin and beyond it:
// it ends with every record once and in order, but for those that nobody has any
// more, which are counted exactly.
func TestAServerThatWentBack(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 7))
			s := filled(t, 0)
			s.Keep(spool.Margin{Bytes: 12 << 20, Age: time.Hour})
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
				t.Fatalf("%v, %v", err, srv.told())
			}
		})
	}
}
