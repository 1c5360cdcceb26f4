package gateway_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/go-logr/logr"

	"github.com/clew-dev/clew/internal/connections"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/server/checkpointrequests"
	"github.com/clew-dev/clew/internal/server/gateway"
)

var _ = Describe("Connections", func() {
	// The connections of strangers are closed after a while; command streams stay open.
	It("a daemon's connection is not closed like a stranger's", func() {
		store := heldStore{entered: make(chan history.Task, 10), release: make(chan struct{})}
		close(store.release)
		_, handler := gateway.New(gateway.Options{Store: store, Authenticator: tokens{"a1": identity("a", 1)}, Requests: checkpointrequests.New(), Log: logr.Discard()}).Handler()
		strangers := make(chan bool, 2)
		server := httptest.NewUnstartedServer(reported(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			handler.ServeHTTP(w, r)
			strangers <- connections.Stranger(r.Context())
		})))
		server.Listener = connections.Limit(server.Listener, connections.Limits{})
		server.Config.ConnContext = connections.Context
		server.EnableHTTP2 = true
		server.StartTLS()
		DeferCleanup(server.Close)
		for _, token := range []string{"", "made-up"} {
			post(server, bytes.NewReader(emptyRecords(1)), map[string]string{"Authorization": "Bearer " + token})
			Expect(next(strangers, "a response")).To(BeTrue(), "a stranger with the token %q", token)
		}
		post(server, bytes.NewReader(emptyRecords(1)), map[string]string{"Authorization": "Bearer a1"})
		Expect(next(strangers, "a response")).To(BeFalse(), "a daemon is no stranger")
	})
})
