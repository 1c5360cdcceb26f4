package gateway_test

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-logr/logr"
	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/connections"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/server/checkpointrequests"
	"github.com/clew-dev/clew/internal/server/gateway"
)

// The connections of strangers are closed after a while; streams of commands stay.
func TestADaemonsConnectionIsNoStrangers(t *testing.T) {
	g := gomega.NewWithT(t)
	store := heldStore{entered: make(chan history.Task, 10), release: make(chan struct{})}
	close(store.release)
	_, handler := gateway.New(gateway.Options{Store: store, Authenticator: tokens{"a1": identity("a", 1)}, Requests: checkpointrequests.New(), Log: logr.Discard()}).Handler()
	strangers := make(chan bool, 2)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handler.ServeHTTP(w, r)
		strangers <- connections.Stranger(r.Context())
	}))
	server.Listener = connections.Limit(server.Listener, connections.Limits{})
	server.Config.ConnContext = connections.Context
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	for _, token := range []string{"", "made-up"} {
		post(t, server, bytes.NewReader(emptyRecords(1)), map[string]string{"Authorization": "Bearer " + token})
		g.Expect(<-strangers).To(gomega.BeTrue())
	}
	post(t, server, bytes.NewReader(emptyRecords(1)), map[string]string{"Authorization": "Bearer a1"})
	g.Expect(<-strangers).To(gomega.BeFalse())
}
