// Package ship takes records from the spool to the server: in order, each once,
// for as long as it takes.
//
// It begins by comparing what the server has with what the spool holds, and does
// so again whenever the two may have parted. A history store that went back in
// time is sent what it lost, as far as the spool still has it; what nobody has
// any more is told as a gap, with its exact length, and holds nothing up.
package ship

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/backoff"
	"github.com/clew-dev/clew/internal/daemon/gatewayclient"
	"github.com/clew-dev/clew/internal/daemon/spool"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// Limits of one batch.
const (
	batchRecords = 256
	batchBytes   = 1 << 20
)

// comparePeriod is how often an idle shipper looks whether the server still has
// everything.
const comparePeriod = 5 * time.Minute

// ErrForeign says that the server has records of this task that are not the spool's.
// Somebody else has written them, or the volume is an older copy.
var ErrForeign = errors.New("the server has records of this task that this volume never held")

// Server stores records; see gatewayclient.Client.
type Server interface {
	Begin(context.Context) (*daemonv1.BeginResponse, error)
	Append(context.Context, []*daemonv1.Record) (int64, error)
}

// Watcher hears how shipping goes.
type Watcher interface {
	// Shipped is told by Run why the server has taken no records for longer than it is
	// waited for, and nil with every batch that it takes. That the server cannot be
	// reached is not told: there is nobody to tell it to, and it is nobody's fault in
	// this pod.
	Shipped(error)
	// WentBack is called when the server turns out to have lost something that it had.
	WentBack()
}

// unwatched is the Watcher of whoever asks for none.
type unwatched struct{}

func (unwatched) Shipped(error) {}
func (unwatched) WentBack()     {}

// patience is how long the server may refuse records before somebody is told.
const patience = 2 * time.Minute

// Shipper ships one spool. It is for one goroutine, but for Stored.
type Shipper struct {
	server   Server
	spool    *spool.Spool
	watcher  Watcher
	patience time.Duration
	log      logr.Logger
	backoff  backoff.Backoff
	stored   *progress
	compared bool
	begun    bool      // the task was begun anew, and no batch was taken since
	refused  time.Time // since when the server refuses what it is sent; zero if it does not
}

// New returns a shipper. It asks the server where to begin.
func New(server Server, s *spool.Spool, log logr.Logger) *Shipper {
	return NewWatched(server, s, log, unwatched{}, 0)
}

// NewWatched returns a shipper that tells w how it goes, of refusals after the given
// time, 0 for two minutes.
func NewWatched(server Server, s *spool.Spool, log logr.Logger, w Watcher, refusedFor time.Duration) *Shipper {
	return &Shipper{server: server, spool: s, watcher: w, patience: cmp.Or(refusedFor, patience), log: log, stored: newProgress(s.First() - 1)}
}

// Stored waits until the server has everything through the given sequence.
func (s *Shipper) Stored(ctx context.Context, sequence int64) error {
	return s.stored.wait(ctx, sequence)
}

// Drain ships what is in the spool now and returns when the server has it, or
// with the first error.
func (s *Shipper) Drain(ctx context.Context) error {
	for last := s.spool.Last(); !s.compared || s.stored.get() < last; {
		if err := s.once(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Run ships for ever. It returns when ctx ends, with gatewayclient.ErrFenced when a
// newer attempt has begun, with ErrForeign when somebody else has written, or
// when the spool itself fails.
func (s *Shipper) Run(ctx context.Context) error {
	for {
		if err := s.wait(ctx); err != nil {
			return err
		}
		err := s.once(ctx)
		switch {
		case err == nil:
			s.backoff.Reset()
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, gatewayclient.ErrFenced), errors.Is(err, ErrForeign), errors.Is(err, spool.ErrBroken):
			return err
		}
		s.log.Error(err, "records wait in the spool", "stored", s.stored.get(), "last", s.spool.Last())
		s.failed(err)
		if err := s.backoff.Wait(ctx); err != nil {
			return err
		}
	}
}

// failed notes that records were not taken, and tells of it in time.
func (s *Shipper) failed(err error) {
	if !gatewayclient.Answered(err) {
		return
	}
	now := time.Now()
	if s.refused.IsZero() {
		s.refused = now
	}
	if now.Sub(s.refused) >= s.patience {
		s.watcher.Shipped(err)
	}
}

// taken notes that the server has all that it was sent.
func (s *Shipper) taken() {
	s.begun, s.refused = false, time.Time{}
	s.watcher.Shipped(nil)
}

// wait returns when there is something to ship or to compare.
func (s *Shipper) wait(ctx context.Context) error {
	if !s.compared {
		return nil
	}
	waiting, cancel := context.WithTimeout(ctx, comparePeriod)
	defer cancel()
	err := s.spool.Wait(waiting, s.stored.get())
	if err != nil && ctx.Err() == nil {
		s.compared = false
		return nil
	}
	return err
}

// once compares, or ships one batch.
func (s *Shipper) once(ctx context.Context) error {
	if !s.compared {
		return s.compare(ctx)
	}
	stored, last := s.stored.get(), s.spool.Last()
	records, err := s.spool.Read(stored, batchRecords, batchBytes)
	if err != nil || (len(records) == 0 && last <= stored) {
		return err
	}
	records = withGaps(stored, records, s.spool.First(), last)
	for _, r := range records {
		if g := r.GetGap(); g != nil {
			s.log.Info("records are lost: the server is told of a gap", "from", r.GetSequence(), "through", g.GetThrough(), "reason", g.GetReason())
		}
	}
	now, err := s.server.Append(ctx, records)
	switch {
	case errors.Is(err, gatewayclient.ErrNotFound) && !s.begun:
		// The history store is older than the task: comparing begins it anew.
		s.begun = true
		return s.compare(ctx)
	case errors.Is(err, gatewayclient.ErrGap), errors.Is(err, gatewayclient.ErrForeign), errors.Is(err, gatewayclient.ErrNotFound):
		return s.compareAfter(ctx, err)
	}
	if err != nil {
		return err
	}
	newest := records[len(records)-1]
	if sent := max(newest.GetSequence(), newest.GetGap().GetThrough()); now < sent {
		// It had the beginning of a gap from a batch whose answer was lost, say, and
		// left the gap out as a record that it has.
		return s.compareAfter(ctx, fmt.Errorf("the server says it has records through %d after it was given those through %d", now, sent))
	}
	s.taken()
	return s.advance(now)
}

// compareAfter compares because the server did not take all of a batch. If it then says
// that it has what it had, it contradicts itself, and is to be asked later.
func (s *Shipper) compareAfter(ctx context.Context, refused error) error {
	before := s.stored.get()
	if err := s.compare(ctx); err != nil {
		return err
	}
	if s.stored.get() == before {
		return refused
	}
	return nil
}

// compare asks the server what it has, and goes on from there.
func (s *Shipper) compare(ctx context.Context) error {
	begun, err := s.server.Begin(ctx)
	if err != nil {
		return err
	}
	if err := Compare(begun, s.spool); err != nil {
		return err
	}
	before, last := s.stored.get(), begun.GetLastSequence()
	if last < before {
		s.log.Info("the history store went back in time: what it lost is sent again", "had", before, "has", last, "kept", s.spool.First())
	}
	if last < before {
		s.watcher.WentBack()
	}
	// Of what the server has lost, the spool makes room no more.
	if err := s.advance(last); err != nil {
		return err
	}
	s.compared = true
	if last == s.spool.Last() {
		s.taken()
	}
	return nil
}

// Compare returns an ErrForeign if the server has records that are not the
// spool's.
func Compare(begun *daemonv1.BeginResponse, s *spool.Spool) error {
	last := begun.GetLastSequence()
	if last > s.Last() {
		return fmt.Errorf("%w: it has them through %d, the volume through %d", ErrForeign, last, s.Last())
	}
	own, err := s.Record(last)
	if err != nil {
		return err
	}
	if id := begun.GetLastRecordId(); own.GetId() != 0 && id != 0 && own.GetId() != id {
		return fmt.Errorf("%w: its record %d is another one", ErrForeign, last)
	}
	return nil
}

func (s *Shipper) advance(last int64) error {
	if last > s.spool.Last() {
		return fmt.Errorf("%w: it has them through %d, the volume through %d", ErrForeign, last, s.spool.Last())
	}
	s.stored.set(last)
	return s.spool.Trim(last)
}
