package rollback_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/rollback"
)

// answers returns a function that returns one version after another, and the last one for
// ever; "" stands for an API server that cannot be reached. The channel is closed once all
// versions have been returned.
func answers(versions ...string) (func(context.Context) (string, error), <-chan struct{}) {
	all := make(chan struct{})
	i := 0
	return func(context.Context) (string, error) {
		version := versions[min(i, len(versions)-1)]
		if i++; i == len(versions)+1 {
			close(all)
		}
		if version == "" {
			return "", errors.New("connection refused")
		}
		return version, nil
	}, all
}

func TestAStateThatWasRolledBackEndsTheWatch(t *testing.T) {
	for name, versions := range map[string][]string{
		"between two answers":  {"100", "205", "204"},
		"to one digit less":    {"1000", "999"},
		"while it was away":    {"100", "205", "", "", "110"},
		"at the second answer": {"2", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			version, _ := answers(versions...)
			w := &rollback.Watch{Version: version, Interval: time.Millisecond, RetryInterval: time.Millisecond, Log: logr.Discard()}
			g.Expect(w.Start(t.Context())).To(gomega.MatchError(gomega.ContainSubstring("state was restored")))
		})
	}
}

func TestAnOrdinaryStateEndsNothing(t *testing.T) {
	for name, versions := range map[string][]string{
		"it grows":                     {"99", "100", "", "100", "1000"},
		"it is away from the start":    {"", "", "7"},
		"its versions are not numbers": {"b", "a"},
	} {
		t.Run(name, func(t *testing.T) {
			g := gomega.NewWithT(t)
			ctx, cancel := context.WithCancel(t.Context())
			version, all := answers(versions...)
			w := &rollback.Watch{Version: version, Interval: time.Millisecond, RetryInterval: time.Millisecond, Log: logr.Discard()}
			ended := make(chan error, 1)
			go func() { ended <- w.Start(ctx) }()
			g.Eventually(all).WithTimeout(10 * time.Second).Should(gomega.BeClosed())
			cancel()
			g.Eventually(ended).WithTimeout(10 * time.Second).Should(gomega.Receive(gomega.BeNil()))
		})
	}
}
