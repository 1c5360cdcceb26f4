package exchanges_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/testing/exchanges"
)

func TestALogListsRequestsAndRefusals(t *testing.T) {
	g := gomega.NewWithT(t)
	log := &exchanges.Log{}
	handler := log.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/refused":
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"message":"not `+"\n"+`yours"}`)
		case "/stream":
			fmt.Fprint(w, strings.Repeat("x", 10_000))
			w.(http.Flusher).Flush()
			fmt.Fprint(w, "\x02\x00\x00\x00\x20", `{"error":{"code":"aborted"}}`)
		case "/compressed":
			var end bytes.Buffer
			zip := gzip.NewWriter(&end)
			fmt.Fprint(zip, `{"error":{"code":"not_found"}}`)
			g.Expect(zip.Close()).To(gomega.Succeed())
			fmt.Fprint(w, "\x03\x00\x00\x00\x30", end.String())
		case "/long":
			fmt.Fprint(w, "the beginning")
			g.Expect(log.String()).To(gomega.HaveSuffix("GET /long: 200, not complete yet"))
		case "/silent":
			g.Expect(log.String()).To(gomega.HaveSuffix("GET /silent: not answered yet"))
		}
	}))
	for _, path := range []string{"/refused?limit=1", "/stream", "/compressed", "/long", "/silent"} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Header.Set("Authorization", "Bearer secret")
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	g.Expect(log.String()).To(gomega.Equal(strings.Join([]string{
		"the last 5 of 5 requests:",
		`GET /refused?limit=1: 403 {"message":"not yours"}`,
		`GET /stream: 200 {"error":{"code":"aborted"}}`,
		`GET /compressed: 200 {"error":{"code":"not_found"}}`,
		"GET /long: 200",
		"GET /silent: ended without a response",
	}, "\n")))
}

func TestALogKeepsTheLatestRequests(t *testing.T) {
	g := gomega.NewWithT(t)
	log := &exchanges.Log{}
	handler := log.Handler(http.NotFoundHandler())
	for i := range 100 {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprint("/", i), nil))
	}
	g.Expect(log.String()).To(gomega.And(
		gomega.HavePrefix("the last 20 of 100 requests:\nGET /80: 404"), gomega.HaveSuffix("GET /99: 404 404 page not found")))
}
