package gateway_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"
	"google.golang.org/protobuf/proto"

	"github.com/clew-dev/clew/api/v1alpha1"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/server/checkpointrequests"
	"github.com/clew-dev/clew/internal/server/gateway"
)

// unansweredStore has calls that nobody answers.
type unansweredStore struct{ gateway.Store }

func (unansweredStore) CallTool(context.Context, history.Task, int64, history.NewToolCall) (history.ToolCall, error) {
	return history.ToolCall{ID: "x"}, nil
}

func (unansweredStore) ToolCall(context.Context, string, string) (history.ToolCall, error) {
	return history.ToolCall{ID: "x"}, nil
}

// A daemon that waited for longer would take the server for lost.
func TestACallThatIsNotAnsweredIsPendingAfterAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := gomega.NewWithT(t)
		served := gateway.New(gateway.Options{
			Store: unansweredStore{}, Authenticator: tokens{"a": identity("a", 1)}, Requests: checkpointrequests.New(), Log: logr.Discard(),
			Tasks: supervisors{given: v1alpha1.SupervisorTools()},
		})
		_, handler := served.Handler()
		body, err := proto.Marshal(&daemonv1.CallToolRequest{Tool: "task_create", Arguments: []byte(`{}`)})
		g.Expect(err).NotTo(gomega.HaveOccurred())
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/clew.daemon.v1.DaemonService/CallTool", bytes.NewReader(body))
		r.Header.Set("Content-Type", "application/proto")
		r.Header.Set("Authorization", "Bearer a")
		w := httptest.NewRecorder()
		began := time.Now()
		handler.ServeHTTP(w, r)
		g.Expect(time.Since(began)).To(gomega.Equal(25 * time.Second))
		response := &daemonv1.CallToolResponse{}
		g.Expect(proto.Unmarshal(w.Body.Bytes(), response)).To(gomega.Succeed())
		g.Expect(response.GetPending()).To(gomega.BeTrue())
		g.Expect(response.GetId()).To(gomega.Equal("x"))
	})
}
