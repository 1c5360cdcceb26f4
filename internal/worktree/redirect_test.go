package worktree

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// redirecting starts a server that redirects every request.
func redirecting(t *testing.T, to func(*http.Request) string) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, to(r), http.StatusMovedPermanently)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestCredentialsDoNotFollowARedirectToAnotherHost(t *testing.T) {
	var seen atomic.Int64
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen.Add(1) }))
	defer elsewhere.Close()
	origin := redirecting(t, func(r *http.Request) string { return elsewhere.URL + r.URL.RequestURI() })
	f := newFixture(t)
	_, err := f.repo.Clone(context.Background(), CloneRequest{URL: origin + "/team/project.git", Credentials: Credentials{Password: "s3cr3t"}})
	wantReason(t, err, InvalidURL)
	if want := "has moved to " + elsewhere.URL + "/team/project.git: set the URL to that address"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the error does not contain %q: %v", want, err)
	}
	if seen.Load() != 0 {
		t.Errorf("the other host received %d requests", seen.Load())
	}
}

func TestARedirectOnTheSameHostIsFollowed(t *testing.T) {
	origin := makeOrigin(t, 3)
	backend, _ := gitServer(t, filepath.Dir(origin), "s3cr3t")
	target, err := url.Parse(backend)
	must(t, err)
	// As GitLab redirects a URL without ".git".
	var srv *httptest.Server
	srv = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if rest, short := strings.CutPrefix(r.URL.Path, "/short"); short {
			http.Redirect(w, r, srv.URL+"/"+filepath.Base(origin)+rest+"?"+r.URL.RawQuery, http.StatusMovedPermanently)
			return
		}
		r.URL.Scheme, r.URL.Host, r.RequestURI = target.Scheme, target.Host, ""
		response, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer response.Body.Close()
		w.Header().Set("Content-Type", response.Header.Get("Content-Type"))
		w.WriteHeader(response.StatusCode)
		_, _ = io.Copy(w, response.Body)
	}))
	defer srv.Close()
	f := newFixture(t)
	o, err := f.repo.Clone(context.Background(), CloneRequest{URL: srv.URL + "/short", Credentials: Credentials{Password: "s3cr3t"}})
	must(t, err)
	if o.Base == "" || o.URL != srv.URL+"/"+filepath.Base(origin) {
		t.Errorf("the origin is %+v", o)
	}
}

func TestTooManyRedirectsAreAnError(t *testing.T) {
	var host string
	host = redirecting(t, func(r *http.Request) string {
		path, _ := strings.CutSuffix(r.URL.Path, "/info/refs")
		return host + path + "x/info/refs?" + r.URL.RawQuery
	})
	f := newFixture(t)
	_, err := f.repo.Clone(context.Background(), CloneRequest{URL: host + "/a", Credentials: Credentials{Password: "s3cr3t"}})
	wantReason(t, err, InvalidURL)
}

func TestWithoutCredentialsGitFollowsRedirects(t *testing.T) {
	origin := makeOrigin(t, 3)
	backend, _ := gitServer(t, filepath.Dir(origin), "")
	f := newFixture(t)
	o, err := f.repo.Clone(context.Background(), CloneRequest{URL: redirecting(t, func(r *http.Request) string { return backend + r.URL.RequestURI() }) + "/" + filepath.Base(origin)})
	if err != nil || o.Base == "" {
		t.Errorf("the clone returns %+v, %v, want an origin with a commit", o, err)
	}
}
