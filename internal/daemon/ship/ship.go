// Package ship sends the records of the spool to the server: in order, each once, for as
// long as it takes.
//
// It begins by comparing what the server has with what the spool contains, and does so
// again whenever the two may have diverged. A history store that was restored from an older
// copy is sent what it lost, as far as the spool still has it; what is lost everywhere is
// reported as a gap of the exact length, and blocks nothing.
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

// comparePeriod is how often an idle shipper checks that the server still has everything.
const comparePeriod = 5 * time.Minute

// ErrForeign is returned if the server has records of this task that are not the spool's.
// Somebody else has written them, or the volume is an older copy.
var ErrForeign = errors.New("the server has records of this task that this volume never held")

// Server stores records; see gatewayclient.Client.
type Server interface {
	Begin(context.Context) (*daemonv1.BeginResponse, error)
	Append(context.Context, []*daemonv1.Record) (int64, error)
}

// Watcher is notified of how shipping proceeds.
type Watcher interface {
	// Shipped is called by Run with the server's refusal once that has lasted longer than
	// the shipper's timeout, and with nil for every batch that the server takes. It is not
	// called if the server is unreachable: then there is nowhere to report it to, and the
	// cause is not in this pod.
	Shipped(error)
	// WentBack is called when the server has lost something that it had.
	WentBack()
}

// unwatched is the Watcher of New.
type unwatched struct{}

func (unwatched) Shipped(error) {}
func (unwatched) WentBack()     {}

// patience is the default for how long the server may refuse records before the Watcher is
// notified.
const patience = 2 * time.Minute

// Shipper ships one spool. Only WaitStored is safe for use by other goroutines.
type Shipper struct {
	server   Server
	spool    *spool.Spool
	watcher  Watcher
	patience time.Duration
	log      logr.Logger
	backoff  backoff.Backoff
	stored   *progress
	compared bool
	begun    bool      // the task was begun again at the server, and no batch was taken since
	refused  time.Time // when the server began to refuse what it is sent; zero if it does not
}

// New returns a shipper. It asks the server where to begin when it first ships.
func New(server Server, s *spool.Spool, log logr.Logger) *Shipper {
	return NewWatched(server, s, log, unwatched{}, 0)
}

// NewWatched returns a shipper that notifies w, of refusals once they have lasted for
// refusedFor; 0 means two minutes.
func NewWatched(server Server, s *spool.Spool, log logr.Logger, w Watcher, refusedFor time.Duration) *Shipper {
	return &Shipper{server: server, spool: s, watcher: w, patience: cmp.Or(refusedFor, patience), log: log, stored: newProgress(s.First() - 1)}
}

// WaitStored waits until the server has everything through the given sequence.
func (s *Shipper) WaitStored(ctx context.Context, sequence int64) error {
	return s.stored.wait(ctx, sequence)
}

// Drain ships what is in the spool now and returns when the server has it, or with the
// first error.
func (s *Shipper) Drain(ctx context.Context) error {
	for last := s.spool.Last(); !s.compared || s.stored.get() < last; {
		if err := s.once(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Run ships until ctx ends. It returns earlier with gatewayclient.ErrFenced when a newer
// attempt has begun, with ErrForeign when somebody else has written, or when the spool
// fails.
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
		s.log.Error(err, "could not ship records; they stay in the spool", "stored", s.stored.get(), "last", s.spool.Last())
		s.failed(err)
		if err := s.backoff.Wait(ctx); err != nil {
			return err
		}
	}
}

// failed handles a failed batch, and notifies the Watcher if refusals have lasted too long.
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

// taken handles that the server has all that it was sent.
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
			s.log.Info("records are lost: reporting a gap to the server", "from", r.GetSequence(), "through", g.GetThrough(), "reason", g.GetReason())
		}
	}
	now, err := s.server.Append(ctx, records)
	switch {
	case errors.Is(err, gatewayclient.ErrNotFound) && !s.begun:
		// The history store is older than the task; compare begins the task there again.
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
		// It already had the beginning of a gap, say, from a batch whose answer was lost,
		// and ignored the gap as a record that it has.
		return s.compareAfter(ctx, fmt.Errorf("the server says it has records through %d after it was given those through %d", now, sent))
	}
	s.taken()
	return s.advance(now)
}

// compareAfter compares because the server did not take all of a batch. If the comparison
// finds nothing different from before, the server contradicts itself, and refused is
// returned so that the batch is tried again later.
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

// compare asks the server what it has, and continues from there.
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
		s.log.Info("the history store was restored from an older copy; resending what it lost", "had", before, "has", last, "kept", s.spool.First())
	}
	if last < before {
		s.watcher.WentBack()
	}
	// The spool no longer drops what the server has lost.
	if err := s.advance(last); err != nil {
		return err
	}
	s.compared = true
	if last == s.spool.Last() {
		s.taken()
	}
	return nil
}

// Compare returns an ErrForeign if the server has records that are not the spool's.
func Compare(begun *daemonv1.BeginResponse, s *spool.Spool) error {
	last := begun.GetLastSequence()
	if last > s.Last() {
		return fmt.Errorf("%w: the server has records through %d, the volume through %d", ErrForeign, last, s.Last())
	}
	own, err := s.Record(last)
	if err != nil {
		return err
	}
	if id := begun.GetLastRecordId(); own.GetId() != 0 && id != 0 && own.GetId() != id {
		return fmt.Errorf("%w: the server has a different record %d", ErrForeign, last)
	}
	return nil
}

func (s *Shipper) advance(last int64) error {
	if last > s.spool.Last() {
		return fmt.Errorf("%w: the server has records through %d, the volume through %d", ErrForeign, last, s.spool.Last())
	}
	s.stored.set(last)
	return s.spool.Trim(last)
}
