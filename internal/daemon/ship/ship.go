// Package ship takes records from the spool to the server: in order, each
// once, for as long as it takes.
package ship

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/daemon/backoff"
	"github.com/clew-dev/clew/internal/daemon/gateway"
	"github.com/clew-dev/clew/internal/daemon/spool"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// Limits of one batch.
const (
	batchRecords = 256
	batchBytes   = 1 << 20
)

// Server stores records; see gateway.Client.
type Server interface {
	Begin(context.Context, *daemonv1.Source) (*daemonv1.BeginResponse, error)
	Append(context.Context, []*daemonv1.Record) (int64, error)
}

// Shipper ships one spool. It is for one goroutine, but for Stored.
type Shipper struct {
	server  Server
	spool   *spool.Spool
	log     logr.Logger
	backoff backoff.Backoff
	stored  *progress
}

// New returns a shipper that begins with the oldest record in the spool.
func New(server Server, s *spool.Spool, log logr.Logger) *Shipper {
	return &Shipper{server: server, spool: s, log: log, stored: newProgress(s.First() - 1)}
}

// Stored waits until the server has everything through the given sequence.
func (s *Shipper) Stored(ctx context.Context, sequence int64) error {
	return s.stored.wait(ctx, sequence)
}

// Drain ships what is in the spool now and returns when the server has it, or
// with the first error.
func (s *Shipper) Drain(ctx context.Context) error {
	for last := s.spool.Last(); s.stored.get() < last; {
		if err := s.once(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Run ships for ever. It returns when ctx ends, with gateway.ErrFenced when a
// newer attempt has begun, or when the spool itself fails.
func (s *Shipper) Run(ctx context.Context) error {
	for {
		if err := s.spool.Wait(ctx, s.stored.get()); err != nil {
			return err
		}
		err := s.once(ctx)
		switch {
		case err == nil:
			s.backoff.Reset()
			continue
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, gateway.ErrFenced), errors.Is(err, spool.ErrBroken), errors.Is(err, spool.ErrCorrupted):
			return err
		}
		s.log.Error(err, "records wait in the spool", "stored", s.stored.get(), "last", s.spool.Last())
		if err := s.backoff.Wait(ctx); err != nil {
			return err
		}
	}
}

// once ships one batch.
func (s *Shipper) once(ctx context.Context) error {
	records, err := s.spool.Read(s.stored.get(), batchRecords, batchBytes)
	if err != nil || len(records) == 0 {
		return err
	}
	last, err := s.server.Append(ctx, records)
	if errors.Is(err, gateway.ErrGap) {
		return s.closeGap(ctx, err)
	}
	if err != nil {
		return err
	}
	if sent := records[len(records)-1].GetSequence(); last < sent {
		return fmt.Errorf("the server says it has records through %d after it was given those through %d", last, sent)
	}
	return s.advance(last)
}

// closeGap goes back to what the server says it has, if the spool still holds
// what comes next.
func (s *Shipper) closeGap(ctx context.Context, gap error) error {
	begun, err := s.server.Begin(ctx, nil)
	if err != nil {
		return err
	}
	last := begun.GetLastSequence()
	if last > s.stored.get() {
		return s.advance(last)
	}
	if last == s.stored.get() {
		return gap // the server contradicts itself: wait
	}
	if last+1 < s.spool.First() {
		return fmt.Errorf("%w: the server has records through %d, the spool begins with %d; was the history store restored from an old backup?", gap, last, s.spool.First())
	}
	s.stored.set(last)
	return nil
}

func (s *Shipper) advance(last int64) error {
	last = min(last, s.spool.Last())
	s.stored.set(last)
	return s.spool.Trim(last)
}
