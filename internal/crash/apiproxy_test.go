package crash_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

// account is the manager's account in the admission policies.
const account = "system:serviceaccount:clew-system:clew-manager"

// apiProxy stands between a manager and the API server. It counts and strikes the manager's
// writes, and shows it one namespace only, so that runs can go on side by side.
type apiProxy struct {
	*striker
	namespace string
	kill      func()
	transport http.RoundTripper
	pass      *httputil.ReverseProxy
	to        *url.URL
}

// startAPIProxy returns the address of a proxy that ends with the test.
func startAPIProxy(t testing.TB, namespace string, s *striker, kill func()) string {
	t.Helper()
	config := rest.CopyConfig(server.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: account, Groups: []string{"system:masters"}}
	transport, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	to, err := url.Parse(config.Host)
	if err != nil {
		t.Fatal(err)
	}
	p := &apiProxy{striker: s, namespace: namespace, kill: kill, transport: transport, to: to}
	p.pass = &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	proxy := httptest.NewServer(p)
	t.Cleanup(func() {
		proxy.CloseClientConnections()
		proxy.Close()
	})
	return proxy.URL
}

// everywhere matches the path of a list over all namespaces, and of one of objects that are in none.
var everywhere = regexp.MustCompile(`^(/api/v1|/apis/clew\.dev/v1alpha1)/([a-z]+)$`)

// ServeHTTP implements http.Handler.
func (p *apiProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if m := everywhere.FindStringSubmatch(r.URL.Path); m != nil && m[2] != "nodes" {
		r.URL.Path = m[1] + "/namespaces/" + p.namespace + "/" + m[2]
	}
	what := p.what(r)
	if what == "" {
		p.pass.ServeHTTP(w, r)
		return
	}
	when, now := p.next(what)
	switch {
	case !now:
		p.pass.ServeHTTP(w, r)
	case when == before:
		p.kill()
		panic(http.ErrAbortHandler)
	default:
		p.carryOut(r)
		p.kill()
		panic(http.ErrAbortHandler)
	}
}

// what names a write; "" for a request that is none. Leases are not counted: they are written
// by the clock. Nor are Events: they are for people, and may get lost.
func (p *apiProxy) what(r *http.Request) string {
	path := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/apis/clew.dev/v1alpha1"), "/api/v1")
	path = strings.TrimPrefix(path, "/namespaces/"+p.namespace+"/")
	if r.Method == http.MethodGet || strings.Contains(path, "/leases") || strings.HasSuffix(path, "events") || strings.Contains(path, "/events/") {
		return ""
	}
	return r.Method + " " + attemptNumber.ReplaceAllString(path, "pods/$1-N")
}

// attemptNumber is the end of the name of a task's pod: which number it gets is not the same
// after a manager was killed.
var attemptNumber = regexp.MustCompile(`^pods/(.*)-\d+`)

// carryOut makes the request, whatever becomes of the one who asked.
func (p *apiProxy) carryOut(r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	at := *r.URL
	at.Scheme, at.Host = p.to.Scheme, p.to.Host
	request, err := http.NewRequest(r.Method, at.String(), bytes.NewReader(body))
	if err != nil {
		return
	}
	request.Header = r.Header.Clone()
	response, err := p.transport.RoundTrip(request)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
}
