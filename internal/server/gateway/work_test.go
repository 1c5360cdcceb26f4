package gateway_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/go-logr/logr"
	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/server/checkpointrequests"
	"github.com/clew-dev/clew/internal/server/gateway"
)

// askedStore blocks callers that ask for a task's attempt, and counts them.
type askedStore struct {
	gateway.Store
	asked chan string // the UIDs
}

func (s askedStore) Attempt(ctx context.Context, uid string) (int64, error) {
	s.asked <- uid
	<-ctx.Done()
	return 0, ctx.Err()
}

func TestCommandStreamsTakeNoConnectionsFromOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		const connections = 14
		known, store := tokens{}, askedStore{asked: make(chan string, 1000)}
		for i := range 20 {
			known[fmt.Sprint(i)] = identity(fmt.Sprint(i), 1)
		}
		served := gateway.New(gateway.Options{
			Store: store, Connections: connections, Authenticator: known, Requests: checkpointrequests.New(), Log: logr.Discard(),
		})
		_, handler := served.Handler()
		ctx, cancel := context.WithCancel(t.Context())
		for range 3 {
			for token := range known {
				r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/clew.daemon.v1.DaemonService/Commands", bytes.NewReader(make([]byte, 5)))
				r.Header.Set("Content-Type", "application/connect+proto")
				r.Header.Set("Authorization", "Bearer "+token)
				go handler.ServeHTTP(httptest.NewRecorder(), r)
			}
		}
		synctest.Wait()
		g.Expect(len(store.asked)).To(gomega.Equal(8), "as many as a namespace may have in all")
		asking := map[string]bool{}
		for len(store.asked) > 0 {
			asking[<-store.asked] = true
		}
		g.Expect(asking).To(gomega.HaveLen(8), "one of each task")
		cancel()
		synctest.Wait()
	})
}

// slowStore does one operation after the other for a request, each of which is fast
// enough.
type slowStore struct{ gateway.Store }

func (slowStore) Spending(context.Context, history.Task, string) (history.Spending, error) {
	return history.Spending{}, nil
}

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

// A caller may ask for hours of waiting.
func TestNoRequestIsProcessedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		served := gateway.New(gateway.Options{
			Store: slowStore{}, Authenticator: tokens{"a": identity("a", 1)}, Requests: checkpointrequests.New(), Log: logr.Discard(),
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
