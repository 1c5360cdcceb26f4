package gateway_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/go-logr/logr"
	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/server/gateway"
	"github.com/clew-dev/clew/internal/server/requests"
)

// slowStore does one thing after the other for a request, each of which is allowed.
type slowStore struct{ gateway.Store }

func (slowStore) Append(ctx context.Context, _ history.Task, _ int64, _ []history.Record) (int64, error) {
	for range 1000 {
		select {
		case <-time.After(20 * time.Second):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return 1, nil
}

// A caller may say that it waits for hours.
func TestNoRequestIsWorkedOnForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		served := gateway.New(gateway.Options{
			Store: slowStore{}, Authenticator: tokens{"a": identity("a", 1)}, Requests: requests.New(), Log: logr.Discard(),
		})
		_, handler := served.Handler()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, appendPath, bytes.NewReader(emptyRecords(0)))
		r.Header.Set("Content-Type", "application/proto")
		r.Header.Set("Authorization", "Bearer a")
		r.Header.Set("Connect-Timeout-Ms", "9999999999")
		w := httptest.NewRecorder()
		began := time.Now()
		handler.ServeHTTP(w, r)
		g.Expect(time.Since(began)).To(gomega.Equal(30 * time.Second))
		g.Expect(w.Code).To(gomega.Equal(http.StatusGatewayTimeout))
		g.Expect(w.Body.String()).To(gomega.And(gomega.ContainSubstring(connect.CodeDeadlineExceeded.String()), gomega.ContainSubstring("try again")))
	})
}
