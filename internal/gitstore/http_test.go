package gitstore

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

// request sends a request and returns the response and its body.
func (s *testServer) request(method, path, token string, header map[string]string, body string) (*http.Response, string) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	for name, value := range header {
		request.Header.Set(name, value)
	}
	response, err := s.Client().Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response, string(content)
}

func (s *testServer) advertise(token string) (int, string) {
	s.t.Helper()
	response, body := s.request(http.MethodGet, "/team/"+repository+".git/info/refs?service=git-receive-pack", token, nil, "")
	return response.StatusCode, body
}

func (s *testServer) post(token, service, body string) (int, string) {
	s.t.Helper()
	response, answer := s.request(http.MethodPost, "/team/"+repository+".git/"+service, token,
		map[string]string{"Content-Type": "application/x-" + service + "-request"}, body)
	return response.StatusCode, answer
}

func TestOnlyTheSmartProtocolIsServed(t *testing.T) {
	server := newTestServer(t, Limits{})
	task := server.client(taskToken("fix", 1))
	commit := task.commit("a", "one")
	task.push(commit + ":" + codeRef("fix", 1))
	base := "/team/" + repository + ".git"
	for _, test := range []struct {
		method, path string
		status       int
	}{
		{http.MethodGet, base + "/info/refs?service=git-upload-pack", http.StatusOK},
		{http.MethodGet, base + "/info/refs", http.StatusBadRequest},
		{http.MethodGet, base + "/info/refs?service=git-upload-archive", http.StatusBadRequest},
		{http.MethodGet, base + "/HEAD", http.StatusNotFound},
		{http.MethodGet, base + "/config", http.StatusNotFound},
		{http.MethodGet, base + "/packed-refs", http.StatusNotFound},
		{http.MethodGet, base + "/objects/info/packs", http.StatusNotFound},
		{http.MethodGet, base + "/objects/" + commit[:2] + "/" + commit[2:], http.StatusNotFound},
		{http.MethodGet, "/team/fences/uid-fix.json", http.StatusNotFound},
		{http.MethodGet, "/team/../team/" + repository + ".git/info/refs?service=git-upload-pack", http.StatusNotFound},
		{http.MethodGet, "/team/%2e%2e/gitconfig", http.StatusNotFound},
		{http.MethodGet, "/team%2f" + repository + ".git/info/refs?service=git-upload-pack", http.StatusNotFound},
		{http.MethodGet, "//team/" + repository + ".git/info/refs?service=git-upload-pack", http.StatusNotFound},
		{http.MethodGet, "/Team/" + repository + ".git/info/refs?service=git-upload-pack", http.StatusNotFound},
		{http.MethodGet, "/team/x.git/info/refs?service=git-upload-pack", http.StatusNotFound},
		{http.MethodGet, "/team/r-..git/info/refs?service=git-upload-pack", http.StatusNotFound},
		{http.MethodGet, "/team/r-" + strings.Repeat("a", 70) + ".git/info/refs?service=git-upload-pack", http.StatusNotFound},
		{http.MethodPost, base + "/info/refs?service=git-upload-pack", http.StatusBadRequest},
		{http.MethodGet, base + "/git-upload-pack", http.StatusBadRequest},
		{http.MethodPost, base + "/git-upload-archive", http.StatusNotFound},
		{http.MethodPost, base + "/git-receive-pack", http.StatusBadRequest}, // no content type
		{http.MethodDelete, base + "/git-receive-pack", http.StatusBadRequest},
	} {
		response, body := server.request(test.method, test.path, taskToken("fix", 1), nil, "")
		if response.StatusCode != test.status {
			t.Errorf("%s %s: got %d %q, want %d", test.method, test.path, response.StatusCode, body, test.status)
		}
		if response.StatusCode != http.StatusOK && !strings.HasPrefix(body, "clew: ") {
			t.Errorf("%s %s: the body %q is not a refusal", test.method, test.path, body)
		}
	}
}

func TestBodiesThatNoGitSends(t *testing.T) {
	server := newTestServer(t, Limits{})
	zero, one := strings.Repeat("0", 40), strings.Repeat("1", 40)
	token := taskToken("fix", 1)
	for name, body := range map[string]string{
		"empty":             "",
		"no packet":         "hello",
		"a packet too long": "ffff",
		"a shallow push":    string(packet([]byte("shallow "+one))) + "0000",
		"a signed push":     string(packet([]byte("push-cert\x00report-status\n"))) + "0000",
		"no new value":      string(packet([]byte(zero+" "+codeRef("fix", 1)))) + "0000",
		"two refs a line":   string(packet([]byte(zero+" "+one+" "+codeRef("fix", 1)+"\n"+zero+" "+one+" refs/heads/main"))) + "0000",
		"delimiter packet":  "0001" + "0000",
		"capabilities twice": string(packet([]byte(zero+" "+one+" "+codeRef("fix", 1)+"\x00report-status"))) +
			string(packet([]byte(zero+" "+one+" "+codeRef("fix", 2)+"\x00report-status"))) + "0000",
		"no end": string(packet([]byte(zero + " " + one + " " + codeRef("fix", 1) + "\x00side-band-64k"))),
	} {
		if status, answer := server.post(token, "git-receive-pack", body); status != http.StatusBadRequest || !strings.Contains(answer, "clew: BadRequest: ") {
			t.Errorf("%s: got %d %q, want a BadRequest", name, status, answer)
		}
	}
	response, answer := server.request(http.MethodPost, "/team/"+repository+".git/git-receive-pack", token,
		map[string]string{"Content-Type": "application/x-git-receive-pack-request", "Content-Encoding": "gzip"}, "x")
	if response.StatusCode != http.StatusBadRequest {
		t.Errorf("encoded push: got %d %q, want 400", response.StatusCode, answer)
	}
	// What git sends as a probe before a large push.
	if status, answer := server.post(token, "git-receive-pack", "0000"); status != http.StatusOK || answer != "" {
		t.Errorf("probe: got %d %q, want 200 without a body", status, answer)
	}
	if out := server.remoteRef("refs/"); out != "" {
		t.Errorf("refs were created: %s", out)
	}
}

func TestRefusalsSayWhatToDo(t *testing.T) {
	server := newTestServer(t, Limits{})
	path := "/team/" + repository + ".git/info/refs?service=git-receive-pack"
	response, body := server.request(http.MethodGet, path, "", nil, "")
	if response.StatusCode != http.StatusUnauthorized || !strings.HasPrefix(response.Header.Get("WWW-Authenticate"), "Basic ") {
		t.Errorf("without a token: got %d with headers %v, want 401 with a challenge for Basic", response.StatusCode, response.Header)
	}
	if !strings.HasPrefix(body, "clew: Unauthenticated: a token is needed") {
		t.Errorf("without a token: the body is %q", body)
	}
	if response, _ = server.request(http.MethodGet, path, "down", nil, ""); response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") == "" {
		t.Errorf("without the API server: got %d with headers %v, want 503 with Retry-After", response.StatusCode, response.Header)
	}
}

func TestMetricsCount(t *testing.T) {
	server := newTestServer(t, Limits{})
	task := server.client(taskToken("fix", 1))
	commit := task.commit("a", "one")
	task.push(commit + ":" + codeRef("fix", 1))
	task.refusedPush(gitstoreapi.RefNotAllowed, "", commit+":refs/heads/main")
	families, err := server.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "namespace" || label.GetName() == "repository" {
					t.Errorf("%s names the %s %s", family.GetName(), label.GetName(), label.GetValue())
				}
			}
			found[family.GetName()] += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() + float64(metric.GetHistogram().GetSampleCount())
		}
	}
	for name, least := range map[string]float64{
		"clew_gitstore_requests_total": 4, "clew_gitstore_refusals_total": 1, "clew_gitstore_pushes_total": 1,
		"clew_gitstore_push_duration_seconds": 1, "clew_gitstore_received_bytes_total": 100,
		"clew_gitstore_stored_bytes": 100, "clew_gitstore_repositories": 1, "clew_gitstore_volume_free_bytes": 1,
	} {
		if found[name] < least {
			t.Errorf("%s is %v, want at least %v", name, found[name], least)
		}
	}
}

// A connection on which every request is refused is not bound by a caller's rate limit.
func TestARefusalEndsTheConnection(t *testing.T) {
	server := newTestServer(t, Limits{})
	for name, request := range map[string][2]string{
		"no such path":      {"/x", ""},
		"no token":          {"/team/" + repository + ".git/info/refs?service=git-upload-pack", ""},
		"another namespace": {"/other/" + repository + ".git/info/refs?service=git-upload-pack", taskToken("fix", 1)},
	} {
		response, _ := server.request(http.MethodGet, request[0], request[1], nil, "")
		if response.StatusCode < 400 || !response.Close {
			t.Errorf("%s: got %d and Connection: close %t, want a refusal that closes the connection", name, response.StatusCode, response.Close)
		}
	}
}
