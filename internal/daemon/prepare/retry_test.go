package prepare_test

import (
	"strings"
	"testing"
	"time"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemonapi"
)

func TestRetriedStepIsReportedUntilItSucceeds(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, files)
	w.RetryFor = time.Minute
	w.Git.SetDown(true)
	cfg := w.PrepareConfig(1, nil)
	cfg.ReportAfter = time.Millisecond
	done := make(chan daemonapi.PrepareResult, 1)
	go func() { done <- prepare.Run(t.Context(), cfg) }()
	w.Server.Until(t, "what fails is told", w.UID, func(k *daemontest.Task) bool { return k.Problem != nil })
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		if reason := k.Problem.GetReason(); reason != "RepositoryUnreachable" {
			t.Errorf("the reported reason is %q", reason)
		}
		if message := k.Problem.GetMessage(); !strings.HasSuffix(message, "; retrying") {
			t.Errorf("the reported message %q does not say that prepare retries", message)
		}
	})
	w.Git.SetDown(false)
	if r := <-done; r.Reason != "Prepared" {
		t.Fatalf("the reason is %v, want Prepared: %+v", r.Reason, r)
	}
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		if k.Problem != nil {
			t.Errorf("a problem that has passed is still told: %v", k.Problem)
		}
	})
}

func TestStepThatSucceedsAtOnceIsNotReported(t *testing.T) {
	t.Parallel()
	w := daemontest.NewWorld(t, files)
	w.Git.SetDown(true)
	w.RetryFor = 300 * time.Millisecond
	cfg := w.PrepareConfig(1, nil)
	if r := prepare.Run(t.Context(), cfg); r.Reason != "RepositoryUnreachable" {
		t.Fatalf("the reason is %v, want RepositoryUnreachable: %+v", r.Reason, r)
	}
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		if k.Reports > 0 {
			t.Errorf("told %d times of %v", k.Reports, k.Problem)
		}
	})
}
