package ship_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/ship"
	"github.com/clew-dev/clew/internal/daemon/spool"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// server stores records by the rules of the real one.
type server struct {
	stored []int64
	errs   []error // given out first, one a call; nil stores and answers
	lost   bool    // stores, but the answer is lost, once
}

func (s *server) Begin(context.Context) (*daemonv1.BeginResponse, error) {
	return &daemonv1.BeginResponse{LastSequence: int64(len(s.stored))}, nil
}

func (s *server) Append(_ context.Context, records []*daemonv1.Record) (int64, error) {
	if len(s.errs) > 0 {
		err := s.errs[0]
		if s.errs = s.errs[1:]; err != nil {
			return 0, err
		}
	}
	for _, r := range records {
		last := int64(len(s.stored))
		if r.GetSequence() > last+1 {
			return 0, gatewayclient.ErrGap
		}
		if r.GetSequence() == last+1 {
			s.stored = append(s.stored, r.GetSequence())
		}
	}
	if s.lost {
		s.lost = false
		return 0, errors.New("connection reset")
	}
	return int64(len(s.stored)), nil
}

func filled(t *testing.T, n int) *spool.Spool {
	t.Helper()
	s, err := spool.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	for i := range n {
		m := &daemonv1.Message{Text: fmt.Sprint(i)}
		if err := s.Append(nil, &daemonv1.Record{Body: &daemonv1.Record_Message{Message: m}}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestDrain(t *testing.T) {
	tests := []struct {
		name   string
		server server
		fails  error
	}{
		{"plain", server{}, nil},
		{"has some already", server{stored: make([]int64, 100)}, nil},
		{"has more than this shipper knows", server{stored: make([]int64, 700), errs: []error{gatewayclient.ErrGap}}, nil},
		{"fenced", server{errs: []error{nil, gatewayclient.ErrFenced}}, gatewayclient.ErrFenced},
		{"contradicts itself", server{errs: []error{gatewayclient.ErrGap}}, gatewayclient.ErrGap},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := ship.New(&tt.server, filled(t, 700), logr.Discard()).Drain(t.Context())
			if !errors.Is(err, tt.fails) {
				t.Fatal(err)
			}
			if err == nil && len(tt.server.stored) != 700 {
				t.Fatalf("%d records", len(tt.server.stored))
			}
		})
	}
}

// TestRun ships despite errors and lost answers, and WaitStored returns when everything has
// arrived.
func TestRun(t *testing.T) {
	srv := &server{errs: []error{errors.New("down"), errors.New("down"), nil}, lost: true}
	s := filled(t, 600)
	shipper := ship.New(srv, s, logr.Discard())
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- shipper.Run(ctx) }()
	if err := shipper.WaitStored(ctx, 600); err != nil {
		t.Fatal(err)
	}
	if err := s.Append(nil, &daemonv1.Record{}); err != nil {
		t.Fatal(err)
	}
	if err := shipper.WaitStored(ctx, 601); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	for i, n := range srv.stored {
		if n != int64(i+1) {
			t.Fatalf("record %d is stored as number %d", n, i+1)
		}
	}
}

func TestRunEndsWhenFenced(t *testing.T) {
	srv := &server{errs: []error{gatewayclient.ErrFenced}}
	if err := ship.New(srv, filled(t, 1), logr.Discard()).Run(t.Context()); !errors.Is(err, gatewayclient.ErrFenced) {
		t.Fatal(err)
	}
}
